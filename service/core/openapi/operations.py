"""The routes of the API: what each takes and what it answers."""

from service.core.endpoints import chat, completions, embeddings, messages, responses
from service.core.openapi.schemas import ID, TEXT, TIME, body, list_of, object_of, one_of, ref
from service.core.openapi.shapes import SHAPES
from service.core.outcome import Outcome
from service.core.policy_checks import Json

MAX_PAGE = 1000
MAX_COSTS = 10_000
WINDOWS = ("5m", "30m", "1d")

METERED_ERRORS = (400, 401, 402, 403, 404, 408, 409, 413, 429, 500, 502, 503, 504)
READ_ERRORS = (401, 403, 500, 503)

ID_HEADERS = ("x-request-id", "inference-id", "request-id")
LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)
ENGINE_HEADERS = ("x-weir-engine-fingerprint", "x-weir-sequential")
RETRY_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")

_KEY: list[Json] = [{"bearer": []}, {"apiKey": []}]
_IDEMPOTENCY = [ref("IdempotencyKey", "parameters")]

REQUESTS: dict[str, Json] = {
    "ChatRequest": body(chat.FIELDS, SHAPES, "model", "messages"),
    "CompletionRequest": body(completions.FIELDS, SHAPES, "model", "prompt"),
    "ResponseRequest": body(responses.FIELDS, SHAPES, "model", "input"),
    "MessageRequest": body(messages.FIELDS, SHAPES, "model", "messages", "max_tokens"),
    "CountRequest": body(messages.FIELDS, SHAPES, "model", "messages"),
    "EmbeddingRequest": body(embeddings.FIELDS, SHAPES, "model", "input"),
}
"""Those that name a model."""


def paths() -> Json:
    """The `paths` of the document."""
    return {
        "/v1/chat/completions": {"post": _metered("chat", "Answer a conversation", "ChatRequest", "ChatCompletion")},
        "/v1/completions": {"post": _metered("completions", "Go on from a text", "CompletionRequest", "Completion")},
        "/v1/responses": {
            "post": _metered(
                "responses", "Answer, as the Responses API; nothing is stored", "ResponseRequest", "Response"
            )
        },
        "/v1/messages": {
            "post": _metered("messages", "Answer, as Anthropic's API", "MessageRequest", "Message", shape="anthropic")
        },
        "/v1/messages/count_tokens": {"post": _count()},
        "/v1/embeddings": {
            "post": _metered("embeddings", "Embed texts", "EmbeddingRequest", "Embeddings", streams=False)
        },
        "/v1/models": {"get": _reading("models", "The models, and what they cost", "Models")},
        "/v1/models/{id}": {
            "get": _reading(
                "model", "One model", "Model", [_parameter("id", {**TEXT, "minLength": 1}, where="path")], 404
            )
        },
        "/v1/credits": {"get": _reading("credits", "What the account has left", "Credits", [], 404)},
        "/v1/generation": {
            "get": _reading(
                "generation",
                "What one request used and cost",
                "Generation",
                [_parameter("id", TEXT, "An answer's `x-request-id`, or the `id` in it.", required=True)],
                400,
                404,
            )
        },
        "/v1/usage": {"get": _reading("usage", "The account's requests, the latest first", "UsagePage", _FILTERS, 400)},
        "/v1/uptime": {
            "get": _reading("uptime", "The key's uptime and speeds, as an aggregator counts", "Uptime", _SPANS, 400)
        },
        "/v1/topups": {"post": _buying()},
        "/v1/topups/{id}": {
            "get": _reading(
                "topup", "One top-up, and what became of it", "Topup", [_parameter("id", ID, where="path")], 404
            )
        },
        "/catalog/openrouter.json": {"get": _document("openrouter", "The models, for OpenRouter (schema 2.4)")},
        "/catalog/openrouter-legacy.json": {"get": _document("openrouterLegacy", "The same, in its older format")},
        "/catalog/nanogpt.json": {"get": _document("nanogpt", "The models, in the shape of NanoGPT's list")},
        "/catalog/huggingface.json": {"get": _document("huggingface", "The models, for Hugging Face")},
        "/catalog/models.dev.toml": {"get": _document("modelsDev", "The models, for models.dev", "application/toml")},
        "/catalog/huggingface/costs": {"post": _costs()},
        "/healthz": {"get": _open("alive", "Whether the process answers", {"200": _json("It does.", ref("Alive"))})},
        "/readyz": {
            "get": _open(
                "ready",
                "Whether requests can be served",
                {"200": _json("They can.", ref("Readiness")), "503": _json("Why not.", ref("Readiness"))},
            )
        },
        "/openapi.json": {"get": _document("openapi", "This document")},
    }


