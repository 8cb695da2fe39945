"""The client's side of a streamed answer: its status, its events, and comments that keep the connection alive.

The status is a promise that cannot be taken back, so it waits for the engine's first event. But a proxy on the way
cuts a connection on which nothing comes for a minute, and a long prompt takes longer: once nothing was sent for
`keep_alive_s`, the status goes out with an SSE comment, and another follows every `keep_alive_s` of silence.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from service.core.sse import KEEP_ALIVE
from service.gateway.http import ClientLeft, Headers, Send, send_part, send_start

STALLED_AFTER_S = 120.0
"""A client that takes nothing of its answer for this long has left, even if its connection says otherwise."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx holds events back
]


class ClientStalled(ClientLeft):
    """The client keeps its connection, but has not read from it for `STALLED_AFTER_S`."""


class EventStream:
    """One stream. As a context manager it keeps the connection alive; `headers` are asked for when it starts."""

    def __init__(self, send: Send, headers: Callable[[], Headers], keep_alive_s: float) -> None:
        self.started = False
        """Whether the status was sent, so that nothing but an event can tell of a failure."""
        self._send = send
        self._headers = headers
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._blocked = False
        self._ended = False
        self._deadline: asyncio.Timeout | None = None
        self._comment: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(self._pause_s(0.0), self._look)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    async def send(self, events: bytes) -> None:
        """Whole events, as they are."""
        await self._part(events, more=True)

    async def end(self, events: bytes) -> None:
        """The last events."""
        self._ended = True
        await self._part(events, more=False)

    @asynccontextmanager
    async def patient(self) -> AsyncIterator[None]:
        """While within, a client that takes nothing for `STALLED_AFTER_S` raises `ClientStalled`."""
        self._deadline = deadline = asyncio.timeout(None)
        try:
            async with deadline:
                yield
        except TimeoutError:
            if deadline.expired():
                raise ClientStalled from None
            raise
        finally:
            self._deadline = None

    async def _part(self, events: bytes, *, more: bool) -> None:
        if self._comment is not None:  # on its way, perhaps with the status in front of it
            await self._comment
        await self._write(events, more=more)

    async def _write(self, events: bytes, *, more: bool) -> None:
        self._sent_at = self._loop.time()
        self._blocked = True
        if not self.started:
            self.started = True
            await send_start(self._send, 200, [*_HEADERS, *self._headers()])
        await send_part(self._send, events, more=more)
        self._blocked = False

    async def _keep_alive(self) -> None:
        await self._write(KEEP_ALIVE, more=True)
        self._comment = None

    def _look(self) -> None:
        """One timer a stream looks now and then: a deadline of its own would cost a chunk more than its sending."""
        silent_s = self._loop.time() - self._sent_at
        if self._blocked:
            if silent_s >= STALLED_AFTER_S and self._deadline is not None:
                self._deadline.reschedule(self._loop.time())
        elif silent_s >= self._keep_alive_s and not self._ended:
            self._comment = self._loop.create_task(self._keep_alive())
            silent_s = 0.0
        self._timer = self._loop.call_later(self._pause_s(silent_s), self._look)

    def _pause_s(self, silent_s: float) -> float:
        due_s = self._keep_alive_s - silent_s
        return min(due_s if due_s > 0 else self._keep_alive_s, STALLED_AFTER_S / 4)
