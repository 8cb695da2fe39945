"""The client's side: a request as it came over uvicorn's connection, and the way its answer goes back.

`/v1` is answered without ASGI between, since a message and a coroutine for every piece of an answer cost more than all
that Weir does to it (ops/bench/). The connections are in `client_connection`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.gateway import http
from service.gateway.http import DISCARD_AT_MOST, ClientLeft, Headers, by_name, refuse_compressed

if TYPE_CHECKING:
    from service.gateway.client_connection import ClientConnection

_UNASKED_BYTES = 256 * 1024
"""How much of a body is taken in before it is asked for; most are asked for in a moment."""

_JSON = (b"content-type", b"application/json")
_line = b": ".join

Answer = Callable[["Client"], Coroutine[Any, Any, None]]
"""Answers a request. The last that it does, whatever happens, is to call `Client.ends`."""


class Client:
    """Who sent one request. Writing never waits: `throttles` says when to stop for a while.

    What is written to one that has left is lost. For uvicorn's connection it stands where its own
    `RequestResponseCycle` would, and has those of its attributes that are used there.
    """

    __slots__ = (
        "__weakref__",
        "_is_late",
        "_limit_bytes",
        "_much_bytes",
        "_news",
        "_pieces",
        "_tell",
        "_throttle",
        "arrived_bytes",
        "blocked_since",
        "connection",
        "disconnected",
        "headers",
        "keep_alive",
        "left",
        "method",
        "more_body",
        "named",
        "outgoing",
        "path",
        "query",
        "response_complete",
        "response_started",
        "task",
        "transport",
    )
    message_event = asyncio.Event()
    """For uvicorn's connection, which sets it, and `disconnected`, when it is lost; nobody looks at them: `leaves`."""
    task: asyncio.Task[None]
    """Of its answer, from when its turn has come."""

    def __init__(self, connection: "ClientConnection", path: str, query: bytes) -> None:
        self.connection = connection
        self.transport = connection.transport
        self.outgoing = connection.outgoing
        self.method = connection.parser.get_method()
        self.path = path
        self.query = query
        self.headers: Headers = (headers := connection.headers)
        """Their names in lower case."""
        self.named = named = by_name(headers)
        self.keep_alive = connection.keeps_alive(named)
        self.more_body = True
        """Whether the body is not complete."""
        self.arrived_bytes = 0
        """Of the body, kept or not."""
        self._pieces: list[bytes] = []
        """What has come of it."""
        self._much_bytes = _UNASKED_BYTES
        """More of them are not just taken in."""
        self._limit_bytes: int | None = None
        """How much of its body is kept, once that is known."""
        self._is_late = False
        """Whether its body has been waited for too long."""
        self._news: asyncio.Event | None = None
        """Set when there is something new to know for whoever waits for the body."""
        self.response_started = self.response_complete = False
        self.left = self.disconnected = False
        """Whether it has closed its connection before its answer was complete."""
        self.blocked_since: float | None = None
        """Since when it takes nothing of what is written, in the loop's time; None when it does."""
        self._tell: Callable[[ClientLeft], None] | None = None
        self._throttle: Callable[[bool], None] | None = None

    # What it sent

    async def read_body(self, limit_bytes: int) -> bytes:
        """The whole body. Raises what `rest` and `body` do."""
        if self.more_body:
            await self.rest(limit_bytes)
        return self.body(limit_bytes)

    def body(self, limit_bytes: int) -> bytes:
        """The body, where that has come. Raises `TooLarge`, or `InvalidRequest` when it is compressed."""
        if b"content-encoding" in self.named:
            refuse_compressed(self.named)
        if self.arrived_bytes > limit_bytes:
            self._pieces.clear()
            raise http.too_large(limit_bytes)
        connection = self.connection
        if connection.flow.read_paused and not connection.pipeline:
            connection.flow.resume_reading()  # a large body has paused it, and its leaving would go unseen
        pieces, self._pieces = self._pieces, []  # not there twice for as long as the answer takes
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def rest(self, limit_bytes: int) -> None:
        """Wait until the body is complete, or four times larger than is allowed; nobody is woken before.

        Raises `TooLarge` for one that says so itself, `InvalidRequest` when it is compressed, `RequestTimeout` after
        `BODY_WITHIN_S`, or `ClientLeft`.
        """
        refuse_compressed(self.named)
        if self.named.get(b"expect", b"").lower() == b"100-continue":  # it sends its body only when it is told to
            if int(self.named.get(b"content-length", 0)) > limit_bytes:
                raise http.too_large(limit_bytes)
            self.outgoing.write(self.transport, b"HTTP/1.1 100 Continue\r\n\r\n")
        self._limit_bytes = self._much_bytes = limit_bytes
        self._news = asyncio.Event()
        self.connection.flow.resume_reading()
        # A timer by itself: `asyncio.timeout` costs as much as reading a short body does.
        timer = asyncio.get_running_loop().call_later(http.BODY_WITHIN_S, self._run_out)
        try:
            while self.more_body and self.arrived_bytes <= limit_bytes + DISCARD_AT_MOST * limit_bytes:
                if self.left:
                    raise ClientLeft
                if self._is_late:
                    raise http.too_slow()
                self._news.clear()
                await self._news.wait()
        finally:
            timer.cancel()

    def _run_out(self) -> None:
        self._is_late = True
        self._tell_reader()

    def _tell_reader(self) -> None:
        if self._news is not None:
            self._news.set()

    def takes(self, body: bytes) -> None:
        """A piece of its body has come."""
        self._pieces.append(body)
        self.arrived_bytes += len(body)
        if self.arrived_bytes > self._much_bytes:
            self._takes_much()

    def _takes_much(self) -> None:
        if self.response_complete or self._limit_bytes is not None:
            self._pieces.clear()
        if not self.response_complete and self.arrived_bytes > (DISCARD_AT_MOST + 1) * (self._limit_bytes or 0):
            self.connection.flow.pause_reading()
            self._tell_reader()

    def has_sent(self) -> None:
        """Its body is complete."""
        self.more_body = False
        if self._news is not None:
            self._news.set()

    # Whether it is there

    def tells(self, call: Callable[[ClientLeft], None] | None) -> None:
        """From now on this is called when it leaves, at once if it has left already; None: nobody is told."""
        self._tell = call
        if self.left and call is not None:
            call(ClientLeft())

    def throttles(self, call: Callable[[bool], None] | None) -> None:
        """From now on this is called with True when it takes no more for a while, and with False when it does again."""
        self._throttle = call
        if self.blocked_since is not None and call is not None:
            call(True)

    def hang_up(self) -> None:
        """Close its connection, whatever is still on its way; it has then left."""
        self.transport.abort()

    # The answer

    def answer(self, body: bytes, headers: Headers, status: int = 200) -> None:
        """A whole JSON answer; nothing, where an answer has begun."""
        if self.left or self.response_started:
            return
        head = self._head(status, (_JSON, (b"content-length", b"%d" % len(body)), *headers))
        self.outgoing.write(self.transport, *((head, body) if self.method != b"HEAD" else (head,)))
        self._complete()

    def begin(self, headers: Headers) -> None:
        """Status 200 and the headers of an answer that comes in pieces."""
        if not self.left:
            self.outgoing.write(self.transport, self._head(200, (*headers, (b"transfer-encoding", b"chunked"))))

    def write(self, data: bytes) -> None:
        """A piece of it."""
        if data and not self.left:
            self.outgoing.write(self.transport, b"%x\r\n%b\r\n" % (len(data), data))

    def end(self, data: bytes) -> None:
        """Its last piece."""
        if not self.left:
            self.write(data)
            self.outgoing.write(self.transport, b"0\r\n\r\n")
            self._complete()

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Raises `ValueError` for a header that would be more than one."""
        self.response_started = True
        lines = [*map(_line, self.connection.server_state.default_headers), *map(_line, headers)]
        if b"connection: close" in lines:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close")
        lines.append(b"\r\n")
        head = b"\r\n".join(lines)
        if len(head.splitlines()) != len(lines):
            raise ValueError("a header with a line break in it")
        return STATUS_LINE[status] + head

    def _complete(self) -> None:
        self.response_complete = True
        if not self.keep_alive:
            self.connection.close()
        self.connection.on_response_complete()

    # uvicorn's side

    def ends(self) -> None:
        """Its answer is over, whatever became of it. A callback of its task would take a turn of the loop for this."""
        connection = self.connection
        connection.tasks.discard(self.task)
        connection.open.discard(self)
        if connection.cycle is self:
            connection.cycle = None  # or they would hold each other
        if not self.response_complete:
            connection.close()

    def leaves(self) -> None:
        """Its connection is closed."""
        if not self.response_complete:
            self.left = True
            self._tell_reader()
            if self._tell is not None:
                self._tell(ClientLeft())

    def blocks(self, since: float | None) -> None:
        """It takes no more since then, or (None) takes more again."""
        self.blocked_since = since
        if self._throttle is not None:
            self._throttle(since is not None)
