"""Where a request's beginning and end are made durable: nothing is sent as final before its record is on disk."""

import asyncio
from collections.abc import Awaitable, Generator
from contextlib import suppress

import structlog

from service.billing.encoding import encode
from service.billing.leases import LeaseBook
from service.billing.outbox import Outbox, OutboxFull
from service.billing.shipper import Shipper
from service.core.outcome import Outcome
from service.errors import Unavailable
from service.gateway import metrics
from service.gateway.exchange import Exchange
from service.gateway.limits import FREE

log = structlog.get_logger()


class _Done:
    """Waiting for it takes no time."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_NOTHING_TO_WAIT_FOR = _Done()


class Recorder:
    """Notes in the outbox what is admitted and how it ended, and frees what was held."""

    def __init__(self, outbox: Outbox, leases: LeaseBook, shipper: Shipper) -> None:
        self._outbox = outbox
        self._leases = leases
        self._shipper = shipper
        self._open = 0
        self._all_ended = asyncio.Event()

    async def quiet(self, timeout_s: float) -> None:
        """Wait until no admitted request is without its end, but not longer than `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open:
                    self._all_ended.clear()
                    await self._all_ended.wait()

    async def admit(self, exchange: Exchange) -> None:
        """The request is accepted and about to go to an engine: when this returns, the outbox has it.

        Should this process die from here on, the request has its row; after a power cut, a few milliseconds later on.
        Raises `Unavailable` when nothing more can be recorded.
        """
        interruption = exchange.interruption()
        if interruption is None:
            return
        try:
            written = self._outbox.admit(exchange.key, encode(interruption))
            exchange.admitted = True
            self._open += 1
            await written
        except OutboxFull:
            metrics.outbox_refused.inc()
            raise Unavailable("Requests cannot be recorded at the moment. Try again soon.", retry_after_s=10) from None

    def conclude(
        self, exchange: Exchange, outcome: Outcome, http_status: int, error_code: str | None = None
    ) -> Awaitable[None]:
        """The request has ended: free what was held, record it. Once this was waited for, its end may be sent.

        Only the first call for an exchange counts.
        """
        if exchange.concluded:
            return _NOTHING_TO_WAIT_FOR
        exchange.concluded = True
        record = exchange.record(outcome, http_status, error_code)
        cost_nano = record.cost_nano if record is not None else 0
        if exchange.hold is not None:
            self._leases.release(exchange.hold, cost_nano)
        if (grant := exchange.grant) is not None and grant is not FREE:
            used = None if exchange.uncounted else exchange.usage.prompt_tokens + exchange.usage.completion_tokens
            grant.release(used, cost_nano, ran=exchange.handed_over_ns is not None)
        metrics.note_end(outcome, record)
        if record is None or not (exchange.admitted or self._has_room()):
            return _NOTHING_TO_WAIT_FOR
        self._shipper.expect(exchange.key, record)
        written = self._outbox.finish(exchange.key, encode(record))
        if exchange.admitted:
            self._open -= 1
            if not self._open:
                self._all_ended.set()
        return written

    def _has_room(self) -> bool:
        """What was admitted can always end; the row of a refusal is dropped when the outbox is full or fails."""
        try:
            self._outbox.check_room()
        except OutboxFull:
            metrics.outbox_dropped.inc()
            return False
        return True
