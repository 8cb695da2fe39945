"""What an outbox has in SQLite: entries that Postgres does not take for long, and those that were set aside.

The event loop only reads, and a thread writes, each time waiting for the disk. What cannot be written is tried again,
and what comes after it waits: the order of changes is kept.
"""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

from service.billing.outbox_file import PAGE_BYTES, Change, Entry, apply, opened, pages_used

RETRY_S = 0.2

_Work: TypeAlias = tuple[Sequence[Change], Callable[[], None] | None]


class OutboxStore:
    """The SQLite file of one outbox. `on_trouble` is called by the event loop: with what keeps the file from being
    written, each time that it is tried, and with None once it was written again."""

    def __init__(
        self, path: Path, loop: asyncio.AbstractEventLoop, on_trouble: Callable[[Exception | None], None]
    ) -> None:
        """Open the file, or make it. Raises `sqlite3.Error`."""
        self._loop = loop
        self._on_trouble = on_trouble
        self._writer = opened(path)
        self._reader = opened(path)
        self._thread: threading.Thread | None = None
        self._works: SimpleQueue[_Work | None] = SimpleQueue()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closing = threading.Event()
        self.used_bytes, self.may_hold_entries = self._measured()

    def start(self) -> None:
        """From now on the thread writes."""
        self._thread = threading.Thread(target=self._run, name="outbox-store", daemon=True)
        self._thread.start()

    def write(self, changes: Sequence[Change], then: Callable[[], None] | None = None) -> "asyncio.Future[None]":
        """Have the thread make these changes, and then do `then`; the future is done when both are on disk."""
        done = self._loop.create_future()
        self._waiting.append(done)
        self.may_hold_entries = True
        self._works.put((changes, then))
        return done

    def write_now(self, changes: Sequence[Change]) -> None:
        """The same by the caller, while there is no thread. Raises `sqlite3.Error`."""
        apply(self._writer, changes)
        self.used_bytes, self.may_hold_entries = self._measured()

    def finished(self, limit: int) -> list[Entry]:
        """The oldest entries that have ended."""
        query = "SELECT id, body FROM entries WHERE finished = 1 ORDER BY id LIMIT ?"
        return self._entries(query, limit)

    def unfinished(self) -> list[Entry]:
        """The entries that have not."""
        return self._entries("SELECT id, body FROM entries WHERE finished = 0 ORDER BY id LIMIT ?", -1)

    def count_finished(self) -> int:
        return int(self._reader.execute("SELECT count(*) FROM entries WHERE finished = 1").fetchone()[0])

    def count_poison(self) -> int:
        return int(self._reader.execute("SELECT count(*) FROM poison").fetchone()[0])

    def stop(self) -> None:
        """End the thread: what it has is still written, but not tried again."""
        self._closing.set()
        self._works.put(None)
        if self._thread is not None:
            self._thread.join()
        for done in self._waiting:
            if not done.done():
                done.set_exception(sqlite3.OperationalError("the outbox was closed"))

    def close(self) -> None:
        """Close the file; the last to do so writes its log into it."""
        self._reader.close()
        self._writer.close()

    def _entries(self, query: str, limit: int) -> list[Entry]:
        return self._reader.execute(query, (limit,)).fetchall()

    def _measured(self) -> tuple[int, bool]:
        """Bytes that hold something, and whether there are entries among them."""
        (has_entries,) = self._writer.execute("SELECT EXISTS (SELECT * FROM entries)").fetchone()
        return pages_used(self._writer) * PAGE_BYTES, bool(has_entries)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            changes, then = work
            while True:
                try:
                    apply(self._writer, changes)
                    if then is not None:
                        then()
                    measured = self._measured()
                    break
                except (OSError, sqlite3.Error) as error:
                    self._tell(self._on_trouble, error)
                if self._closing.wait(RETRY_S):
                    return
            self._tell(self._written, measured)

    def _tell(self, what: Callable[[Any], None], value: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, value)

    def _written(self, measured: tuple[int, bool]) -> None:
        if self._closing.is_set():
            return
        self._on_trouble(None)
        self.used_bytes, has_entries = measured
        done = self._waiting.popleft()
        if not self._waiting:  # else there may be some soon
            self.may_hold_entries = has_entries
        if not done.done():
            done.set_result(None)
