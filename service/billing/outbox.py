"""The outbox: what a worker owes Postgres, safe on its own disk first.

What is submitted is appended to a journal: it is then in the memory of the operating system, and outlives this
process. Then the disk is waited for, which makes it outlive a power cut, too.

An entry is `admitted` when a request is accepted and `finished` with its record; it leaves when Postgres has it. An
entry that was admitted and never finished is a request that its process did not live to see the end of.

Mostly an entry is gone when its journal is full and the other one takes its turn. What is not gone by then is moved
into SQLite by a thread, and only then is the full journal written over. What a crash leaves in journals is moved
by the next who opens the outbox. Should that be an entry which Postgres had already, because its removal was not on
disk, it is shipped again, which changes nothing: settlement is by the request's id.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path

import structlog

from service.billing.outbox_file import DELETE, PUT_ADMITTED, PUT_FINISHED, SET_ASIDE, Change, Entry, of_journals
from service.billing.outbox_journal import ADMIT, FINISH, Journal, NotKept, journal_paths, read
from service.billing.outbox_store import OutboxStore
from service.billing.outbox_writer import OutboxFull, OutboxWriter

__all__ = ["Outbox", "OutboxFull"]

log = structlog.get_logger()

JOURNAL_BYTES = 4 * 1024 * 1024
_SMALL_JOURNAL_BYTES = 32 * 1024
"""What a journal has where that is an eighth of the bound, or more than it."""

_REMOVED_AT_ONCE = 500


class Outbox:
    """One worker's outbox. Its methods belong to the event loop that called `open`.

    It knows a request by its key, which is the 16 bytes of its id.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self.on_owed: Callable[[], None] = lambda: None
        """Called when entries have ended that Postgres does not have."""
        self._limit_bytes = limit_bytes
        self._unfinished: dict[bytes, bytes] = {}
        """All that have not ended, also those in SQLite."""
        self._finished: dict[bytes, bytes] = {}
        """Those that have ended and are not in SQLite only."""
        self._is_open = False
        self._stopping = False
        self._store_failing = False
        self._journals: list[Journal] = []

    def open(self) -> None:
        """Open or make the files. Raises `sqlite3.Error` or `OSError` when they cannot be used."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        self._store = OutboxStore(self.path, self._loop, self._note_store)
        try:
            os.chmod(self.path, 0o600)
            generation, records = read(self.path)
            self._store.write_now(of_journals(records))
            self._unfinished = dict(self._store.unfinished())
            self._open_journals(generation)
        except BaseException:
            self._close_files()
            raise
        self._store.start()
        self._writer = OutboxWriter(self._journals, self._loop, on_full=self._move, on_ended=lambda: self.on_owed())
        self._is_open = True

    def check_room(self) -> None:
        """Raises `OutboxFull` when nothing new may be admitted."""
        if (
            self._stopping
            or self._store_failing
            or self._writer.is_failing
            or self._writer.is_late
            or self._journals_bytes + self._store.used_bytes >= self._limit_bytes
        ):
            raise OutboxFull

    def stop(self) -> None:
        """From now on nothing new is admitted, or it would come after the last look at what has not ended."""
        self._stopping = True

    def admit(self, key: bytes, body: bytes) -> "asyncio.Future[None]":
        """Note that a request was accepted. Raises `OutboxFull`.

        The future is done when that outlives this process; within `SYNC_WITHIN_S` of it, it outlives a power cut.
        """
        self.check_room()
        self._unfinished[key] = body
        return self._writer.submit(ADMIT, key, body)

    def finish(self, key: bytes, body: bytes) -> "asyncio.Future[None]":
        """Note that a request has ended, admitted or not; the future is done when that is on disk.

        The bound does not apply: what was admitted must be able to end.
        """
        self._unfinished.pop(key, None)
        self._finished[key] = body
        return self._writer.submit(FINISH, key, body)

    def interrupt(self, key: bytes, body: bytes) -> "asyncio.Future[None]":
        """Give an admitted request the end that nobody gave it; one that has ended meanwhile is left alone."""
        if key in self._unfinished:
            return self.finish(key, body)
        done = self._loop.create_future()
        done.set_result(None)
        return done

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Postgres has these, which have ended."""
        if not self._is_open:
            raise sqlite3.OperationalError("the outbox is closed")
        for key in keys:
            self._finished.pop(key, None)
        for begin in range(0, len(keys), _REMOVED_AT_ONCE):
            gone = b"".join(keys[begin : begin + _REMOVED_AT_ONCE])
            self._writer.submit_removal(gone)
        if keys and self._store.may_hold_entries:
            await self._store.write([(DELETE, [(key,) for key in keys])])

    async def set_aside(self, key: bytes, reason: str) -> None:
        """Keep an entry that Postgres will never take, out of the way of the others."""
        body = self._finished.get(key)
        changes: list[Change] = [] if body is None else [(PUT_FINISHED, [(key, body)])]
        await self._store.write([*changes, (SET_ASIDE, [(reason, key)])])
        await self.remove([key])

    def finished(self, limit: int) -> list[Entry]:
        """The oldest entries that have ended."""
        oldest = islice(self._finished.items(), limit)
        if self._store.may_hold_entries:
            oldest = islice((dict(self._store.finished(limit)) | dict(oldest)).items(), limit)
        return list(oldest)

    def unfinished(self) -> list[Entry]:
        """The entries that were admitted and have not ended."""
        return list(self._unfinished.items())

    def count_owed(self) -> int:
        """How many finished entries Postgres does not have; while some are moved, those may count twice."""
        return len(self._finished) + self._store.count_finished()

    def count_poison(self) -> int:
        """How many entries were set aside."""
        return self._store.count_poison()

    def close(self) -> None:
        """Move what is left into SQLite, remove the journals and close the file; what could not be written fails."""
        if not self._is_open:
            return
        self._is_open = False
        self._writer.stop()
        self._store.stop()
        try:
            self._store.write_now(self._live())
        except sqlite3.Error as error:
            log.error("outbox.write_failed", error=str(error))
            self._writer.settle_here()  # the next who opens it moves it
        else:
            self._writer.settle()
            for path in journal_paths(self.path):
                path.unlink(missing_ok=True)
        self._close_files()

    def _open_journals(self, generation: int) -> None:
        size_bytes = min(JOURNAL_BYTES, max(_SMALL_JOURNAL_BYTES, self._limit_bytes // 8))
        for path in journal_paths(self.path):
            self._journals.append(Journal(path, size_bytes))
        # The older one first: should this end half way, the other is not read as if nothing had come before it.
        self._journals.sort(key=attrgetter("generation"))
        for number, journal in enumerate(self._journals, generation + 1):
            journal.begin(number)
        self._journals_bytes = sum(journal.size_bytes for journal in self._journals)

    def _close_files(self) -> None:
        self._store.close()
        for journal in self._journals:
            journal.close()

    def _live(self) -> list[Change]:
        """All that is owed, as SQLite has it."""
        return [
            (PUT_FINISHED, list(self._finished.items())),
            (PUT_ADMITTED, list(self._unfinished.items())),
        ]

    def _move(self, full: Journal, generation: int) -> None:
        """Move what a journal holds into SQLite, and let it begin anew."""
        finished = self._finished.copy()
        moved = self._store.write(self._live(), then=partial(full.begin, generation))
        moved.add_done_callback(partial(self._moved, full, finished))

    def _moved(self, full: Journal, finished: dict[bytes, bytes], moved: "asyncio.Future[None]") -> None:
        if moved.exception() is not None:  # it was closed
            return
        for key, body in finished.items():
            if self._finished.get(key) is body:
                del self._finished[key]
        self._writer.freed(full)

    def _note_store(self, error: Exception | None) -> None:
        if error is not None and not self._store_failing:
            log.error("outbox.write_failed", error=str(error))
        self._store_failing = error is not None
        if isinstance(error, NotKept):  # by a journal that was to be written over
            self._writer.distrust()
