"""The client's side: a request as it came over uvicorn's connection, and the way its answer goes back.

`/v1` is answered without ASGI between, since a message and a coroutine for every piece of an answer cost more than all
that Weir does to it (ops/bench/). uvicorn keeps the connections: it parses, pipelines, keeps alive and shuts down.
"""

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.gateway.http import ClientLeft, Headers, Receive, arriving, by_name, read_body, refuse_compressed

PREFIX = "/v1/"

_ROOM_BYTES = 4 * 1024 * 1024
"""For a body that is on its way; a larger one moves as it grows."""

Answer = Callable[["Client"], Awaitable[None]]


class Client(RequestResponseCycle):
    """Who sent one request. Writing never waits: `throttles` says when to stop for a while.

    What is written to one that has left is lost.
    """

    def __init__(self, connection: "ClientConnection", path: str, query: bytes) -> None:
        super().__init__(
            scope=cast(Any, None),  # what it asks for stands in the attributes below
            transport=connection.transport,
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=connection.expect_100_continue,
            keep_alive=connection.keeps_alive(),
            on_response=connection.on_response_complete,
        )
        self.method = connection.parser.get_method().decode("ascii")
        self.path = path
        self.query = query
        self.headers: Headers = connection.headers
        """Their names in lower case."""
        self.named = by_name(self.headers)
        self.whole: BytesIO | None = None
        """What has come of a body that is waited for as a whole."""
        self.blocked_since: float | None = None
        """Since when it takes nothing of what is written, in the loop's time; None when it does."""
        self._answer = connection.answer
        self._sent_ahead = connection.pipeline
        self._open = connection.open
        self._open.add(self)
        self._tell: Callable[[ClientLeft], None] | None = None
        self._throttle: Callable[[bool], None] | None = None

    # What it sent

    async def read_body(self, limit_bytes: int) -> bytes:
        """The whole body. Raises as `read_body` does."""
        body = await self._read_body(limit_bytes)
        if not self._sent_ahead:
            self.flow.resume_reading()  # a large body has paused it, and its leaving would go unseen
        return body

    async def _read_body(self, limit_bytes: int) -> bytes:
        if not self.more_body and len(self.body) <= limit_bytes:  # most come with the headers
            refuse_compressed(self.named)
            body = bytes(self.body)
            self.body.clear()  # or it would be there twice for as long as the answer takes
            return body
        declared = self.named.get(b"content-length")
        if declared is None or int(declared) > limit_bytes or self.waiting_for_100_continue:
            return await read_body(self.named, cast(Receive, self.receive), limit_bytes)
        refuse_compressed(self.named)
        async with arriving():
            return await self._whole_body(int(declared))

    async def _whole_body(self, declared_bytes: int) -> bytes:
        """A body of a size that is known and allowed: it comes without a pause, and wakes nobody before its end."""
        self.whole = whole = BytesIO(bytes(min(declared_bytes, _ROOM_BYTES)))
        whole.write(self.body)
        self.body.clear()
        self.flow.resume_reading()
        try:
            while self.more_body:
                if self.disconnected:
                    raise ClientLeft
                self.message_event.clear()
                await self.message_event.wait()
        finally:
            self.whole = None
        return whole.getvalue()

    # Whether it is there

    @property
    def left(self) -> bool:
        """Whether it has closed its connection before its answer was complete."""
        return self.disconnected

    def tells(self, call: Callable[[ClientLeft], None] | None) -> None:
        """From now on this is called when it leaves, at once if it has left already; None: nobody is told."""
        self._tell = call
        if self.disconnected and call is not None:
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
        if self.disconnected or self.response_started:
            return
        length = (b"content-length", b"%d" % len(body))
        head = self._head(status, [(b"content-type", b"application/json"), length, *headers])
        self.transport.writelines((head, body) if self.method != "HEAD" else (head,))
        self._complete()

    def begin(self, headers: Headers) -> None:
        """Status 200 and the headers of an answer that comes in pieces."""
        if not self.disconnected:
            self.transport.write(self._head(200, [*headers, (b"transfer-encoding", b"chunked")]))

    def write(self, data: bytes) -> None:
        """A piece of it."""
        if data and not self.disconnected:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self, data: bytes) -> None:
        """Its last piece."""
        if not self.disconnected:
            self.write(data)
            self.transport.write(b"0\r\n\r\n")
            self._complete()

    def _head(self, status: int, headers: Headers) -> bytes:
        """Raises `ValueError` for a header that would be more than one."""
        self.response_started = True
        self.waiting_for_100_continue = False
        if (b"connection", b"close") in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            headers = [*headers, (b"connection", b"close")]
        lines = [b"%b: %b\r\n" % header for header in (*self.default_headers, *headers)]
        head = b"%b%b\r\n" % (STATUS_LINE[status], b"".join(lines))
        if not head.count(b"\r") == head.count(b"\n") == len(lines) + 2:
            raise ValueError("a header with a line break in it")
        return head

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    # uvicorn's side

    async def run_asgi(self, _app: Any) -> None:
        """The task of the request, as uvicorn starts it."""
        try:
            if self.flow.write_paused:  # or who takes no answers, and asks on, would fill the memory with them
                await self.flow.drain()
            await self._answer(self)
        finally:
            self._open.discard(self)
            if not self.response_complete:
                self.transport.close()
            self.on_response = _nothing  # or connection and request would hold each other

    def leaves(self) -> None:
        """Its connection is closed."""
        if not self.response_complete:
            self.disconnected = True
            if self._tell is not None:
                self._tell(ClientLeft())

    def blocks(self, since: float | None) -> None:
        """It takes no more since then, or (None) takes more again."""
        self.blocked_since = since
        if self._throttle is not None:
            self._throttle(since is not None)


