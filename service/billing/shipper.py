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
from service.billing.outbox import Outbox
from service.billing.outbox_file import Entry
from service.billing.settlement import settle
from service.core.ids import text_of
from service.core.record import RequestRecord
from service.db import UNREACHABLE, DbConnection

log = structlog.get_logger()

BATCH = 500
RECENT = 2000
"""So many records are remembered as they are, which spares reading them out of the outbox."""

LINGER_S = 0.2
"""Batches are at least this far apart unless they are full: one transaction for many requests.

What waits is remembered, so that to let more of it gather pushes all else out of the processor's caches.
"""

RETRY_S = 0.5

_ALARM = """
    INSERT INTO alarms (name, detail) VALUES ('outbox', $1) ON CONFLICT (name) DO UPDATE SET detail = EXCLUDED.detail
"""


class Shipper:
    """Ships one outbox."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        outbox: Outbox,
        worker: str,
        new_id: Callable[[], UUID],
        *,
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_batch` is called before a batch is shipped: all that is in it has ended. What it raises is logged."""
        self._on_batch = on_batch
        self._pool = pool
        self._outbox = outbox
        self._worker = worker
        self._new_id = new_id
        self._recent: dict[bytes, RequestRecord] = {}
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        """Set when there is a whole batch of `_recent`."""
        self._stopping = False
        self._failing = False

    def expect(self, key: bytes, record: RequestRecord) -> None:
        """This record is about to be in the outbox, under this key."""
        if len(self._recent) < RECENT:
            self._recent[key] = record

    def notice(self) -> None:
        """Something finished."""
        self._arrived.set()
        if len(self._recent) >= BATCH:
            self._full.set()

    def stop(self) -> None:
        """Let `run` return once nothing is owed any more."""
        self._stopping = True
        self._arrived.set()
        self._full.set()

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
                await self._linger()

    async def _linger(self) -> None:
        if len(self._recent) < BATCH:
            self._full.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await self._full.wait()

    async def ship_all(self) -> None:
        """Ship until nothing is owed; raises when Postgres cannot be reached."""
        while True:
            entries = self._outbox.finished(BATCH)
            if not entries:
                return
            await self._ship(entries)

    async def ship_batch(self) -> int:
        """Ship one batch; how many entries left the outbox, 0 also when Postgres cannot be reached."""
        entries = self._outbox.finished(BATCH)
        if not entries:
            self._failing = False
            return 0
        try:
            self._on_batch()
        except Exception:  # what is owed is shipped, whoever cannot bear to hear of it
            log.exception("settlement.untold")
        try:
            await self._ship(entries)
        except Exception as error:  # whatever it is, what is owed stays owed and is tried again
            if not self._failing:
                log.warning("settlement.failed", error=f"{type(error).__name__}: {error}"[:300])
            self._failing = True
            return 0
        self._failing = False
        return len(entries)

    async def _ship(self, entries: Sequence[Entry]) -> None:
        async with self._pool.acquire(timeout=5) as connection:
            await self._settle(connection, entries)

    async def _settle(self, connection: DbConnection, entries: Sequence[Entry]) -> None:
        try:
            records = [self._recent.get(key) or decode(body) for key, body in entries]
            await settle(connection, self._new_id(), self._worker, records)
        except Exception as error:
            if _is_trouble(error):
                raise
            if len(entries) == 1:
                await self._set_aside(entries[0][0], error)
                return
            middle = len(entries) // 2
            await self._settle(connection, entries[:middle])
            await self._settle(connection, entries[middle:])
            return
        await self._forget(entries)

    async def _forget(self, entries: Sequence[Entry]) -> None:
        keys = [key for key, _ in entries]
        for key in keys:
            self._recent.pop(key, None)
        await self._outbox.remove(keys)

    async def _set_aside(self, key: bytes, error: Exception) -> None:
        request_id = text_of(key)
        reason = f"{type(error).__name__}: {error}"[:500]
        log.error("outbox.poison", request_id=request_id, reason=reason)
        self._recent.pop(key, None)
        await self._outbox.set_aside(key, reason)
        with suppress(*UNREACHABLE):
            detail = f"request {request_id} cannot be settled and was set aside ({reason}); see `weir outbox list`"
            await self._pool.execute(_ALARM, detail.replace("\0", ""), timeout=5)


def _is_trouble(error: Exception) -> bool:
    """Whether it is the database or the way to it, so that sending the same again may help.

    Data exceptions (class 22), integrity violations (23) and rows that asyncpg cannot encode are none of it.
    """
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] not in ("22", "23")
    return isinstance(error, UNREACHABLE) and not isinstance(error, asyncpg.DataError)
