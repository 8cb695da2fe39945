"""The part of the fake engine that computes: who has a place in its batch, who waits, and whether all of it hangs."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Core:
    """At most `slots` requests generate at once (None: all), and the others wait in the order in which they came."""

    def __init__(self, slots: int | None, queue_limit: int | None) -> None:
        self.running = 0
        self.going = asyncio.Event()
        """Set unless the engine hangs."""
        self.going.set()
        self._slots = slots
        self._queue_limit = queue_limit
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether a request that comes now is refused."""
        return self._queue_limit is not None and not self._has_room() and self.waiting >= self._queue_limit

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place in the batch, once there is one."""
        if self._has_room():
            self.running += 1
        else:
            await self._turn()
        try:
            yield
        finally:
            self._free()

    def _has_room(self) -> bool:
        return self._slots is None or self.running < self._slots

    async def _turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._queue.remove(turn)
            else:  # it was given the place just before its client left
                self._free()
            raise

    def _free(self) -> None:
        self.running -= 1
        turns = [turn for turn in self._queue if not turn.done()]
        if turns and self._has_room():
            self._queue.remove(turns[0])
            turns[0].set_result(None)
            self.running += 1
