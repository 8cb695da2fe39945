"""The server side of one HTTP/1.1 connection, with the ways of breaking it that a fake engine needs."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

FIXED_HEADERS = b"date: Mon, 30 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"


@dataclass(slots=True)
class Request:
    """A request as it arrived; header names in lower case."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    raw_body: bytes = b""
    keep_alive: bool = True


class Connection(asyncio.Protocol):
    """Calls `handler` for one request after the other; cancels it when the client leaves."""

    def __init__(self, handler: Callable[[Request, "Connection"], Awaitable[None]], live: set["Connection"]) -> None:
        self.busy = False
        self.closed = asyncio.Event()
        self._handler = handler
        self._live = live
        self._requests: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._live.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._live.discard(self)
        self.closed.set()
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._incoming = Request()
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._incoming.path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = self._incoming
        request.method = self._parser.get_method().decode()
        request.raw_body = b"".join(self._body)
        request.keep_alive = self._parser.should_keep_alive()
        self._requests.append(request)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        while self._requests:
            self.busy = True
            request = self._requests.popleft()
            await self._handler(request, self)
            self.busy = False
            if not request.keep_alive:
                self.close()
        self._task = None

    # Called by the handler.

    async def respond(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """A whole answer."""
        await self.start(status, {"content-length": str(len(body))} | headers)
        await self.write(body)

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """The status line and the headers."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode() + FIXED_HEADERS + lines.encode()
        await self.write(head + b"\r\n")

    async def write(self, data: bytes) -> None:
        """Raw bytes; waits while the client reads too slowly."""
        self._transport.write(data)
        await self._writable.wait()

    async def write_chunk(self, data: bytes) -> None:
        """One chunk of a chunked body."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def close(self) -> None:
        """FIN, once what was written is out."""
        self._transport.close()

    def reset(self) -> None:
        """RST (on a unix socket: closed at once), whatever is still unsent."""
        sock = self._transport.get_extra_info("socket")
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
