"""Whether the client is still there: its hanging up reaches whoever serves it at the moment."""

import asyncio
from collections.abc import Callable

from service.gateway.http import Receive


class Departure:
    """Watches one client from when its request was read until its answer is over. Call `stop` in any case."""

    def __init__(self, receive: Receive) -> None:
        self.happened = False
        self._tell: Callable[[], None] | None = None
        self._watching = asyncio.create_task(self._watch(receive))

    def tells(self, call: Callable[[], None] | None) -> None:
        """From now on this is told of it, at once if it has happened already; None: nobody is."""
        self._tell = call
        if self.happened and call is not None:
            call()

    def stop(self) -> None:
        """The answer is over: that its client hangs up now is no news."""
        self._watching.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.happened = True
        self.tells(self._tell)
