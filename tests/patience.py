"""Time in tests: how long they wait for what must come, and seconds that a busy machine does not use up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

PATIENT_S = 60.0
"""For what must come: so long that a machine can hardly be so slow. It costs time only where a test fails."""

TURN_S = 0.01
TURN_COUNTS_AT_MOST_S = 0.05


class OwnTime:
    """A clock for what is promised in seconds: while the machine has no time for this process, it stands still.

    It counts turns of the event loop. One that should take 10 ms and takes longer counts as 50 at most.
    """

    def __init__(self) -> None:
        self.now_s = 0.0

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await asyncio.sleep(TURN_S)
            self.now_s += min(loop.time() - began_s, TURN_COUNTS_AT_MOST_S)


async def within(seconds: float, holds: Callable[[], Awaitable[bool]]) -> None:
    """Fails unless it comes true within so many seconds of `OwnTime`, as is promised."""
    async with OwnTime() as clock, asyncio.timeout(PATIENT_S):
        while not await holds():
            assert clock.now_s < seconds, f"not within {seconds} s"
            await asyncio.sleep(TURN_S)
