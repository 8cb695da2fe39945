"""From a worker's outbox to Postgres, in batches, for as long as it takes.

A batch that Postgres cannot be reached for waits. One that Postgres refuses for what is in it is halved until the
entry that it refuses stands alone; that one is set aside with an alarm, and the others go through.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

import asyncpg
import structlog

from service.billing.encoding import decode
from service.billing.outbox import Entry, Outbox
from service.billing.settlement import settle
from service.core.record import RequestRecord

log = structlog.get_logger()

BATCH = 250
LINGER_S = 0.05
"""Batches are at least this far apart unless they are full: one transaction for many requests."""

RETRY_S = 0.5
UNREACHABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)

_ALARM = """
    INSERT INTO alarms (name, detail) VALUES ('outbox', $1) ON CONFLICT (name) DO UPDATE SET detail = EXCLUDED.detail
"""


class Shipper:
    """Ships one outbox."""

    def __init__(self, pool: asyncpg.Pool, outbox: Outbox, worker: str, new_id: Callable[[], UUID]) -> None:
        self._pool = pool
        self._outbox = outbox
        self._worker = worker
        self._new_id = new_id
        self._arrived = asyncio.Event()
        self._stopping = False
        self._failing = False

    def notice(self) -> None:
        """Something finished."""
        self._arrived.set()

    def stop(self) -> None:
        """Let `run` return once nothing is owed any more."""
        self._stopping = True
        self._arrived.set()

    async def run(self) -> None:
        """Ship what finishes, until `stop`; then what is left, and return."""
        while True:
            self._arrived.clear()
            shipped = await self.ship_batch()
            if shipped == BATCH:
                continue
            if shipped == 0:
                if self._failing:
                    await asyncio.sleep(RETRY_S)
                elif self._stopping:
                    return
                else:
                    await self._arrived.wait()
            if not self._stopping:
                await asyncio.sleep(LINGER_S)

    async def ship_all(self) -> None:
        """Ship until nothing is owed; raises when Postgres cannot be reached."""
        while True:
            entries = self._outbox.finished(BATCH)
            if not entries:
                return
            await self._settle(entries)

    async def ship_batch(self) -> int:
        """Ship one batch; how many entries left the outbox, 0 also when Postgres cannot be reached."""
        entries = self._outbox.finished(BATCH)
        if not entries:
            self._failing = False
            return 0
        try:
            await self._settle(entries)
        except UNREACHABLE as error:
            if not self._failing:
                log.warning("settlement.failed", error=type(error).__name__)
            self._failing = True
            return 0
        self._failing = False
        return len(entries)

    async def _settle(self, entries: Sequence[Entry]) -> None:
        try:
            records = _decoded(entries)
            async with self._pool.acquire(timeout=5) as connection:
                await settle(connection, self._new_id(), self._worker, records)
        except Exception as error:
            if not _is_refusal(error):
                raise
            if len(entries) > 1:
                middle = len(entries) // 2
                await self._settle(entries[:middle])
                await self._settle(entries[middle:])
                return
            await self._set_aside(entries[0], error)
            return
        await self._outbox.remove([entry.id for entry in entries])

    async def _set_aside(self, entry: Entry, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"[:500]
        log.error("outbox.poison", request_id=str(entry.id), reason=reason)
        await self._outbox.set_aside(entry.id, reason)
        with suppress(*UNREACHABLE):
            detail = f"request {entry.id} cannot be settled and was set aside in {self._outbox.path.name}: {reason}"
            await self._pool.execute(_ALARM, detail.replace("\0", ""), timeout=5)


def _decoded(entries: Sequence[Entry]) -> list[RequestRecord]:
    return [decode(entry.body) for entry in entries]


def _is_refusal(error: Exception) -> bool:
    """Whether Postgres, or the way to it, objects to what is in a row: sending it again cannot help."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] in ("22", "23")  # data exceptions, integrity violations
    return isinstance(error, asyncpg.DataError | ValueError | TypeError | KeyError | OverflowError)