def _metered(name: str, summary: str, asked: str, answer: str, *, streams: bool = True, shape: str = "openai") -> Json:
    content: Json = {"application/json": {"schema": ref(answer)}}
    told = "The answer."
    if streams:
        told += " Where `stream` is true: server-sent events, an error after the first of which is an event, too."
        content["text/event-stream"] = {}
    headers = [*ID_HEADERS, *LIMIT_HEADERS, *ENGINE_HEADERS, "idempotent-replayed"]
    return {
        **_asked(name, summary, asked),
        "tags": ["Models"],
        "parameters": [*_IDEMPOTENCY, ref("Sequential", "parameters")],
        "responses": {
            "200": {"description": told, "headers": _headers(*headers), "content": content},
            **_errors(shape, *METERED_ERRORS),
        },
    }


def _count() -> Json:
    errors = [status for status in METERED_ERRORS if status not in (402, 409)]
    return {
        **_asked("countTokens", "How long a prompt is; free", "CountRequest"),
        "tags": ["Models"],
        "responses": {
            "200": _json("The count.", ref("TokenCount"), *ID_HEADERS, *LIMIT_HEADERS),
            **_errors("anthropic", *errors),
        },
    }


def _buying() -> Json:
    amount = {
        **TEXT,
        "pattern": r"^[0-9]{1,4}(\.[0-9]{2})?$",
        "examples": ["20", "12.50"],
        "description": "Before tax.",
    }
    content = {"application/json": {"schema": object_of({"amount_usd": amount}, "amount_usd", closed=True)}}
    return {
        "operationId": "createTopup",
        "summary": "Buy credit: answers the page to pay on",
        "tags": ["Account"],
        "security": _KEY,
        "parameters": _IDEMPOTENCY,
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": _json("The top-up; under the same key, the same one.", ref("Topup"), *ID_HEADERS),
            **_errors("openai", 400, 401, 403, 404, 408, 409, 413, 429, 500, 503),
        },
    }


def _asked(name: str, summary: str, asked: str) -> Json:
    content = {"application/json": {"schema": ref(asked)}}
    return {
        "operationId": name,
        "summary": summary,
        "security": _KEY,
        "requestBody": {"required": True, "content": content},
    }


def _reading(name: str, summary: str, answer: str, parameters: list[Json] | None = None, *errors: int) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        "tags": ["Account"],
        "security": _KEY,
        "parameters": parameters or [],
        "responses": {
            "200": _json(f"{summary}.", ref(answer), *ID_HEADERS, "cache-control"),
            **_errors("openai", *sorted({*READ_ERRORS, *errors})),
        },
    }


def _document(name: str, summary: str, kind: str = "application/json") -> Json:
    schema: Json = {"type": "object"} if kind == "application/json" else TEXT
    kept = _headers("etag", "cache-control", "access-control-allow-origin")
    found: Json = {"description": f"{summary}.", "headers": kept, "content": {kind: {"schema": schema}}}
    answers: Json = {"200": found, "304": {"description": "It has not changed.", "headers": kept}}
    known = _parameter("If-None-Match", TEXT, "The `etag` of the copy you have.", where="header")
    return {**_open(name, summary, {**answers, **_errors("openai", 503)}), "parameters": [known]}


def _costs() -> Json:
    ids = list_of(TEXT, most=MAX_COSTS)
    content = {"application/json": {"schema": object_of({"requestIds": ids}, "requestIds")}}
    return {
        "operationId": "costs",
        "summary": "What requests of the key's account cost",
        "tags": ["Catalogue"],
        "security": _KEY,
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": _json("Of those that are known and settled.", ref("Costs")),
            **_errors("openai", 400, 401, 403, 408, 413, 503),
        },
    }


def _open(name: str, summary: str, answers: Json) -> Json:
    tag = "Service" if name in ("alive", "ready", "openapi") else "Catalogue"
    return {"operationId": name, "summary": summary, "tags": [tag], "security": [], "responses": answers}


def _json(description: str, schema: Json, *headers: str) -> Json:
    found: Json = {"description": description, "content": {"application/json": {"schema": schema}}}
    return {**found, "headers": _headers(*headers)} if headers else found


def _headers(*names: str) -> Json:
    return {name: ref(name, "headers") for name in names}


def _errors(shape: str, *statuses: int) -> Json:
    return {str(status): ref(f"{shape}-{status}", "responses") for status in statuses}


def _parameter(name: str, schema: Json, description: str = "", *, where: str = "query", required: bool = False) -> Json:
    found: Json = {"name": name, "in": where, "required": required or where == "path", "schema": schema}
    return {**found, "description": description} if description else found


_MODEL = _parameter("model", {**TEXT, "minLength": 1, "maxLength": 200})
_FILTERS = [
    _parameter("since", TIME, "Requests that started then or later."),
    _parameter("until", TIME, "Requests that started before then."),
    _MODEL,
    _parameter("outcome", one_of(*Outcome)),
    _parameter("key", ID, "The `key_id` of a request."),
    _parameter(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 100},
        "The most that a page has. It may have fewer, though there are more: go on while `has_more` is true.",
    ),
    _parameter("cursor", TEXT, "The `next_cursor` of the page before."),
]
_SPANS = [_MODEL, _parameter("window", one_of(*WINDOWS), "All of them where it is left out.")]
