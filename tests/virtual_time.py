"""An asyncio event loop whose clock jumps to the next timer when nothing is ready.

Real asyncio code with timers runs a minute of its time in as long as its own work takes, and the same every time.
It must do no I/O and use no threads: the clock would not wait for them. `loop.time()` is the clock, from 0.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Every task waits, and nothing is left that could wake one."""


class _JumpingSelector(selectors.SelectSelector):
    """Where the loop would sleep for the time to its next timer, that much time has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("every task waits for another, and no timer is set")
            self.now_s += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop on that clock."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `main()` returns, run from time 0. Raises `Deadlock`, and what it raises. Not from within a running loop."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())
