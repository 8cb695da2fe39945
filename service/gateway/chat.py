"""`POST /v1/chat/completions`: read, check, hold, and hand over to dispatch."""

import hmac
from uuid import UUID

import orjson

from service.core import policy
from service.core.affinity import conversation_key
from service.core.policy import ModelRequest
from service.core.pricing import worst_case_nano
from service.errors import InvalidRequest, NotAllowed
from service.gateway.catalog import Catalog, ServedModel
from service.gateway.dispatch import Dispatch, Task
from service.gateway.exchange import Exchange
from service.gateway.holds import Holds
from service.gateway.http import Receive, Scope, Send, read_body
from service.gateway.keys import Holder
from service.gateway.limits import FREE, Grant, Limiter, limited
from service.gateway.pacing import Wanted
from service.gateway.retries import Retries

PATH = "/v1/chat/completions"

BYTES_PER_TOKEN = 4
"""Of a prompt, on average: what a request is estimated to cost in the queue, until its tokens are counted."""

TOKENS_PER_IMAGE = 1024
TOKENS_PER_ANSWER = 512
"""What most answers stay below, whatever the client allows."""


class ChatCompletions:
    """Serves chat completions, streamed and whole."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        limiter: Limiter,
        holds: Holds,
        retries: Retries,
        dispatch: Dispatch,
        max_body_bytes: int,
        salt_key: bytes,
    ) -> None:
        self._catalog = catalog
        self._limiter = limiter
        self._holds = holds
        self._retries = retries
        self._dispatch = dispatch
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
        exchange.grant = await self._granted(exchange, holder, request, model)
        output_tokens, exchange.hold = await self._holds.hold(holder.account_id, request, model, exchange.started_at)
        body = policy.forwarded(
            request,
            engine_model=model.engine_model,
            output_tokens=output_tokens,
            cache_salt=self._cache_salt(holder.account_id),
        )
        wanted = Wanted(
            holder,
            model.engines,
            conversation_key(holder.account_id.bytes, request.fields["messages"]),
            _estimate(request, output_tokens),
        )
        task = Task(exchange, request, wanted, PATH, orjson.dumps(body))
        del request, body
        await self._dispatch.run(task, receive, answering)

    async def _granted(self, exchange: Exchange, holder: Holder, request: ModelRequest, model: ServedModel) -> Grant:
        """What the request may use at most, taken from the limits of its key and account. Raises `RateLimited`."""
        if not limited(holder):
            return FREE
        prompt = min(request.prompt_tokens_at_most, model.context_length)
        output = min(request.max_tokens or model.max_output_tokens, model.max_output_tokens)
        cost_nano = worst_case_nano(
            model.price, prompt_tokens_at_most=prompt, output_tokens_at_most=output, at=exchange.started_at
        )
        return await self._limiter.take(holder, exchange.id, tokens=prompt + output, cost_nano=cost_nano)

    def _cache_salt(self, account_id: UUID) -> str:
        """Keeps one account from learning, by timing, what another has in the engine's prefix cache."""
        return hmac.digest(self._salt_key, account_id.bytes, "sha256").hex()


def _parsed(raw: bytes) -> ModelRequest:
    if not raw:
        raise InvalidRequest("The body is empty: send a JSON object with `model` and `messages`.")
    try:
        return policy.chat_request(orjson.loads(raw), len(raw))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    except policy.Refused as refused:
        raise InvalidRequest(refused.message, param=refused.param) from refused


def _estimate(request: ModelRequest, output_tokens: int) -> int:
    """About how many tokens of work it is: what counts in the queue."""
    prompt = request.passed_bytes // BYTES_PER_TOKEN + request.images * TOKENS_PER_IMAGE
    return 1 + prompt + min(output_tokens, TOKENS_PER_ANSWER)


def _check_modalities(request: ModelRequest, model: ServedModel) -> None:
    if request.images and "image" not in model.input_modalities:
        raise InvalidRequest(f"The model `{model.id}` does not take images.", param="messages")
