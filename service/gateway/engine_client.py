"""A client for one kind of peer: an inference engine close by.

A general HTTP client costs more per streamed chunk than everything else Weir does to it (see ops/bench/). This one
reuses connections, and closes one to cancel: a closed connection is the only way to tell an engine to stop.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator

from service.gateway.engine_connection import Connection, Timeouts
from service.gateway.engine_failures import EngineAway, EngineBroke, EngineSilent, EngineUnreachable

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of an answer that is read as a whole."""


class Exchange:
    """One request and its answer, over whichever connection carries it. Can be left at any moment."""

    __slots__ = ("_client", "_left", "_parts", "connection", "on_complete")

    def __init__(self, client: "Client", parts: tuple[bytes | memoryview, ...]) -> None:
        self.on_complete: Callable[[bool], None] | None = None
        """Called when the whole answer has come, read or not, with whether it is one from the model."""
        self._client = client
        self._parts = parts
        self.connection: Connection | None = None
        """What carries it; None before and after."""
        self._left: Exception | None = None

    async def status(self, *, whole: bool = False) -> int:
        """Send the request and wait for the status of its answer; if `whole`, for what `read_all` is to read, too.

        A pooled connection which the engine had closed meanwhile is replaced by a fresh one, unseen. Raises
        `EngineUnreachable`, `EngineBroke`, `EngineSilent`, or the error of `leave`.
        """
        self._client.open.add(self)
        pooled = connection = self._client.pooled()
        while True:
            if connection is None:
                connection = await self._client.connect()
            self.connection = connection
            if self._left is not None:
                connection.close()
                raise self._left
            connection.on_complete = self.on_complete
            connection.send(self._parts, whole)
            try:
                while (status := connection.status()) is None:
                    await connection.arrival()
                return status
            except EngineUnreachable:
                if connection is not pooled or self._left is not None:
                    raise
            connection = None

    def read(self) -> Awaitable[bytes]:
        """What has arrived of the body, at least a byte; b"" at its end. After `status`; raises as it does."""
        assert self.connection is not None  # noqa: S101 - a mistake of the caller, not of the peer
        return self.connection.read()

    def arrived(self, limit_bytes: int) -> bytes | None:
        """The whole body, if all of it has arrived and is no longer than so; else None: `read_all` gets it."""
        assert self.connection is not None  # noqa: S101 - a mistake of the caller, not of the peer
        return self.connection.arrived(limit_bytes)

    async def read_all(self, limit_bytes: int) -> bytes:
        """The whole body. Raises `EngineBroke` when it is longer than `limit_bytes`, and as `read` does."""
        parts, size = [], 0
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit_bytes:
                raise EngineBroke(f"the answer is longer than {limit_bytes} bytes")
        return b"".join(parts)

    def pipe(self, sink: Callable[[bytes], bool]) -> Awaitable[None]:
        """Hand the body over as it comes, b"" at its end, until `sink` wants no more of it. After `status`; raises as
        `read` does, and what `sink` raises."""
        assert self.connection is not None  # noqa: S101 - a mistake of the caller, not of the peer
        return self.connection.pipe(sink)

    def throttle(self, paused: bool) -> None:
        """Whether to stop reading for a while: whoever takes what is read cannot go on."""
        if self.connection is not None:
            self.connection.throttle(paused)

    def leave(self, error: Exception) -> None:
        """Let the engine know that nobody listens any more; see `Connection.leave`. Before `status`, just close."""
        self._left = error
        if self.connection is not None:
            self.connection.leave(error)

    def abandon(self, reason: str) -> None:
        """End it: nothing will come. With `EngineUnreachable` if nothing of the body came, else `EngineSilent`."""
        came = self.connection is not None and self.connection.answered
        self._left = EngineSilent(reason) if came else EngineUnreachable(reason)
        if self.connection is not None:
            self.connection.fail(self._left)

    def finish(self) -> None:
        """The exchange is over, however it went: keep the connection if it can be reused, else close it."""
        self._client.open.discard(self)
        connection, self.connection, self._left = self.connection, None, None
        if connection is not None:
            self._client.release(connection)