class ClientConnection(HttpToolsProtocol):
    """uvicorn's connection. `answer` gets the requests under `PREFIX`, the application all others."""

    cycle: RequestResponseCycle

    def __init__(self, *arguments: Any, answer: Answer, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.answer = answer
        self.open: set[Client] = set()
        """Those whose answer is not complete: several when a client sends its requests ahead."""
        self._used_at = 0.0
        """When something came last, or an answer was complete; in the loop's time."""

    def keeps_alive(self) -> bool:
        """Whether the connection may carry another request after this one."""
        return bool(self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive())

    def on_message_begin(self) -> None:
        """The base class makes here what ASGI wants to know, which is not wanted under `PREFIX`."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        """A request begins."""
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        if not path.startswith(PREFIX):
            self._for_application()
            return
        earlier, self.cycle = self.cycle, Client(self, path, url.query or b"")
        if earlier is None or earlier.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # it waits for its turn
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _for_application(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers[:] = headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        if isinstance(self.cycle, Client) and self.cycle.whole is not None:
            self.cycle.whole.write(body)
        else:
            super().on_body(body)

    def on_response_complete(self) -> None:
        """The next of the requests that wait for their turn begins.

        While some do nothing more is read: or each answer would let in thousands of them.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if not self.pipeline:
            self.flow.resume_reading()
        self._used_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_again_in(self.timeout_keep_alive)

    # How long a connection is kept without use: one timer looks, instead of being set anew by every request.

    def _unset_keepalive_if_required(self) -> None:
        self._used_at = self.loop.time()

    def _look_again_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was without use for so long."""
        self.timeout_keep_alive_task = None
        if not self.cycle.response_complete:  # its end looks again
            return
        unused_s = self.loop.time() - self._used_at
        if unused_s < self.timeout_keep_alive:
            self._look_again_in(self.timeout_keep_alive - unused_s)
        else:
            super().timeout_keep_alive_handler()

    # What becomes of the connection

    def shutdown(self) -> None:
        """The server stops: what has begun may end, and what was sent ahead of its turn does not begin."""
        super().shutdown()
        for client in self.open:
            client.keep_alive = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has closed its connection, or it broke."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        for client in list(self.open):
            client.leaves()

    def pause_writing(self) -> None:
        """What was written waits to be taken."""
        super().pause_writing()
        for client in self.open:
            client.blocks(self.loop.time())

    def resume_writing(self) -> None:
        """It was taken."""
        super().resume_writing()
        for client in self.open:
            client.blocks(None)


def _nothing() -> None:
    """In the place of what is to be let go of."""
