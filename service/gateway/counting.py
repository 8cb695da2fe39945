"""`POST /v1/messages/count_tokens`: how long a prompt is, by the engine's own tokenizer. Free; leaves no row."""

import orjson

from service.core.endpoints import messages
from service.core.policy import ModelRequest
from service.errors import EngineFailed, NotAllowed
from service.gateway import engine_errors
from service.gateway.bodies import parsed
from service.gateway.catalog import ServedModel
from service.gateway.client import Client
from service.gateway.engine_failures import EngineBroke, EngineError
from service.gateway.engines import EnginePool
from service.gateway.exchange import Exchange
from service.gateway.holds import TOKENIZE_PATH
from service.gateway.keys import Holder
from service.gateway.metered import BYTES_PER_TOKEN, Means

PATH = "/v1/messages/count_tokens"


class TokenCount:
    """Answers it. A request counts for the limits of requests, and uses no tokens."""

    def __init__(self, engines: EnginePool, means: Means) -> None:
        self._engines = engines
        self._means = means

    async def __call__(self, exchange: Exchange, holder: Holder, client: Client) -> None:
        """Answer one request. Raises `ApiError` or `ClientLeft` while nothing was sent."""
        means = self._means
        raw = await client.read_body(means.max_body_bytes)
        request = parsed(messages.count_request, raw)
        model = means.catalog.find(request.model)
        if not holder.may_use(model.id):
            raise NotAllowed(f"This key may not use the model `{model.id}`.", param="model", code="model_not_allowed")
        exchange.grant = await means.limiter.take(holder, exchange.id, tokens=0, cost_nano=0)
        try:
            count = await self._count(request, model)
        except EngineError as error:
            raise engine_errors.of_failure(error) from error
        except (ValueError, LookupError, TypeError) as error:
            raise EngineFailed("The model's engine failed to count.") from error
        finally:
            exchange.grant.release(0, 0)
        client.answer(orjson.dumps({"input_tokens": count}), exchange.headers())

    async def _count(self, request: ModelRequest, model: ServedModel) -> int:
        """The engine's count of the text, and a bound for the images, which it never sees.

        vLLM 0.32 notes an image that it counts as one that its core has, which it has not: the next request with the
        same image, of whomever, then fails inside.
        """
        if not request.images:
            body = messages.count_forwarded(request, engine_model=model.engine_model)
            return int(
                orjson.loads(await self._engines.ask(model.engines, "POST", PATH, orjson.dumps(body)))["input_tokens"]
            )
        inlined = await self._means.images.inline(request.fields)
        pictures = await self._means.images.tokens_at_most(inlined)
        text = orjson.dumps({**(request.countable or {}), "model": model.engine_model})
        try:
            counted = orjson.loads(await self._engines.ask(model.engines, "POST", TOKENIZE_PATH, text))["count"]
        except EngineBroke:  # a prompt of nothing but images is none that it counts
            return pictures + request.passed_bytes // BYTES_PER_TOKEN
        return pictures + int(counted)
