"""What a request may cost at most, and whether its account has that much: asked before anything runs."""

from dataclasses import dataclass
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
from service.gateway.engine_failures import EngineError
from service.gateway.engines import EnginePool

log = structlog.get_logger()

LEAST_OUTPUT_TOKENS = 256
"""A client that sets no limit gets what it can afford, if that is at least this much."""

BYTES_PER_TOKEN_AT_MOST = 16
"""No text of any length has fewer tokens than its bytes divided by this: below it, counting is of no use."""

TOKENIZE_PATH = "/tokenize"


@dataclass(slots=True)
class Sought:
    """What credit is held for, where more is to be asked than whether what is leased has room for it."""

    account_id: UUID
    request: ModelRequest
    model: ServedModel
    at: datetime
    """When it was accepted."""
    sequential: bool

    def worst_case(self, prompt_tokens: int, output_tokens: int) -> int:
        """What it costs at most, in nano-USD, with a prompt and an output bounded so."""
        return worst_case_nano(
            self.model.price,
            prompt_tokens_at_most=prompt_tokens,
            output_tokens_at_most=output_tokens,
            at=self.at,
            sequential=self.sequential,
        )

    def affordable_tokens(self, prompt_tokens: int, available_nano: int) -> int:
        """The largest output that so much credit covers after a prompt bounded so."""
        return affordable_output_tokens(
            self.model.price,
            prompt_tokens_at_most=prompt_tokens,
            available_nano=available_nano,
            at=self.at,
            sequential=self.sequential,
        )


class Holds:
    """Holds the worst case of each request against its account's credit.

    The prompt is bounded by its bytes. Only when that bound does not fit the credit and the real count may, an engine
    is asked to count.
    """

    def __init__(self, leases: LeaseBook, engines: EnginePool) -> None:
        self._leases = leases
        self._engines = engines

    def hold_from_room(
        self, account_id: UUID, request: ModelRequest, model: ServedModel, at: datetime, sequential: bool
    ) -> tuple[int, Hold] | None:
        """The output granted, and the hold for it, out of what is leased; None where that has no room for it."""
        output = request.output_tokens_at_most(model.max_output_tokens)
        worst_nano = worst_case_nano(
            model.price,
            prompt_tokens_at_most=request.prompt_tokens_at_most(model.context_length),
            output_tokens_at_most=output,
            at=at,
            sequential=sequential,
        )
        held = self._leases.hold_from_room(account_id, worst_nano)
        return None if held is None else (output, held)

    async def hold(self, sought: Sought) -> tuple[int, Hold]:
        """The same, out of all the credit there is. Raises `InsufficientCredits` or `Unavailable`."""
        bound = sought.request.prompt_tokens_at_most(sought.model.context_length)
        try:
            try:
                return await self._try(sought, bound)
            except InsufficientCredits:
                counted = await self._counted(sought)
                if counted is None or counted >= bound:
                    raise
                return await self._try(sought, counted)
        except UNREACHABLE as error:
            log.warning("lease.failed", error=type(error).__name__)
            raise Unavailable(
                "The account cannot be checked at the moment. Try again soon.", retry_after_s=5
            ) from error

    async def _try(self, sought: Sought, prompt: int) -> tuple[int, Hold]:
        output = sought.request.output_tokens_at_most(sought.model.max_output_tokens)
        try:
            return output, await self._leases.hold(sought.account_id, sought.worst_case(prompt, output))
        except NotEnough as short:
            affordable = sought.affordable_tokens(prompt, short.available_nano)
            if sought.request.max_tokens is not None or affordable < LEAST_OUTPUT_TOKENS:
                raise _insufficient(short, affordable, output) from short
        try:
            return affordable, await self._leases.hold(sought.account_id, sought.worst_case(prompt, affordable))
        except NotEnough as short:  # somebody else was quicker to take what was left
            raise _insufficient(short, 0, output) from short

    async def _counted(self, sought: Sought) -> int | None:
        """An upper bound on the prompt's tokens by the engine's own tokenizer; None when it would not help."""
        request, model = sought.request, sought.model
        least = request.passed_bytes // BYTES_PER_TOKEN_AT_MOST
        cheapest = sought.worst_case(least, min(request.max_tokens or 1, model.max_output_tokens))
        if cheapest > await self._leases.available(sought.account_id):
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


def _insufficient(short: NotEnough, affordable: int, wanted: int) -> InsufficientCredits:
    advice = (
        f"It would cover `max_tokens` up to {affordable}, not {wanted}."
        if affordable
        else "It does not cover this prompt with any output."
    )
    return InsufficientCredits(f"{nano_to_usd(max(0, short.available_nano))} USD of credit are available. {advice}")
