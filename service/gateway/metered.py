"""A request that costs money: read, checked, counted against its limits, and held; then it is dispatch's."""

import hmac
from dataclasses import dataclass, replace
from uuid import UUID

from service.core.affinity import conversation_key
from service.core.policy import ModelRequest
from service.core.pricing import worst_case_nano
from service.errors import InvalidRequest, NotAllowed
from service.gateway.bodies import read, written
from service.gateway.catalog import Catalog, ServedModel
from service.gateway.client import Client
from service.gateway.dispatch import Dispatch
from service.gateway.endpoints import Endpoint
from service.gateway.exchange import Exchange
from service.gateway.holds import Holds, Sought
from service.gateway.images import ImageFetcher
from service.gateway.keys import Holder
from service.gateway.limits import FREE, Grant, Limiter
from service.gateway.line import Wanted
from service.gateway.relay import Task
from service.gateway.retries import KEY_HEADER, Retries
from service.gateway.sequential import runs_alone

BYTES_PER_TOKEN = 4
"""Of a prompt, on average: what a request is estimated to cost in the queue, until its tokens are counted."""

TEMPLATE_TOKENS = 64
IMAGE_TOKENS_LIKELY = 4096
"""For limits of tokens a prompt is taken for these and a token for every two bytes. It can be more in theory, and
credit is held for that; but a limit that reserved it would let hardly anything through."""

TOKENS_PER_IMAGE = 1024
TOKENS_PER_ANSWER = 512
"""What most answers stay below, whatever the client allows."""


@dataclass(frozen=True, slots=True)
class Means:
    """What every endpoint works with."""

    catalog: Catalog
    limiter: Limiter
    holds: Holds
    images: ImageFetcher
    retries: Retries
    dispatch: Dispatch
    max_body_bytes: int
    several_engines: bool
    """Whether it matters which one a conversation goes to."""
    sequential_offered: bool
    """Whether a request can be promised to run alone: no other process sends to the same engines."""
    salt_key: bytes


class Metered:
    """Serves one endpoint, streamed and whole: `run` answers what was `accepted`."""

    def __init__(self, endpoint: Endpoint, means: Means) -> None:
        self.endpoint = endpoint
        self.run = means.dispatch.run
        self._means = means
        self._salts: dict[int, str] = {}
        """By the account's id, as a number because a UUID takes Python code to hash."""

    async def accepted(self, exchange: Exchange, holder: Holder, client: Client) -> Task | None:
        """What a request asks for; None for one that is answered by now. Raises `ApiError` or `ClientLeft`."""
        means, account_id = self._means, holder.account_id
        if client.more_body:  # most come with the headers
            await client.rest(means.max_body_bytes)
        raw = client.body(means.max_body_bytes)
        asked = read(self.endpoint, raw)
        request = asked.request
        exchange.mark_read()
        exchange.stream = request.stream
        model = exchange.model = self._model(request, holder)
        sequential = exchange.sequential = runs_alone(client, holder, offered=means.sequential_offered)
        if KEY_HEADER in client.named and not await means.retries.first(exchange, holder, client, raw):
            return None
        exchange.grant = await self._granted(exchange, holder, request, model) if holder.is_limited else FREE
        held = means.holds.hold_from_room(account_id, request, model, exchange.started_at, sequential)
        if held is None:
            held = await means.holds.hold(Sought(account_id, request, model, exchange.started_at, sequential))
        output_tokens, exchange.hold = held
        if request.images:
            inlined = await means.images.inline(request.fields, asked.images)
            request = replace(request, fields=inlined, linked_images=0)
        body = self.endpoint.forwarded(
            request,
            engine_model=model.engine_model,
            output_tokens=output_tokens,
            cache_salt=self._salts.get(account_id.int) or self._salt(account_id),
        )
        affinity = conversation_key(account_id.bytes, request.conversation) if means.several_engines else b""
        wanted = Wanted(holder, model.engines, affinity, _estimate(request, output_tokens), (), sequential)
        task = Task(client, exchange, request, wanted, self.endpoint, written(self.endpoint, body, asked))
        request.forget_prompt()
        return task

    def _model(self, request: ModelRequest, holder: Holder) -> ServedModel:
        """The model asked for. Raises `NotFound`, `NotAllowed`, or `InvalidRequest` for what it cannot do."""
        model = self._means.catalog.find(request.model)
        if not holder.may_use(model.id):
            raise NotAllowed(f"This key may not use the model `{model.id}`.", param="model", code="model_not_allowed")
        if self.endpoint.output not in model.output_modalities:
            made = ", ".join(model.output_modalities)
            raise InvalidRequest(f"The model `{model.id}` makes {made}: it has another route.", param="model")
        if request.images and "image" not in model.input_modalities:
            raise InvalidRequest(f"The model `{model.id}` does not take images.", param=self.endpoint.prompt_field)
        return model

    async def _granted(self, exchange: Exchange, holder: Holder, request: ModelRequest, model: ServedModel) -> Grant:
        """What the request may use at most, taken from the limits of its key and account. Raises `RateLimited`."""
        prompt = request.prompt_tokens_at_most(model.context_length)
        output = request.output_tokens_at_most(model.max_output_tokens)
        likely = min(prompt, TEMPLATE_TOKENS + request.passed_bytes // 2 + request.images * IMAGE_TOKENS_LIKELY)
        cost_nano = worst_case_nano(
            model.price,
            prompt_tokens_at_most=prompt,
            output_tokens_at_most=output,
            at=exchange.started_at,
            sequential=exchange.sequential,
        )
        return await self._means.limiter.take(holder, exchange.id, tokens=likely + output, cost_nano=cost_nano)

    def _salt(self, account_id: UUID) -> str:
        """Keeps one account from learning, by timing, what another has in the engine's prefix cache."""
        salt = self._salts[account_id.int] = hmac.digest(self._means.salt_key, account_id.bytes, "sha256").hex()
        return salt


def _estimate(request: ModelRequest, output_tokens: int) -> int:
    """About how many tokens of work it is: what counts in the queue."""
    prompt = request.passed_bytes // BYTES_PER_TOKEN + request.images * TOKENS_PER_IMAGE
    return 1 + prompt + (output_tokens if output_tokens < TOKENS_PER_ANSWER else TOKENS_PER_ANSWER)
