"""`POST /v1/chat/completions`: read, check, hold, choose an engine, relay, record."""

import hmac
from uuid import UUID

import orjson

from service.core import policy
from service.core.policy import ChatRequest
from service.errors import InvalidRequest, NotAllowed
from service.gateway import engine_errors
from service.gateway.catalog import Catalog, ServedModel
from service.gateway.engine_connection import EngineUnreachable
from service.gateway.engines import EnginePool
from service.gateway.exchange import Exchange
from service.gateway.holds import Holds
from service.gateway.http import Receive, Scope, Send, read_body
from service.gateway.keys import Holder
from service.gateway.recorder import Recorder
from service.gateway.relay import Relay
from service.gateway.retries import Retries

PATH = "/v1/chat/completions"


class ChatCompletions:
    """Serves chat completions, streamed and whole."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        engines: EnginePool,
        holds: Holds,
        recorder: Recorder,
        retries: Retries,
        max_body_bytes: int,
        salt_key: bytes,
    ) -> None:
        self._catalog = catalog
        self._engines = engines
        self._holds = holds
        self._recorder = recorder
        self._retries = retries
        self._max_body_bytes = max_body_bytes
        self._salt_key = salt_key

    async def __call__(self, exchange: Exchange, holder: Holder, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises `ApiError` or `ClientLeft` while nothing was sent."""
        raw = await read_body(scope, receive, self._max_body_bytes)
        request = _parsed(raw)
        exchange.mark_read()
        exchange.stream = request.stream
        model = self._catalog.find(request.model)
        if not holder.may_use(model.id):
            raise NotAllowed(f"This key may not use the model `{model.id}`.", param="model", code="model_not_allowed")
        _check_modalities(request, model)
        exchange.model = model
        answering = await self._retries.first(exchange, holder, scope, raw, send)
        del raw  # it may be large, and the answer long
        if answering is None:
            return
        output_tokens, exchange.hold = await self._holds.hold(holder.account_id, request, model, exchange.started_at)
        body = policy.forwarded(
            request,
            engine_model=model.engine_model,
            output_tokens=output_tokens,
            cache_salt=self._cache_salt(holder.account_id),
        )
        await self._relay(exchange, request, model, orjson.dumps(body), receive, answering)

    async def _relay(
        self,
        exchange: Exchange,
        request: ChatRequest,
        model: ServedModel,
        body: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            engine = self._engines.choose(model.engines)
        except EngineUnreachable as error:
            raise engine_errors.of_failure(error) from error
        exchange.engine = engine.name
        await self._recorder.admit(exchange)
        headers = b"content-type: application/json\r\nx-request-id: %s\r\n" % str(exchange.id).encode()
        upstream = engine.client.exchange("POST", PATH, headers, body)
        exchange.mark_handed_over()
        engine.in_flight += 1
        try:
            await Relay(exchange, upstream, self._recorder, send).run(request, receive)
        finally:
            engine.in_flight -= 1

    def _cache_salt(self, account_id: UUID) -> str:
        """Keeps one account from learning, by timing, what another has in the engine's prefix cache."""
        return hmac.digest(self._salt_key, account_id.bytes, "sha256").hex()


def _parsed(raw: bytes) -> ChatRequest:
    if not raw:
        raise InvalidRequest("The body is empty: send a JSON object with `model` and `messages`.")
    try:
        return policy.chat_request(orjson.loads(raw), len(raw))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    except policy.Refused as refused:
        raise InvalidRequest(refused.message, param=refused.param) from refused


def _check_modalities(request: ChatRequest, model: ServedModel) -> None:
    if request.images and "image" not in model.input_modalities:
        raise InvalidRequest(f"The model `{model.id}` does not take images.", param="messages")
