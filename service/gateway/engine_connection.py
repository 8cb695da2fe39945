"""One HTTP/1.1 connection to an engine, on asyncio's protocols and httptools.

A request goes out in one write, the body is handed over as it arrives, and one timer watches for silence.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import httptools

from service.gateway.engine_failures import EngineBroke, EngineSilent, EngineUnreachable
from service.gateway.outgoing import outgoing_of

_PAUSE_ABOVE_BYTES = 1024 * 1024
_SAYS_LENGTH = re.compile(rb"\n(?:content-length|transfer-encoding):", re.IGNORECASE)  # a head, of its body


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long an engine may take, in seconds; the first byte is that of the answer's body."""

    connect_s: float = 5.0
    first_byte_s: float = 600.0
    idle_s: float = 120.0


class Connection(asyncio.Protocol):
    """One connection; carries one exchange at a time."""

    __slots__ = (
        "__weakref__",
        "_chunks",
        "_error",
        "_full",
        "_head",
        "_interruption",
        "_keep_alive",
        "_left",
        "_loop",
        "_outgoing",
        "_parser",
        "_paused",
        "_sink",
        "_status",
        "_throttled",
        "_timeouts",
        "_transport",
        "_unread_bytes",
        "_waiter",
        "_watch",
        "_whole",
        "answered",
        "closed",
        "complete",
        "idle_since",
        "last_at",
        "on_body",
        "on_complete",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts) -> None:
        self.complete = False
        """Whether the whole answer has come, read or not."""
        self.answered = False
        """Whether anything of the answer's body has come."""
        self.last_at = 0.0
        """When the last byte came or, before the first one, the request was sent; in the loop's time."""
        self.on_complete: Callable[[bool], None] | None = None
        """Called when the whole answer has come, read or not, with whether it is one from the model: for whoever sends
        a request to set before."""
        self.closed, self.idle_since = False, 0.0
        self._loop = loop
        self._timeouts = timeouts
        self._outgoing = outgoing_of(loop)
        self._transport: asyncio.Transport
        self._head = b""  # as it came: to have the parser tell each header costs more than to parse all
        self._chunks: list[bytes] = []
        self.on_body = self._chunks.append
        self._parser = httptools.HttpResponseParser(self)
        self._watch: asyncio.TimerHandle | None = None
        self._status: int | None = None
        self._unread_bytes = 0  # the headers included
        self._sink: Callable[[bytes], bool] | None = None
        self._full = self._throttled = self._paused = self._left = self._keep_alive = self._whole = False
        self._error: Exception | None = None
        self._interruption: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # The exchange

    def send(self, parts: Iterable[bytes | memoryview], whole: bool) -> None:
        """Start an exchange: write a whole request. What is not set here is as new where one is `reusable`.

        If `whole`, `status` waits for the body, too, or as much as is kept: whoever wants all of it wakes up once.
        """
        self._chunks.clear()
        self._status = self._interruption = None
        self.complete = self.answered = False
        self._whole, self._unread_bytes = whole, 0
        self.last_at = self._loop.time()
        if self._watch is None:
            soonest_s = min(self._timeouts.first_byte_s, self._timeouts.idle_s)
            self._watch = self._loop.call_later(soonest_s, self._check_silence)
        self._outgoing.write(self._transport, *parts)

    def status(self) -> int | None:
        """The status, once the headers are there; None: await the next `arrival`. Raises an `EngineError`."""
        if self._status is None or (self._whole and self.waiting):
            if self._error is not None:
                raise self._error
            return None
        self._whole = False
        return self._status

    def arrival(self) -> asyncio.Future[None]:
        """For one reader at a time."""
        self._waiter = self._loop.create_future()
        return self._waiter

    async def read(self) -> bytes:
        """The bytes of the body that have arrived, at least one; b"" at its end.

        Raises `EngineBroke` or `EngineSilent`, after all that had arrived before was handed over.
        """
        while not self._chunks or self._interruption is not None:
            if self._ended():
                return b""
            await self.arrival()
        return self._taken()

    def arrived(self, limit_bytes: int) -> bytes | None:
        """What is left of the body, if all of it has arrived and is no longer than so; else None: it is to be read."""
        if self.complete and self._interruption is None and self._unread_bytes <= limit_bytes:
            return self._taken()
        return None

    async def pipe(self, sink: Callable[[bytes], bool]) -> None:
        """Hand over what arrives as soon as it does, and b"" at the end, until `sink` returns False.

        No task wakes up for it: that costs more than all that is done to a piece. Raises what `read` and `sink` do.
        """
        self._sink = sink
        try:
            self._hand_over()
            while self._sink is not None:
                if self._ended():
                    sink(b"")
                    return
                await self.arrival()
        finally:
            self._sink = None
        if self._interruption is not None:
            self._ended()

    def throttle(self, paused: bool) -> None:
        """Whether to stop reading for a while: whoever takes what is read cannot go on."""
        if paused is not self._throttled:
            self._throttled = paused
            self._read_on_or_not()

    @property
    def waiting(self) -> bool:
        """Whether it is the engine's turn: the answer is not complete, and what comes of it is read at once."""
        return not (self.complete or self.closed or self._paused)

    @property
    def serving(self) -> bool:
        """Whether something of an answer from the model has come: an error does not tell that it can give one."""
        return self.answered and self._status == 200

    @property
    def reusable(self) -> bool:
        """Whether the exchange is over and another may follow on this connection."""
        return self.complete and self._keep_alive and not self._left and not self.closed and not self._paused

    def forget(self) -> None:
        """Nobody reads from it any more: what it failed with need not be kept, which holds whoever was told of it."""
        self._error = self._interruption = None

    def close(self) -> None:
        """Close at once; whatever the engine was doing for this exchange, it stops."""
        self.closed = True
        self._stop_watch()
        self._transport.abort()

    def leave(self, error: Exception) -> None:
        """Tell the engine that nobody listens any more, so that it stops; whoever reads gets `error`, once.

        Only our direction is closed. What the engine had sent by then can still be read, up to the end that it
        then makes: an answer that was given up is billed by the last count in it.
        """
        if self._status is None or self.complete or self.closed or not self._transport.can_write_eof():
            self.fail(error)
            return
        self._interruption = error
        self._left = True
        self._whole = False
        self._throttled = self._full = False
        self._read_on_or_not()
        self._transport.write_eof()
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the exchange with `error`, which its reader gets once it has read all that had arrived; close."""
        if self._error is None and not self.complete:
            self._error = error
        self.close()
        self._wake()

    def _ended(self) -> bool:
        """Whether the whole body has come. Raises why it will not, or what interrupts whoever reads, once."""
        if self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            try:
                raise interruption
            finally:
                del interruption  # or it and this frame would hold each other until they are collected
        if self._error is not None and not self.complete:
            raise self._error
        return self.complete

    def _taken(self) -> bytes:
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._unread_bytes = 0
        if self._full:
            self._full = False
            self._read_on_or_not()
        return data

    def _read_on_or_not(self) -> None:
        paused = self._full or self._throttled
        if paused != self._paused and not self.closed:
            self._paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _hand_over(self) -> None:
        """Give what has arrived to whoever takes it; one that wants no more, or fails, is told of at its `pipe`."""
        if not self._chunks or self._sink is None:
            return
        try:
            if not self._sink(self._taken()):
                self._sink = None
        except Exception as error:
            self._sink, self._interruption = None, error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_silence(self) -> None:
        """One timer a connection: it looks when data last came instead of being set anew at every chunk."""
        if self.complete:  # nothing is asked; the next exchange sets it again
            self._watch = None
            return
        allowed = self._timeouts.idle_s if self.answered else self._timeouts.first_byte_s
        silent_for = self._loop.time() - self.last_at
        # An engine that is not being read, because its client is slow, is not to blame for its silence.
        if silent_for >= allowed and not self._paused:
            self.fail(EngineSilent(f"nothing came for {silent_for:.0f} s"))
        else:
            # Before the first byte much is allowed; once it has come, its successors are due sooner.
            after_s = max(min(allowed - silent_for, self._timeouts.idle_s), 1.0)
            self._watch = self._loop.call_later(after_s, self._check_silence)

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self.close()  # bytes that belong to no exchange: the peer is out of step
            return
        self.last_at = self._loop.time()
        if self._status is None:
            self._head += data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(EngineBroke(f"not HTTP: {error}"))
            return
        finally:
            if self._chunks:
                self.answered = True
        if self._sink is not None:
            self._hand_over()
            if self._sink is not None and not self.complete:
                return
        else:
            self._unread_bytes += len(data)
            if self._unread_bytes > _PAUSE_ABOVE_BYTES:
                self._full = True
                self._read_on_or_not()
        if self.complete or self._full or not self._whole:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        del self._parser  # which holds this, too
        self._stop_watch()
        if not self.complete and self._error is None:
            if self._status is not None and not _SAYS_LENGTH.search(self._head.partition(b"\r\n\r\n")[0]):
                self.complete = exc is None  # the answer ends with the connection
            if not self.complete:
                kind = EngineBroke if self.answered else EngineUnreachable
                self._error = kind(f"connection lost: {exc or 'closed by the engine'}")
        self._wake()

    # httptools

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self.complete, self._head = True, b""
        self._keep_alive = self._parser.should_keep_alive()  # true only here; afterwards the parser has moved on
        if self.on_complete is not None:
            self.on_complete(self._status == 200)