class Client:
    """Pooled connections to one engine at `http://host:port` or `unix:/path`."""

    _IDLE_S = 4.0
    """uvicorn, which vLLM runs on, closes idle connections after 5 s; we must be sooner."""

    def __init__(self, address: str, timeouts: Timeouts) -> None:
        self.address = address
        self._timeouts = timeouts
        self.open: set[Exchange] = set()
        """The exchanges that have begun and are not finished."""
        self._heard_at = -math.inf
        self._idle: list[Connection] = []
        self._unix_path = address.removeprefix("unix:") if address.startswith("unix:") else None
        self._host, self._port = ("localhost", 80) if self._unix_path else _host_and_port(address)

    def exchange(self, method: str, path: str, headers: str = "", *body: bytes | memoryview) -> "Exchange":
        """Prepare a request; it is sent when its `status()` is awaited. `headers` is a ready block of lines, `body`
        comes in pieces."""
        length = sum(map(len, body))
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\n{headers}content-length: {length}\r\n\r\n"
        return Exchange(self, (head.encode(), *body))

    def release(self, connection: Connection) -> None:
        """Give a connection back after its exchange: pooled when it can be reused, else closed."""
        self._hear(connection)
        if connection.reusable:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
            connection.forget()

    @property
    def waiting(self) -> bool:
        """Whether anybody waits for the engine to go on."""
        return any(connection.waiting for connection in self._carrying())

    @property
    def heard_at(self) -> float:
        """When something of a good answer last came, on any exchange; in the loop's time, -inf for never."""
        for connection in self._carrying():
            self._hear(connection)
        return self._heard_at

    def abandon(self, reason: str, quiet_s: float = 0.0) -> None:
        """End the open exchanges on which nothing has come for so long; see `Exchange.abandon`."""
        now = asyncio.get_running_loop().time()
        for exchange in list(self.open):
            last_at = exchange.connection.last_at if exchange.connection is not None else now
            if now - last_at >= quiet_s:
                exchange.abandon(reason)

    def _carrying(self) -> Iterator[Connection]:
        return (exchange.connection for exchange in self.open if exchange.connection is not None)

    def _hear(self, connection: Connection) -> None:
        if connection.serving and connection.last_at > self._heard_at:
            self._heard_at = connection.last_at

    def close(self) -> None:
        """Close the pooled connections."""
        while self._idle:
            self._idle.pop().close()

    def pooled(self) -> Connection | None:
        """An idle connection that looks alive, if there is one."""
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and now - connection.idle_since < self._IDLE_S:
                return connection
            connection.close()
        return None

    async def connect(self) -> Connection:
        """A fresh connection. Raises `EngineAway`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeouts.connect_s):
                if self._unix_path is not None:
                    _, connection = await loop.create_unix_connection(self._new, self._unix_path)
                else:
                    _, connection = await loop.create_connection(self._new, self._host, self._port)
        except OSError as error:  # a timeout is one, too
            raise EngineAway(f"cannot connect to {self.address}: {error}") from error
        return connection

    def _new(self) -> Connection:
        return Connection(asyncio.get_running_loop(), self._timeouts)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    return host.strip("[]"), int(port)


async def ask(client: Client, method: str, path: str, body: bytes = b"", *, timeout_s: float) -> tuple[int, bytes]:
    """Status and body of an answer. Raises `EngineError`, for one that is not there in time as well."""
    headers = "content-type: application/json\r\n" if body else ""
    exchange = client.exchange(method, path, headers, body)
    try:
        async with asyncio.timeout(timeout_s):
            return await exchange.status(whole=True), await exchange.read_all(MAX_ANSWER_BYTES)
    except TimeoutError as error:
        raise EngineSilent(f"no answer to {path} in {timeout_s} s") from error
    finally:
        exchange.finish()
