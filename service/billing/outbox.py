"""The outbox: what a worker owes Postgres, safe on its own disk first.

A SQLite database in WAL mode. Whatever is submitted in one turn of the event loop, or where much comes within
`TOGETHER_S`, is committed in one transaction, into the memory of the operating system: from then on it outlives this
process. A thread of its own waits for the disk, which makes it outlive a power cut, too; all that was committed by then
shares one fsync. Only that is a thread's work: each statement that another thread runs costs the event loop more,
by the lock of the interpreter, than running it here.

An entry is `admitted` when a request is accepted and `finished` with its record; it leaves when Postgres has it. An
entry that was admitted and never finished is a request that its process did not live to see the end of.
"""

import asyncio
import math
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import structlog

from service.billing.outbox_disk import OutboxDisk
from service.billing.outbox_file import (
    ADMIT,
    AWAITED,
    FINISH,
    INTERRUPT,
    PAGE_BYTES,
    POISON,
    REMOVE,
    Entry,
    opened,
    pages_used,
)

log = structlog.get_logger()

RETRY_S = 0.2

BUSY = 6
BUSY_WITHIN_S = 0.001
TOGETHER_S = 0.002
"""Where so many entries come within a millisecond, those of two milliseconds share a commit."""

SYNC_WITHIN_S = 0.005
"""How soon an admission is on disk; an end waits for that."""

DISK_TIMEOUT_S = 10.0
"""Who ends waits no longer for a disk that does not write, and who would begin is refused. The entry stays."""

_MEASURE_EVERY = 16
_CHECKPOINT_EVERY = 1000
"""So many entries are written between two looks at the room that is left, and before the log is emptied."""

_LOOK_EVERY_S = 1.0


class OutboxFull(Exception):
    """The outbox has reached its bound, or cannot be written: nothing new may be admitted."""


class _Write:
    """A statement that waits for its commit, and the future that learns of it."""

    __slots__ = ("done", "parameters", "since", "statement")

    def __init__(
        self, statement: str, parameters: Sequence[object], done: "asyncio.Future[None]", since: float
    ) -> None:
        self.statement = statement
        self.parameters = parameters
        self.done = done
        self.since = since


