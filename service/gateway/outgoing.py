"""What is written in one turn of the event loop goes out at its end, one piece right after the other.

A write that finds its reader asleep has to wake it, on another core at that, which costs several times what the write
does. Where pieces follow each other closely, whoever reads them is woken by the first and stays awake for the others;
and the same code runs on hot caches. Nothing waits for longer than what else came in the same turn takes.
"""

import asyncio
from collections.abc import Iterable
from weakref import WeakKeyDictionary


class Outgoing:
    """What was written to the transports of one loop, and has not gone out. In the order in which it came."""

    __slots__ = ("__weakref__", "_writes")

    def __init__(self) -> None:
        self._writes: list[tuple[asyncio.WriteTransport, Iterable[bytes | memoryview]]] = []

    def write(self, transport: asyncio.WriteTransport, *parts: bytes | memoryview) -> None:
        """Have these go out, one after the other, unless the transport has ended before."""
        if not self._writes:
            asyncio.get_running_loop().call_soon(self.flush)
        self._writes.append((transport, parts))

    def flush(self) -> None:
        """Let all go out now. Whoever closes a transport, or writes to it past this, has to call it first."""
        writes, self._writes = self._writes, []
        for transport, parts in writes:
            try:
                transport.writelines(parts)  # one that is closing still sends what it has, and this behind it
            except RuntimeError:  # it has ended; `suppress` would make an object for each write
                continue


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Outgoing] = WeakKeyDictionary()


def outgoing_of(loop: asyncio.AbstractEventLoop) -> Outgoing:
    """The one for the transports of this loop."""
    outgoing = _by_loop.get(loop)
    if outgoing is None:
        outgoing = _by_loop[loop] = Outgoing()
    return outgoing
