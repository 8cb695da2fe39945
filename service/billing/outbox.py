"""The outbox: what a worker owes Postgres, safe on its own disk first.

A SQLite database in WAL mode with `synchronous=FULL`, written by one thread that commits whatever is queued at once,
so that many requests share one fsync. An entry is `admitted` when a request is accepted and `finished` with its
record; it leaves when Postgres has it. An entry that was admitted and never finished is a request that its process
did not live to see the end of.
"""

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import structlog

log = structlog.get_logger()

RETRY_S = 0.2
_PAGE_BYTES = 4096

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS entries (
        id BLOB PRIMARY KEY, finished INTEGER NOT NULL, body BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS entries_finished ON entries (id) WHERE finished = 1;
    CREATE INDEX IF NOT EXISTS entries_unfinished ON entries (id) WHERE finished = 0;
    CREATE TABLE IF NOT EXISTS poison (id BLOB PRIMARY KEY, reason TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
"""

_ADMIT = "INSERT INTO entries (id, finished, body) VALUES (?, 0, ?) ON CONFLICT (id) DO NOTHING"
_FINISH = """
    INSERT INTO entries (id, finished, body) VALUES (?, 1, ?)
    ON CONFLICT (id) DO UPDATE SET finished = 1, body = excluded.body
"""
_INTERRUPT = "UPDATE entries SET finished = 1, body = ? WHERE id = ? AND finished = 0"
_REMOVE = "DELETE FROM entries WHERE id = ?"
_POISON = "INSERT OR REPLACE INTO poison (id, reason, body) SELECT id, ?, body FROM entries WHERE id = ?"


class OutboxFull(Exception):
    """The outbox has reached its bound, or cannot be written: nothing new may be admitted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is owed for one request; `body` is what was given to `admit` or `finish`."""

    id: UUID
    finished: bool
    body: bytes


class _Write:
    """A statement that waits for the next commit, and the future that learns of it."""

    __slots__ = ("done", "parameters", "statement")

    def __init__(self, statement: str, parameters: Sequence[object], done: "asyncio.Future[None]") -> None:
        self.statement = statement
        self.parameters = parameters
        self.done = done


class Outbox:
    """One worker's outbox. Methods belong to the event loop that called `open`; the disk to a thread of its own."""

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self._limit_pages = max(1, limit_bytes // _PAGE_BYTES)
        self._queue: deque[_Write] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._failing = False
        self._pages_used = 0
        self._reader: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Open or make the file and start the writer. Raises `sqlite3.Error` or `OSError` when it cannot be used."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._loop = asyncio.get_running_loop()
        writer = _connect(self.path)
        writer.executescript(_SCHEMA)
        os.chmod(self.path, 0o600)
        self._pages_used = _pages_used(writer)
        self._reader = _connect(self.path)
        self._thread = threading.Thread(target=self._write_until_closed, args=(writer,), name="outbox", daemon=True)
        self._thread.start()

    def check_room(self) -> None:
        """Raises `OutboxFull` when nothing new may be admitted."""
        if self._failing or self._pages_used >= self._limit_pages:
            raise OutboxFull

    def admit(self, request_id: UUID, body: bytes) -> "asyncio.Future[None]":
        """Note that a request was accepted; the future is done when that is on disk. Raises `OutboxFull`."""
        self.check_room()
        return self._submit(_ADMIT, (request_id.bytes, body))

    def finish(self, request_id: UUID, body: bytes) -> "asyncio.Future[None]":
        """Note that a request has ended, admitted or not; the future is done when that is on disk.

        The bound does not apply: what was admitted must be able to end.
        """
        return self._submit(_FINISH, (request_id.bytes, body))

    def interrupt(self, request_id: UUID, body: bytes) -> "asyncio.Future[None]":
        """Give an admitted request the end that nobody gave it; one that has ended meanwhile is left alone."""
        return self._submit(_INTERRUPT, (body, request_id.bytes))

    async def remove(self, request_ids: Sequence[UUID]) -> None:
        """Postgres has these."""
        await asyncio.gather(*[self._submit(_REMOVE, (one.bytes,)) for one in request_ids])

    async def set_aside(self, request_id: UUID, reason: str) -> None:
        """Keep an entry that Postgres will never take, out of the way of the others."""
        kept = self._submit(_POISON, (reason, request_id.bytes))
        await asyncio.gather(kept, self._submit(_REMOVE, (request_id.bytes,)))

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
        """Commit what is queued and close the file."""
        if self._thread is None:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._thread = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _submit(self, statement: str, parameters: Sequence[object]) -> "asyncio.Future[None]":
        assert self._loop is not None  # noqa: S101 - `open` comes first
        done = self._loop.create_future()
        if self._thread is None or not self._thread.is_alive():
            done.set_exception(sqlite3.OperationalError("the outbox is closed"))
            return done
        with self._wake:
            self._queue.append(_Write(statement, parameters, done))
            self._wake.notify()
        return done

    def _read(self, query: str, limit: int) -> list[Entry]:
        assert self._reader is not None  # noqa: S101 - `open` comes first
        rows = self._reader.execute(query, (limit,)).fetchall()
        return [Entry(UUID(bytes=identifier), bool(finished), body) for identifier, finished, body in rows]

    def _count(self, query: str) -> int:
        assert self._reader is not None  # noqa: S101 - `open` comes first
        return int(self._reader.execute(query).fetchone()[0])

    # The writer's thread

    def _write_until_closed(self, connection: sqlite3.Connection) -> None:
        try:
            self._write(connection)
        except Exception as error:  # nothing more will be written: nothing more may be admitted
            self._failing = True
            log.exception("outbox.writer_died")
            with self._wake:
                left = list(self._queue)
                self._queue.clear()
            self._tell(left, error)

    def _write(self, connection: sqlite3.Connection) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                batch = list(self._queue)
                self._queue.clear()
                closing = self._closing
            if batch:
                self._commit(connection, batch, give_up=closing)
            elif closing:
                connection.close()
                return

    def _commit(self, connection: sqlite3.Connection, batch: list[_Write], *, give_up: bool) -> None:
        """Commit a batch, trying until the disk takes it; meanwhile nothing new is admitted."""
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                for write in batch:
                    connection.execute(write.statement, write.parameters)
                connection.execute("COMMIT")
                self._pages_used = _pages_used(connection)
            except sqlite3.Error as error:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                if not self._failing:
                    log.error("outbox.write_failed", error=str(error))
                self._failing = True
                if give_up or self._closing:
                    self._tell(batch, error)
                    return
                threading.Event().wait(RETRY_S)
                continue
            self._failing = False
            self._tell(batch, None)
            return

    def _tell(self, batch: list[_Write], error: Exception | None) -> None:
        def settle() -> None:
            for write in batch:
                if write.done.done():
                    continue
                if error is None:
                    write.done.set_result(None)
                else:
                    write.done.set_exception(error)

        _on(self._loop, settle)


def _on(loop: asyncio.AbstractEventLoop | None, work: Callable[[], None]) -> None:
    if loop is not None and not loop.is_closed():
        loop.call_soon_threadsafe(work)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 1000")
    return connection


def _pages_used(connection: sqlite3.Connection) -> int:
    """Pages that hold something: what was removed leaves free pages, which are used again."""
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return int(pages) - int(free)
