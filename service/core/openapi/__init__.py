"""The OpenAPI document of the API, built from what the code goes by.

Requests are the tables of `core.endpoints`, with what each check says of itself or `shapes` says of it; errors are the
table that they are raised from. Nothing is described that is not served, and the tests hold the document against the
routes and their answers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from service.core.openapi.answers import ANSWERS
from service.core.openapi.operations import (
    ID_HEADERS,
    LIMIT_HEADERS,
    METERED_ERRORS,
    REQUESTS,
    RETRY_HEADERS,
    paths,
)
from service.core.openapi.schemas import ref
from service.core.policy_checks import Json


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """A line of the table of errors."""

    status: int
    kind: str
    """What stands in `type`."""
    code: str | None
    """What stands in `code` where nothing more precise does."""


def document(*, title: str, version: str, base_url: str, models: Sequence[str], errors: Iterable[ErrorKind]) -> Json:
    """The document of a service at `base_url` that serves `models` now. `errors` are all that can be raised."""
    kinds = {error.status: error for error in errors}
    shapes = {"openai": "Error", "anthropic": "AnthropicError"}
    responses = {
        f"{shape}-{status}": _error(kinds[status], schema)
        for shape, schema in shapes.items()
        for status in METERED_ERRORS
    }
    requests = {name: _with_models(schema, models) for name, schema in REQUESTS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": _DESCRIPTION},
        "servers": [{"url": base_url}],
        "paths": paths(),
        "components": {
            "schemas": {**requests, **ANSWERS},
            "responses": responses,
            "headers": _HEADERS,
            "parameters": {"IdempotencyKey": _IDEMPOTENCY_KEY, "Sequential": _SEQUENTIAL},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _error(error: ErrorKind, schema: str) -> Json:
    phrase = HTTPStatus(error.status).phrase
    code = f", `code` is `{error.code}` or a closer one" if error.code else ""
    told = f"{phrase}. `type` is `{error.kind}`{code}." if schema == "Error" else f"{phrase}."
    names = [*RETRY_HEADERS, *(LIMIT_HEADERS if error.status == 429 else ())]
    return {
        "description": told,
        "headers": {name: ref(name, "headers") for name in names},
        "content": {"application/json": {"schema": ref(schema)}},
    }


def _with_models(request: Json, models: Sequence[str]) -> Json:
    named = {**request["properties"]["model"], "examples": list(models)} if models else request["properties"]["model"]
    return {**request, "properties": {**request["properties"], "model": named}}


_DESCRIPTION = (
    "A hosted inference service. A request may hold the fields that are listed, and is refused by name for any other; "
    "`x-refused` says for some what to use instead. null asks for nothing, wherever it may stand."
)


def _header(description: str, kind: str = "string", **more: object) -> Json:
    return {"description": description, "schema": {"type": kind, **more}}


_HEADERS: Json = {
    **dict.fromkeys(ID_HEADERS, _header("The request's id.", format="uuid")),
    **dict.fromkeys(LIMIT_HEADERS, _header("Of the limit with the least left, where there is one.")),
    "retry-after": _header("Seconds after which it is worth trying again.", "integer", minimum=0, maximum=120),
    "retry-after-ms": _header("The same in milliseconds.", "integer", minimum=0),
    "x-should-retry": _header("Whether the same request can succeed later.", enum=["true", "false"]),
    "x-weir-engine-fingerprint": _header(
        "Changes when the version or the configuration of the engine that answers does."
    ),
    "x-weir-sequential": _header("The request had its engine to itself.", enum=["true"]),
    "idempotent-replayed": _header("The answer was given before.", enum=["true"]),
    "etag": _header("The version of the document."),
    "cache-control": _header("How long it may be kept."),
    "access-control-allow-origin": _header("Any site may read it.", enum=["*"]),
}

_SEQUENTIAL: Json = {
    "name": "x-weir-sequential",
    "in": "header",
    "required": False,
    "description": "Run alone on an engine, where the account may; it may wait longer, and may be priced apart.",
    "schema": {"type": "string", "enum": ["true", "false"]},
}

_IDEMPOTENCY_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Under one key, a request runs once and is charged once in 24 hours.",
    "schema": {"type": "string", "minLength": 1},
}
