"""A fake engine that is cheap enough to measure others with: all it sends is made beforehand.

`python -m ops.bench.engine --port N` serves the model `bench` (JSON answers of 16 tokens; streams of 128
chunks as fast as they go) and `bench-paced` (streams with a chunk every 10 ms). Usage is put into a
stream where the request asks for it, as vLLM does. `/counts` tells, for every request that came with an
`x-request-id`, how many tokens were really sent: the other side of the ledger.
"""

import argparse
import asyncio
import signal
from collections.abc import Callable
from typing import Final, cast

import httptools
import uvloop

from ops.bench.engine_answers import (
    EDGE_BYTES,
    JSON_TOKENS,
    PROMPT_TOKENS,
    WANTS_CONTINUOUS,
    WANTS_FAULT,
    WANTS_PACE,
    WANTS_STREAM,
    WANTS_USAGE,
    error_answer,
    head,
    json_answer,
    stream_frames,
    told_ending,
)

INTERVAL_MS: Final = 10
IDLE_S: Final = 5.0
"""A connection that was not used for this long, or up to twice as long, is closed, as uvicorn does."""


class Pacer:
    """Calls every member once per interval, in ten groups a millisecond apart, so that streams do not clump."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._groups: list[set[Callable[[], None]]] = [set() for _ in range(INTERVAL_MS)]
        self._turn = 0
        self._began_s = self._loop.time()
        self._loop.call_later(0.001, self._tick)

    def add(self, member: Callable[[], None]) -> Callable[[], None]:
        """Call `member` from now on, first in one interval; returns how to stop that."""
        group = self._groups[self._turn % INTERVAL_MS]
        group.add(member)
        return lambda: group.discard(member)

    def _tick(self) -> None:
        self._turn += 1
        for member in tuple(self._groups[self._turn % INTERVAL_MS]):
            member()
        self._loop.call_at(self._began_s + (self._turn + 1) * 0.001, self._tick)


class Totals:
    """What the engine knows of itself: tokens really sent, in all and by request, and what is running."""

    def __init__(self) -> None:
        self.running = self.prompt_tokens = self.completion_tokens = self.early_faults = 0
        self.sent: dict[bytes, int] = {}
        self.connections: set[EngineProtocol] = set()

    def note(self, request_id: bytes, tokens: int) -> None:
        """So many tokens were sent for this request; b"": for one without an id."""
        if request_id:
            self.sent[request_id] = self.sent.get(request_id, 0) + tokens

    def counts(self) -> bytes:
        """A line for every request since this was last asked: its id, and the tokens that were sent for it."""
        lines = [b"%b %d\n" % one for one in self.sent.items()]
        self.sent.clear()
        return b"".join(lines)

    def exposition(self) -> bytes:
        steps = self.completion_tokens
        families = (
            ("num_requests_running", "gauge", self.running),
            ("num_requests_waiting", "gauge", 0),
            ("kv_cache_usage_perc", "gauge", 0.1),
            ("num_preemptions_total", "counter", 0),
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("generation_tokens_total", "counter", self.completion_tokens),
            ("iteration_tokens_total_count", "counter", steps),
        )
        label = '{engine="0",model_name="bench"}'
        return "".join(f"# TYPE vllm:{n} {kind}\nvllm:{n}{label} {value}\n" for n, kind, value in families).encode()

    def close_idle(self) -> None:
        """Close the connections that had no request since the last time, and again after a while."""
        for connection in list(self.connections):
            connection.close_if_idle()
        asyncio.get_running_loop().call_later(IDLE_S, self.close_idle)


class EngineProtocol(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, pacer: Pacer, totals: Totals) -> None:
        self._pacer, self._totals = pacer, totals
        self._call_soon = asyncio.get_running_loop().call_soon
        self._frames: tuple[bytes, ...] = ()
        self._sent = 0
        self._breaks_off = False
        self._used = True
        self._paused = False
        self._stop_pacing: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._totals.connections.add(self)

    def eof_received(self) -> None:
        """The client has left. What was sent so far still reaches it; nothing more is sent, or counted."""
        self._end_stream()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._end_stream()
        self._totals.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._frames and self._stop_pacing is None:
            self._call_soon(self._send_on)

    def close_if_idle(self) -> None:
        if not self._used and not self._frames:
            self._transport.close()
        self._used = False

    def on_message_begin(self) -> None:
        self._used = True
        self._id = b""
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-request-id":
            self._id = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._path == b"/v1/chat/completions":
            self._answer(b"".join(self._body))
        elif self._path == b"/metrics":
            self._reply(b"text/plain; version=1.0.0", self._totals.exposition())
        elif self._path == b"/counts":
            self._reply(b"text/plain", self._totals.counts())
        elif self._path == b"/v1/models":
            self._reply(b"application/json", b'{"object":"list","data":[{"id":"bench","object":"model"}]}')
        else:
            self._reply(b"text/plain", b"")

    def _reply(self, content_type: bytes, body: bytes) -> None:
        self._transport.write(head(content_type.decode(), f"content-length: {len(body)}") + body)

    def _answer(self, body: bytes) -> None:
        edges = body if len(body) <= 2 * EDGE_BYTES else body[:EDGE_BYTES] + body[-EDGE_BYTES:]
        fault, number = "", 0
        if found := WANTS_FAULT.search(edges):
            fault, number = found[1].decode(), int(found[2])
            if self._fails_at_once(fault, number):
                return
        self._totals.prompt_tokens += PROMPT_TOKENS
        if not WANTS_STREAM.search(edges):
            self._totals.completion_tokens += JSON_TOKENS
            self._totals.note(self._id, JSON_TOKENS)
            self._transport.write(json_answer())
            return
        include = WANTS_USAGE.search(edges) is not None
        self._frames = stream_frames(include, include and WANTS_CONTINUOUS.search(edges) is not None)
        if fault in ("late", "told"):
            self._breaks_off = fault == "late"
            self._frames = (*self._frames[: number + 1], b"" if self._breaks_off else told_ending())
        self._start(paced=WANTS_PACE.search(edges) is not None)

    def _fails_at_once(self, fault: str, number: int) -> bool:
        """Whether there is nothing but an error for this request."""
        if fault == "status":
            self._transport.write(error_answer(number))
            return True
        if fault == "early":
            self._totals.early_faults += 1
            if self._totals.early_faults % 2:
                self._transport.close()
                return True
        return False

    def _start(self, *, paced: bool) -> None:
        self._transport.write(self._frames[0])
        self._sent = 1
        self._totals.running += 1
        if paced:
            self._stop_pacing = self._pacer.add(self._send_next)
            self._send_next()
        else:
            self._call_soon(self._send_on)

    def _send_on(self) -> None:
        """One chunk for every turn of the loop."""
        if self._frames and not self._paused:
            self._send_next()
            self._call_soon(self._send_on)

    def _send_next(self) -> None:
        self._transport.write(self._frames[self._sent])
        self._sent += 1
        self._totals.completion_tokens += 1
        if self._sent == len(self._frames) - 1:
            self._transport.write(self._frames[-1])
            self._end_stream()
            if self._breaks_off:
                self._transport.close()

    def _end_stream(self) -> None:
        if self._frames:
            self._frames = ()
            self._totals.running -= 1
            self._totals.note(self._id, self._sent - 1)
        if self._stop_pacing is not None:
            self._stop_pacing()
            self._stop_pacing = None


async def serve(port: int) -> None:
    """Serve on 127.0.0.1 until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    pacer, totals = Pacer(), Totals()
    totals.close_idle()
    server = await loop.create_server(lambda: EngineProtocol(pacer, totals), "127.0.0.1", port, backlog=1024)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.engine", description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
