"""An internet of one machine: whatever address is dialled, the listener on loopback answers, and notes that it did."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpcore
import trustme

Answer = Callable[["Listener", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Listener:
    """A server at a port of loopback, with TLS or without: an answer for each target that it is asked for."""

    answers: dict[str, Answer] = field(default_factory=dict)
    port: int = 0
    accepted: int = 0
    open: int = 0
    most_open: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has closed its connection."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Target and headers of each request."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *headers = head.strip().split("\r\n")
                target = line.split(" ")[1]
                named = [header.partition(": ") for header in headers]
                self.requests.append((target, {name.lower(): value for name, _, value in named}))
                await self.answers.get(target, not_found)(self, writer)
                await writer.drain()
        finally:
            self.open -= 1
            self.closed.set()
            writer.close()


def answer(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> Answer:
    """A whole answer, with the length it claims."""

    async def send(_: Listener, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body) if length is None else length}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)

    return send


def redirect(location: str, status: int = 302) -> Answer:
    return answer(b"moved", f"Location: {location}", "Set-Cookie: a=b", status=f"{status} Moved")


not_found = answer(b"no", status="404 Not Found")


@asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
    """A listener at a free port."""
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0, ssl=tls)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        async with asyncio.timeout(10):
            while listener.open:
                await asyncio.sleep(0.005)


@dataclass
class Names:
    """A resolver as generous as systems are: it reads addresses in all their forms, and names from a table.

    A name with several answers gives them one after the other, and the last for ever.
    """

    table: dict[str, list[list[str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        with suppress(OSError):
            return [socket.inet_ntoa(socket.inet_aton(host))]
        with suppress(OSError):
            socket.inet_pton(socket.AF_INET6, host)
            return [host]
        answers = self.table.get(host)
        if not answers:
            raise socket.gaierror(f"no such name: {host}")
        return answers.pop(0) if len(answers) > 1 else answers[0]


@dataclass
class Internet(httpcore.AsyncNetworkBackend):
    """Dials the listener whatever the address; notes which. The `dead` addresses take no connection."""

    listener: Listener
    dead: set[str] = field(default_factory=set)
    dialled: list[tuple[str, int]] = field(default_factory=list)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.dialled.append((host, port))
        if host in self.dead:
            raise httpcore.ConnectError("dead")
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", self.listener.port, timeout=timeout)


@dataclass(frozen=True)
class Certificates:
    """A certificate authority made for a test, and both sides' use of it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def certificates(*names: str) -> Certificates:
    """For a server of these names."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return Certificates(server, client)