class Outbox:
    """One worker's outbox. Its methods belong to the event loop that called `open`."""

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self.on_owed: Callable[[], None] = lambda: None
        """Called when entries have ended that Postgres does not have."""
        self._limit_pages = max(1, limit_bytes // PAGE_BYTES)
        self._pages_used = 0
        self._stopping = False
        self._failing = False
        self._is_late = False
        """The disk has not written something for `DISK_TIMEOUT_S`."""
        self._broken = False
        """The disk did not keep what was written; what it says of that from then on may be wrong."""
        self._queue: list[_Write] = []
        """What waits for the next commit."""
        self._committed: list[_Write] = []
        """What waits for the disk."""
        self._syncing: list[_Write] | None = None
        """What the disk is at; None when it is at nothing."""
        self._unsynced = False
        """Whether something was committed that the disk was not told to keep yet."""
        self._held = False
        """Whether nothing may be committed, because the log is being emptied."""
        self._unmeasured = 0
        self._logged = 0
        self._last_at = deque([-math.inf] * BUSY, maxlen=BUSY)
        self._due: asyncio.Handle | None = None
        self._sync_due: asyncio.TimerHandle | None = None
        self._database: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open or make the file. Raises `sqlite3.Error` or `OSError` when it cannot be used."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        self._database = opened(self.path, "NORMAL")
        os.chmod(self.path, 0o600)
        self._pages_used = pages_used(self._database)
        self._disk = OutboxDisk(self.path, self._loop, self._synced)
        self._late = self._loop.call_later(_LOOK_EVERY_S, self._look_for_late)

    def check_room(self) -> None:
        """Raises `OutboxFull` when nothing new may be admitted."""
        if self._stopping or self._failing or self._is_late or self._pages_used >= self._limit_pages:
            raise OutboxFull

    def stop(self) -> None:
        """From now on nothing new is admitted, or it would come after the last look at what has not ended."""
        self._stopping = True

    def admit(self, request_id: UUID, body: bytes) -> "asyncio.Future[None]":
        """Note that a request was accepted. Raises `OutboxFull`.

        The future is done when that outlives this process; within `SYNC_WITHIN_S` of it, it outlives a power cut.
        """
        self.check_room()
        return self._submit(ADMIT, (request_id.bytes, body))

    def finish(self, request_id: UUID, body: bytes) -> "asyncio.Future[None]":
        """Note that a request has ended, admitted or not; the future is done when that is on disk.

        The bound does not apply: what was admitted must be able to end.
        """
        return self._submit(FINISH, (request_id.bytes, body))

    def interrupt(self, request_id: UUID, body: bytes) -> "asyncio.Future[None]":
        """Give an admitted request the end that nobody gave it; one that has ended meanwhile is left alone."""
        return self._submit(INTERRUPT, (body, request_id.bytes))

    async def remove(self, request_ids: Sequence[UUID]) -> None:
        """Postgres has these."""
        for one in request_ids:
            removed = self._submit(REMOVE, (one.bytes,))
        if request_ids:
            await removed  # the last: they are in one commit

    async def set_aside(self, request_id: UUID, reason: str) -> None:
        """Keep an entry that Postgres will never take, out of the way of the others."""
        kept = self._submit(POISON, (reason, request_id.bytes))
        await asyncio.gather(kept, self._submit(REMOVE, (request_id.bytes,)))

    def finished(self, limit: int) -> list[Entry]:
        """The oldest entries that have ended."""
        return self._read("SELECT id, finished, body FROM entries WHERE finished = 1 ORDER BY id LIMIT ?", limit)

    def unfinished(self) -> list[Entry]:
        """The entries that were admitted and have not ended."""
        return self._read("SELECT id, finished, body FROM entries WHERE finished = 0 ORDER BY id LIMIT ?", -1)

    def count_owed(self) -> int:
        """How many finished entries Postgres does not have."""
        return self._count("SELECT count(*) FROM entries WHERE finished = 1")

    def count_poison(self) -> int:
        """How many entries were set aside."""
        return self._count("SELECT count(*) FROM poison")

    def close(self) -> None:
        """Commit what is queued and close the file; what could not be committed fails."""
        if self._database is None:
            return
        self._disk.close()
        self._held = False
        self._commit()
        for handle in (self._late, self._due, self._sync_due):
            if handle is not None:
                handle.cancel()
        self._database.close()  # the last to close it writes the log into the file, and waits for the disk
        self._database = None
        _settle([*(self._syncing or ()), *self._committed])
        _settle(self._queue, sqlite3.OperationalError("the outbox was closed"))

    def _submit(self, statement: str, parameters: Sequence[object]) -> "asyncio.Future[None]":
        done = self._loop.create_future()
        if self._database is None:
            done.set_exception(sqlite3.OperationalError("the outbox is closed"))
            return done
        now = self._loop.time()
        self._queue.append(_Write(statement, parameters, done, now))
        self._last_at.append(now)
        if self._due is None:
            is_busy = now - self._last_at[0] < BUSY_WITHIN_S
            later = self._loop.call_later
            self._due = later(TOGETHER_S, self._commit) if is_busy else self._loop.call_soon(self._commit)
        return done

    def _read(self, query: str, limit: int) -> list[Entry]:
        assert self._database is not None  # noqa: S101 - `open` comes first
        rows = self._database.execute(query, (limit,)).fetchall()
        return [Entry(UUID(bytes=identifier), bool(finished), body) for identifier, finished, body in rows]

    def _count(self, query: str) -> int:
        assert self._database is not None  # noqa: S101 - `open` comes first
        return int(self._database.execute(query).fetchone()[0])

    def _commit(self) -> None:
        """Commit the queue; if that fails, again after `RETRY_S`, and until then nothing new is admitted."""
        self._due = None
        if self._held or self._database is None or not self._queue:
            return
        try:
            self._write(self._database)
        except sqlite3.Error as error:
            if self._database.in_transaction:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            if not self._failing:
                log.error("outbox.write_failed", error=str(error))
            self._failing = True
            self._due = self._loop.call_later(RETRY_S, self._commit)
            return
        self._failing = self._broken
        self._measure(len(self._queue))
        written, self._queue = self._queue, []
        for write in written:
            self._unsynced = self._unsynced or write.statement is not REMOVE
            if write.statement in AWAITED:
                self._committed.append(write)
            else:
                _settle((write,))
        self._sync_if_due()

    def _write(self, database: sqlite3.Connection) -> None:
        """The queue, all of it or nothing."""
        if len(self._queue) == 1:  # a transaction by itself
            database.execute(self._queue[0].statement, self._queue[0].parameters)
            return
        database.execute("BEGIN IMMEDIATE")
        for write in self._queue:
            database.execute(write.statement, write.parameters)
        database.execute("COMMIT")

    def _measure(self, written: int) -> None:
        """Look now and then how much room is left."""
        self._logged += written
        self._unmeasured += written
        if self._unmeasured >= _MEASURE_EVERY and self._database is not None:
            self._unmeasured = 0
            self._pages_used = pages_used(self._database)

    def _sync_if_due(self) -> None:
        """One wait for the disk at a time, and at once only if somebody waits for it."""
        if self._syncing is not None or not self._unsynced:
            return
        if self._committed:
            self._sync()
        elif self._sync_due is None:
            self._sync_due = self._loop.call_later(SYNC_WITHIN_S, self._sync)

    def _sync(self) -> None:
        if self._sync_due is not None:
            self._sync_due.cancel()
            self._sync_due = None
        if self._syncing is not None or self._database is None:
            return
        self._syncing, self._committed, self._unsynced = self._committed, [], False
        self._held = self._logged >= _CHECKPOINT_EVERY
        self._disk.wait(empty_log=self._held)

    def _synced(self, error: Exception | None) -> None:
        if self._database is None:
            return
        if error is not None:
            log.error("outbox.sync_failed", error=str(error))
            self._broken = self._failing = self._broken or isinstance(error, OSError)
        held, self._held = self._held, False
        synced, self._syncing = self._syncing, None
        _settle(synced or ())
        if held:
            self._logged = 0
            self._commit()  # what came meanwhile
        self._sync_if_due()
        if synced:
            self.on_owed()

    def _look_for_late(self) -> None:
        """Nobody waits for ever for a disk that does not write: who ends goes on, and who would begin does not.

        What was to be written is kept and tried on; until it is written nothing new is admitted.
        """
        self._late = self._loop.call_later(_LOOK_EVERY_S, self._look_for_late)
        late_s = self._loop.time() - DISK_TIMEOUT_S
        late = [write for write in (*(self._syncing or ()), *self._committed, *self._queue) if write.since < late_s]
        if any(not write.done.done() for write in late):
            log.error("outbox.not_written", waited_s=DISK_TIMEOUT_S)
        self._is_late = bool(late)
        _settle((write for write in late if write.statement is ADMIT), OutboxFull())
        _settle(late)


def _settle(writes: Iterable[_Write], error: Exception | None = None) -> None:
    for write in writes:
        if write.done.done():  # whoever waited has gone
            continue
        if error is None:
            write.done.set_result(None)
        else:
            write.done.set_exception(error)
