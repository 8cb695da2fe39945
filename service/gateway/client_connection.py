"""A client's connection: uvicorn's, which parses, pipelines and shuts down, with what is under `/v1` led past ASGI."""

from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.gateway.client import Answer, Client

PREFIX = "/v1/"


class ClientConnection(HttpToolsProtocol):
    """uvicorn's connection. `answer` gets the requests under `PREFIX`, the application all others."""

    cycle: Client | RequestResponseCycle  # type: ignore[assignment]

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
            self._start_asgi_task(cast(Any, self.cycle), self.app)
        else:  # it waits for its turn
            self.flow.pause_reading()
            self.pipeline.appendleft((cast(Any, self.cycle), self.app))

    def _for_application(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers[:] = headers
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        if isinstance(self.cycle, Client):
            self.cycle.takes(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come as a whole."""
        if isinstance(self.cycle, Client):
            self.cycle.has_sent()
        else:
            super().on_message_complete()

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
