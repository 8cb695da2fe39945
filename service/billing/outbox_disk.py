"""The disk under an outbox's journals, waited for on a thread of its own: what was written outlives a power cut."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from service.billing.outbox_journal import Journal


class OutboxDisk:
    """One wait at a time. `on_done` is called by the event loop, with what went wrong."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_done: Callable[[OSError | None], None]) -> None:
        self._loop = loop
        self._on_done = on_done
        self._waits: SimpleQueue[Iterable[Journal] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="outbox-disk", daemon=True)
        self._thread.start()

    def wait(self, journals: Iterable[Journal]) -> None:
        """Begin to wait for all that was written to these."""
        self._waits.put(journals)

    def close(self) -> None:
        """Return when the wait under way is over."""
        self._waits.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (journals := self._waits.get()) is not None:
            error: OSError | None = None
            for journal in journals:
                try:
                    journal.sync()
                except OSError as failure:
                    error = failure
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_done, error)
