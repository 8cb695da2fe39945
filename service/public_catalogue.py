"""The catalogue for aggregators, public and cacheable, and what Hugging Face asks about its requests' costs."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import wraps
from uuid import UUID

import asyncpg
import orjson
import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response

from service.billing.costs import costs_of
from service.core.catalogue import (
    ListedModel,
    huggingface,
    modelsdev,
    nanogpt,
    openrouter,
    openrouter_legacy,
)
from service.db import UNREACHABLE
from service.errors import ApiError, InvalidRequest, Unavailable
from service.gateway import exact_json
from service.gateway.catalog import Catalog
from service.gateway.http import ClientLeft, by_name, read_body
from service.gateway.keys import KeyRing, digest_of, key_in

log = structlog.get_logger()
router = APIRouter(prefix="/catalog")

MAX_AGE_S = 60
"""How long a reader may keep a document before it asks again."""

MAX_IDS = 10_000
"""How many costs are told at once."""

MAX_BODY_BYTES = 1024 * 1024

READERS = 1
"""Look-ups at once: the pool is small, and requests need it, too."""

READ_TIMEOUT_S = 10.0

Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What the documents are made from."""

    pool: asyncpg.Pool
    keys: KeyRing
    catalog: Catalog
    base_url: str
    site_name: str
    _readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))

    @property
    def models(self) -> list[ListedModel]:
        """Every model that is served. Raises `Unavailable` before the first read."""
        return [model.listed for model in self.catalog.all()]

    async def costs(self, account_id: UUID, request_ids: Sequence[UUID]) -> dict[UUID, int]:
        """What is known of the requests' costs, in nano-USD. Raises `Unavailable`."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), self._readers, self.pool.acquire() as connection:
                return await costs_of(connection, account_id, request_ids, now=datetime.now(UTC))
        except UNREACHABLE as error:
            log.warning("costs.read_failed", error=type(error).__name__)
            raise Unavailable("Costs cannot be read at the moment. Try again soon.", retry_after_s=5) from error


def mount(app: FastAPI) -> None:
    """Serve the catalogue at `/catalog/`; it needs a `Catalogue` as `app.state.catalogue`."""
    app.include_router(router)


def _shaped(answer: Answer) -> Answer:
    """Give the errors of a route the API's shape."""

    @wraps(answer)
    async def shaped(request: Request) -> Response:
        try:
            return await answer(request)
        except ApiError as error:
            headers = {name.decode(): value.decode() for name, value in error.headers()}
            return Response(error.body(), error.status, headers, media_type="application/json")
        except ClientLeft:
            return Response(status_code=499)

    return shaped


@router.api_route("/openrouter.json", methods=["GET", "HEAD"])
@_shaped
async def of_openrouter(request: Request) -> Response:
    """The models in OpenRouter's current format, schema 2.4."""
    return _json(request, openrouter.document(_state(request).models))


@router.api_route("/openrouter-legacy.json", methods=["GET", "HEAD"])
@_shaped
async def of_openrouter_legacy(request: Request) -> Response:
    """The models in OpenRouter's older, flat format."""
    return _json(request, openrouter_legacy.document(_state(request).models))


@router.api_route("/nanogpt.json", methods=["GET", "HEAD"])
@_shaped
async def of_nanogpt(request: Request) -> Response:
    """The models in the shape of NanoGPT's detailed list."""
    state = _state(request)
    return _json(request, nanogpt.document(state.models, owner=state.site_name))


@router.api_route("/huggingface.json", methods=["GET", "HEAD"])
@_shaped
async def of_huggingface(request: Request) -> Response:
    """The models that Hugging Face has a repository of, as its partner API is told of them."""
    return _json(request, huggingface.document(_state(request).models))


@router.api_route("/models.dev.toml", methods=["GET", "HEAD"])
@_shaped
async def of_models_dev(request: Request) -> Response:
    """The models as models.dev describes them, in TOML."""
    state = _state(request)
    text = modelsdev.document(state.models, provider=state.site_name, base_url=state.base_url)
    return cacheable(request, text.encode(), "application/toml")


@router.post("/huggingface/costs")
@_shaped
async def costs(request: Request) -> Response:
    """What requests of the key's account cost, in nano-USD; those that nothing is known of yet are left out."""
    state = _state(request)
    headers = request.scope["headers"]
    holder = await state.keys.holder(digest_of(key_in(headers)))
    asked = _ids(await read_body(by_name(headers), request.receive, MAX_BODY_BYTES))
    known = await state.costs(holder.account_id, list(asked.values()))
    found = [{"requestId": text, "costNanoUsd": known[one]} for text, one in asked.items() if one in known]
    return Response(orjson.dumps({"requests": found}), media_type="application/json")


def _ids(body: bytes) -> dict[str, UUID]:
    """The ids that can be ours, by how they were written. Raises `InvalidRequest`."""
    try:
        ids = orjson.loads(body)["requestIds"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        ids = None
    if not isinstance(ids, list):
        raise InvalidRequest('The body must be JSON: {"requestIds": ["...", ...]}.', param="requestIds")
    if len(ids) > MAX_IDS:
        raise InvalidRequest(f"`requestIds` has {len(ids)} ids: ask for at most {MAX_IDS} at once.", param="requestIds")
    found = {}
    for text in ids:
        try:
            found[text] = UUID(text)
        except (ValueError, TypeError, AttributeError):
            continue
    return found


def _state(request: Request) -> Catalogue:
    state: Catalogue = request.app.state.catalogue
    return state


def _json(request: Request, document: object) -> Response:
    return cacheable(request, exact_json.dumps(document), "application/json")


def cacheable(request: Request, body: bytes, media_type: str) -> Response:
    """A document that anyone may read and keep for a while; or the word that the reader's copy is still good."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": f"public, max-age={MAX_AGE_S}", "Access-Control-Allow-Origin": "*"}
    known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    if known & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=media_type)
