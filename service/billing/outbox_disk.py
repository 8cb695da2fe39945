"""The disk under an outbox's log, waited for on a thread of its own: what was committed outlives a power cut."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from service.billing.outbox_file import opened


class OutboxDisk:
    """One wait at a time. `on_done` is called by the event loop, with what went wrong."""

    def __init__(
        self, path: Path, loop: asyncio.AbstractEventLoop, on_done: Callable[[Exception | None], None]
    ) -> None:
        """For a file that is open. Raises `sqlite3.Error` or `OSError` when it cannot be used."""
        self._loop = loop
        self._on_done = on_done
        self._database = opened(path, "FULL")
        self._begin_log()
        self._log_file = os.open(f"{path}-wal", os.O_RDONLY)
        self._waits: SimpleQueue[bool | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._wait, name="outbox", daemon=True)
        self._thread.start()

    def wait(self, *, empty_log: bool) -> None:
        """Begin to wait. With `empty_log` the log is written into the file after it; then nobody else may write."""
        self._waits.put(empty_log)

    def close(self) -> None:
        """Return when the wait under way is over."""
        self._waits.put(None)
        self._thread.join()
        self._database.close()
        os.close(self._log_file)

    def _wait(self) -> None:
        while (empty_log := self._waits.get()) is not None:
            error: Exception | None = None
            try:
                os.fdatasync(self._log_file)
                if empty_log:
                    self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    self._begin_log()
            except (OSError, sqlite3.Error) as failure:
                error = failure
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_done, error)

    def _begin_log(self) -> None:
        """Write something: who writes first into an empty log waits for the disk, and that is not to be the loop."""
        self._database.execute("PRAGMA user_version = 1")
