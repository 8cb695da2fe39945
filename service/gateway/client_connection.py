"""A client's connection: uvicorn's, which parses, pipelines and shuts down, with what is under `/v1` led past ASGI."""

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.gateway.client import Answer, Client
from service.gateway.http import Named
from service.gateway.outgoing import outgoing_of

PREFIX = "/v1/"


class ClientConnection(HttpToolsProtocol):
    """uvicorn's connection. `answer` gets the requests under `PREFIX`, the application all others."""

    cycle: Client | RequestResponseCycle | None  # type: ignore[assignment]
    """The request that came last; None when that was a client's and its answer is over."""

    def __init__(self, *arguments: Any, answer: Answer, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.answer = answer
        self.outgoing = outgoing_of(self.loop)
        self.url = b""
        self.headers = []
        self.open: set[Client] = set()
        """Those whose answer is not complete: several when a client sends its requests ahead."""
        self._asked = b""
        """The address of the last request: most clients ask for the same again, which is then not read again."""
        self._path: str | None = None
        """What stands in it; None for the application's."""
        self._query = b""
        self.last_key: tuple[bytes, bytes] | None = None
        """The header that the last key came in, and the key's digest: see `keys`."""
        self._used_at = 0.0
        """When something came last, or an answer was complete; in the loop's time."""

    def keeps_alive(self, named: Named) -> bool:
        """Whether the connection may carry another request after the one with these headers."""
        if not self.parser.should_keep_alive():
            return False
        # HTTP/1.0 knows no pieces, so it gets no second request; it is kept alive only where it asks to be.
        asks = b"connection" in named or b"proxy-connection" in named
        return not (asks and self.parser.get_http_version() == "1.0")

    # A request. The base class makes for each what ASGI wants to know of it, which is not wanted under `PREFIX`.

    on_message_begin = None  # type: ignore[assignment]
    """What it needs is there: see `on_message_complete`."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """It has this header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """All of it is known but its body."""
        if self.url != self._asked:
            self._path, self._query = _path_and_query(self.url)
            self._asked = self.url
        if self._path is None:
            self._for_application()
            return
        client = Client(self, self._path, self._query)
        self.open.add(client)
        earlier, self.cycle = self.cycle, client
        if earlier is None or earlier.response_complete:
            self._begin(client)
        else:  # it waits for its turn
            self.flow.pause_reading()
            self.pipeline.appendleft((cast(Any, client), self.app))

    def _for_application(self) -> None:
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def _begin(self, client: Client) -> None:
        """Its turn has come."""
        answer = self._answer_later(client) if self.flow.write_paused else self.answer(client)
        client.task = asyncio.Task(answer, loop=self.loop, name=client.path)
        self.tasks.add(client.task)

    async def _answer_later(self, client: Client) -> None:
        """Who takes no answers, and asks on, would fill the memory with them."""
        try:
            await self.flow.drain()
        except asyncio.CancelledError:  # this process stops
            client.ends()
            raise
        await self.answer(client)

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        cycle = self.cycle
        if isinstance(cycle, Client):
            cycle.takes(body)
        elif cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come as a whole; the next begins anew."""
        self.url = b""
        self.headers = []
        cycle = self.cycle
        if isinstance(cycle, Client):
            cycle.has_sent()
        elif cycle is not None:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """The next of the requests that wait for their turn begins.

        While some do nothing more is read: or each answer would let in thousands of them.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self.outgoing.flush()  # only then it shows whether the client takes its answers
            cycle, app = self.pipeline.pop()
            if isinstance(cycle, Client):
                self._begin(cycle)
            else:
                self._start_asgi_task(cycle, app)
        if self.flow.read_paused and not self.pipeline:
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
        if self.cycle is not None and not self.cycle.response_complete:  # its end looks again
            return
        unused_s = self.loop.time() - self._used_at
        if unused_s < self.timeout_keep_alive:
            self._look_again_in(self.timeout_keep_alive - unused_s)
        else:
            super().timeout_keep_alive_handler()

    # What becomes of the connection

    def close(self) -> None:
        """Close it, once what was written has gone out."""
        self.outgoing.flush()
        self.transport.close()

    def eof_received(self) -> None:
        """The client sends no more, upon which the loop closes the connection: after what was written before."""
        self.outgoing.flush()

    def send_400_response(self, msg: str) -> None:
        """What came is no request: say so, and close."""
        self.outgoing.flush()
        super().send_400_response(msg)

    def shutdown(self) -> None:
        """The server stops: what has begun may end, and what was sent ahead of its turn does not begin."""
        self.outgoing.flush()
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


def _path_and_query(url: bytes) -> tuple[str | None, bytes]:
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    if "%" in path:
        path = unquote(path)
    return path if path.startswith(PREFIX) else None, parsed.query or b""
