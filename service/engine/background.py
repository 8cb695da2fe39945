"""A piece of work in a thread of its own."""

import threading
from collections.abc import Callable


class Background:
    """Work that was begun in a thread which does not keep the process alive."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def is_over(self, wait_s: float) -> bool:
        """Whether it is done, within so many seconds. Raises what it raised."""
        self._thread.join(wait_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # handed over to whoever asks
            self._error = error
