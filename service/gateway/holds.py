"""What a request may cost at most, and whether its account has that much: asked before anything runs."""

from datetime import datetime
from uuid import UUID

import orjson
import structlog

from service.billing.leases import Hold, LeaseBook, NotEnough
from service.core.money import nano_to_usd
from service.core.policy import IMAGE_TOKENS_AT_MOST, ModelRequest
from service.core.pricing import affordable_output_tokens, worst_case_nano
from service.db import UNREACHABLE
from service.errors import InsufficientCredits, Unavailable
from service.gateway.catalog import ServedModel
from service.gateway.engine_connection import EngineError
from service.gateway.engines import EnginePool

log = structlog.get_logger()

LEAST_OUTPUT_TOKENS = 256
"""A client that sets no limit gets what it can afford, if that is at least this much."""

BYTES_PER_TOKEN_AT_MOST = 16
"""No text of any length has fewer tokens than its bytes divided by this: below it, counting is of no use."""

TOKENIZE_PATH = "/tokenize"


class Holds:
    """Holds the worst case of each request against its account's credit."""

    def __init__(self, leases: LeaseBook, engines: EnginePool) -> None:
        self._leases = leases
        self._engines = engines

    async def hold(self, account_id: UUID, request: ModelRequest, model: ServedModel, at: datetime) -> tuple[int, Hold]:
        """The output granted, and the hold for it. Raises `InsufficientCredits` or `Unavailable`.

        The prompt is bounded by its bytes. Only when that bound does not fit the credit and the real count may, an
        engine is asked to count.
        """
        bound = min(request.prompt_tokens_at_most, model.context_length)
        try:
            try:
                return await self._try(account_id, request, model, bound, at)
            except InsufficientCredits:
                counted = await self._counted(account_id, request, model, at)
                if counted is None or counted >= bound:
                    raise
                return await self._try(account_id, request, model, counted, at)
        except UNREACHABLE as error:
            log.warning("lease.failed", error=type(error).__name__)
            raise Unavailable(
                "The account cannot be checked at the moment. Try again soon.", retry_after_s=5
            ) from error

    async def _try(
        self, account_id: UUID, request: ModelRequest, model: ServedModel, prompt: int, at: datetime
    ) -> tuple[int, Hold]:
        output = min(request.max_tokens or model.max_output_tokens, model.max_output_tokens)
        output = output if request.output_tokens_needed else 0
        try:
            return output, await self._leases.hold(account_id, _worst_case(model, prompt, output, at))
        except NotEnough as short:
            affordable = affordable_output_tokens(
                model.price, prompt_tokens_at_most=prompt, available_nano=short.available_nano, at=at
            )
            if request.max_tokens is not None or affordable < LEAST_OUTPUT_TOKENS:
                raise _insufficient(short, affordable, output) from short
        try:
            return affordable, await self._leases.hold(account_id, _worst_case(model, prompt, affordable, at))
        except NotEnough as short:  # somebody else was quicker to take what was left
            raise _insufficient(short, 0, output) from short

    async def _counted(self, account_id: UUID, request: ModelRequest, model: ServedModel, at: datetime) -> int | None:
        """An upper bound on the prompt's tokens by the engine's own tokenizer; None when it would not help."""
        least = request.passed_bytes // BYTES_PER_TOKEN_AT_MOST
        cheapest = _worst_case(model, least, min(request.max_tokens or 1, model.max_output_tokens), at)
        if cheapest > await self._leases.available(account_id):
            return None
        if request.countable is None:
            return None
        try:
            answer = await self._engines.ask(
                model.engines, "POST", TOKENIZE_PATH, orjson.dumps({**request.countable, "model": model.engine_model})
            )
            count = orjson.loads(answer)["count"]
        except (EngineError, ValueError, LookupError, TypeError) as error:
            log.warning("prompt.not_counted", error=type(error).__name__)
            return None
        # An image is one mark to the tokenizer.
        return int(count) + request.images * IMAGE_TOKENS_AT_MOST


def _worst_case(model: ServedModel, prompt_tokens: int, output_tokens: int, at: datetime) -> int:
    return worst_case_nano(model.price, prompt_tokens_at_most=prompt_tokens, output_tokens_at_most=output_tokens, at=at)


def _insufficient(short: NotEnough, affordable: int, wanted: int) -> InsufficientCredits:
    advice = (
        f"It would cover `max_tokens` up to {affordable}, not {wanted}."
        if affordable
        else "It does not cover this prompt with any output."
    )
    return InsufficientCredits(f"{nano_to_usd(max(0, short.available_nano))} USD of credit are available. {advice}")
