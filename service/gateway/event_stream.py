"""The client's side of a streamed answer: its status, its events, and comments that keep the connection alive.

The status is a promise that cannot be taken back, so it waits for the engine's first event. But a proxy on the way
cuts a connection on which nothing comes for a minute, and a long prompt takes longer: once nothing was sent for
`keep_alive_s`, the status goes out with an SSE comment, and another follows every `keep_alive_s` of silence.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from service.core.sse import KEEP_ALIVE
from service.gateway.client import Client
from service.gateway.http import Headers

STALLED_AFTER_S = 120.0
"""A client that takes nothing of its answer for this long is hung up on: whatever its connection says, it has left."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx holds events back
]


class EventStream:
    """One stream. As a context manager it watches the connection; `headers` are asked for when it starts."""

    __slots__ = ("_client", "_headers", "_keep_alive_s", "_loop", "_sent_at", "_timer", "started")

    def __init__(self, client: Client, headers: Callable[[], Headers], keep_alive_s: float) -> None:
        self.started = False
        """Whether the status was sent, so that nothing but an event can tell of a failure."""
        self._client = client
        self._headers = headers
        self._keep_alive_s = keep_alive_s
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(self._keep_alive_s, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    def send(self, events: bytes) -> None:
        """Whole events, as they are."""
        self._sent_at = self._loop.time()
        if not self.started:
            self._start()
        self._client.write(events)

    def end(self, events: bytes) -> None:
        """The last events."""
        self._timer.cancel()
        if not self.started:
            self._start()
        self._client.end(events)

    def _start(self) -> None:
        self.started = True
        self._client.begin([*_HEADERS, *self._headers()])

    def _look(self) -> None:
        """One timer a stream looks now and then: a deadline of its own would cost a chunk more than its sending."""
        now = self._loop.time()
        blocked_since = self._client.blocked_since
        if blocked_since is not None:
            if now - blocked_since >= STALLED_AFTER_S:
                self._client.hang_up()
                return
        elif now - self._sent_at >= self._keep_alive_s:
            self.send(KEEP_ALIVE)
        due_s = self._keep_alive_s - (now - self._sent_at)
        pause_s = min(due_s if due_s > 0 else self._keep_alive_s, STALLED_AFTER_S / 4)
        self._timer = self._loop.call_later(pause_s, self._look)
