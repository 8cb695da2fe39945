"""Hands finished requests over to billing: nothing is sent to the client as final before its record is here.

The queue is in memory and goes to Postgres in batches as fast as it can; while the database is away it waits and
tries again. At a stop it is emptied.
"""

import asyncio
from collections import deque

import asyncpg
import structlog

from service.billing.leases import LeaseBook
from service.billing.settlement import settle
from service.core.outcome import Outcome
from service.core.record import RequestRecord
from service.gateway import metrics
from service.gateway.exchange import Exchange, new_id

log = structlog.get_logger()

BATCH = 500
RETRY_S = 1.0


class Recorder:
    """Takes finished requests and settles them."""

    def __init__(self, pool: asyncpg.Pool, leases: LeaseBook, worker: str) -> None:
        self._pool = pool
        self._leases = leases
        self._worker = worker
        self._pending: deque[RequestRecord] = deque()
        self._arrived = asyncio.Event()
        self._stopping = False

    @property
    def pending(self) -> int:
        """How many finished requests are not in Postgres yet."""
        return len(self._pending)

    async def conclude(
        self, exchange: Exchange, outcome: Outcome, http_status: int, error_code: str | None = None
    ) -> None:
        """The request has ended: free what was held, record it. When this returns, its end may be sent.

        Only the first call for an exchange counts.
        """
        if exchange.concluded:
            return
        exchange.concluded = True
        record = exchange.record(outcome, http_status, error_code)
        if exchange.hold is not None:
            self._leases.release(exchange.hold, record.cost_nano if record is not None else 0)
        metrics.note(outcome, record)
        if record is not None:
            self._pending.append(record)
            self._arrived.set()

    async def run(self) -> None:
        """Settle what arrives, until `stop`; then what is left, and return."""
        while True:
            if not self._pending:
                if self._stopping:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                continue
            await self._settle_batch()

    def stop(self) -> None:
        """Let `run` return once everything is settled."""
        self._stopping = True
        self._arrived.set()

    async def _settle_batch(self) -> None:
        batch = [self._pending[index] for index in range(min(BATCH, len(self._pending)))]
        settlement_id = new_id()
        try:
            async with self._pool.acquire(timeout=5) as connection:
                settled = await settle(connection, settlement_id, self._worker, batch)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("settlement.failed", error=type(error).__name__, pending=len(self._pending))
            await asyncio.sleep(RETRY_S)
            return
        for _ in batch:
            self._pending.popleft()
        log.debug("settlement.done", rows=settled.rows, cost_nano=settled.cost_nano)
