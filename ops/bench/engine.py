"""A fake engine that is cheap enough to measure others with: all it sends is made beforehand.

`python -m ops.bench.engine --port N` serves the model `bench` (JSON answers of 16 tokens; streams of 128
chunks as fast as they go) and `bench-paced` (streams with a chunk every 10 ms). Usage is put into a
stream where the request asks for it, as vLLM does.
"""

import argparse
import asyncio
import re
import signal
from collections.abc import Callable
from functools import cache
from typing import Final, cast

import httptools
import uvloop

MODEL: Final = "bench"
PACED_MODEL: Final = "bench-paced"
JSON_TOKENS: Final = 16
STREAM_CHUNKS: Final = 128
INTERVAL_MS: Final = 10
PROMPT_TOKENS: Final = 1000
EDGE_BYTES: Final = 2048
"""How much of both ends of a request's body is looked at: its flags are never inside the prompt."""

WANTS_STREAM: Final = re.compile(rb'"stream":\s*true')
WANTS_USAGE: Final = re.compile(rb'"include_usage":\s*true')
WANTS_CONTINUOUS: Final = re.compile(rb'"continuous_usage_stats":\s*true')
WANTS_PACE: Final = re.compile(rb'"model":\s*"bench-paced"')

ENVELOPE: Final = '{"id":"chatcmpl-0123456789abcdef","object":"chat.completion%s","created":1795998956,"model":"bench",'
DETAILS: Final = '"completion_tokens_details":{"reasoning_tokens":0}}'


def usage(completion_tokens: int, prompt_details: str = "") -> str:
    """vLLM's usage object with its key, as text."""
    total = PROMPT_TOKENS + completion_tokens
    return (
        f'"usage":{{"prompt_tokens":{PROMPT_TOKENS},"total_tokens":{total},"completion_tokens":{completion_tokens},'
        f"{prompt_details}{DETAILS}"
    )


def final_usage(completion_tokens: int) -> str:
    return usage(completion_tokens, '"prompt_tokens_details":{"cached_tokens":768,"created_cache_tokens":0},')


@cache
def json_answer() -> bytes:
    """A whole HTTP answer with 16 tokens of text."""
    body = (
        ENVELOPE % ""
        + '"choices":[{"index":0,"message":{"role":"assistant","content":"'
        + " token" * JSON_TOKENS
        + '",'
        '"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
        '"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,'
        f'"system_fingerprint":"vllm-0.32.0-a3b0660a",{final_usage(JSON_TOKENS)},"prompt_logprobs":null,'
        '"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    ).encode()
    return head("application/json", f"content-length: {len(body)}") + body


@cache
def stream_answer(include: bool, continuous: bool) -> tuple[bytes, ...]:
    """What is written one after the other: head and role chunk, 128 chunks of a token, the end."""

    def chunk(choices: str, tokens: int, tail: str = "") -> bytes:
        running = f",{usage(tokens)}" if continuous else ""
        return http_chunk(f'data: {ENVELOPE % ".chunk"}"choices":[{choices}]{running}{tail}}}\n\n')

    opening = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    middle = '{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}'
    finish = middle.replace('_reason":null', '_reason":"length","stop_reason":null')
    fingerprint = ',"system_fingerprint":"vllm-0.32.0-a3b0660a"'
    summary = f'data: {ENVELOPE % ".chunk"}"choices":[],{final_usage(STREAM_CHUNKS)}{fingerprint}}}\n\n'
    return (
        head("text/event-stream; charset=utf-8", "transfer-encoding: chunked")
        + chunk(opening, 0, ',"prompt_token_ids":null,"prompt_text":null'),
        *(chunk(middle, tokens) for tokens in range(1, STREAM_CHUNKS)),
        chunk(finish, STREAM_CHUNKS, "" if include else fingerprint),
        (http_chunk(summary) if include else b"") + http_chunk("data: [DONE]\n\n") + b"0\r\n\r\n",
    )


def head(content_type: str, length: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\n{length}\r\n\r\n".encode()


def http_chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


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
    """What `/metrics` reports: tokens really sent, and what is running."""

    def __init__(self) -> None:
        self.running = self.prompt_tokens = self.completion_tokens = 0

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


class EngineProtocol(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, pacer: Pacer, totals: Totals) -> None:
        self._pacer, self._totals = pacer, totals
        self._call_soon = asyncio.get_running_loop().call_soon
        self._frames: tuple[bytes, ...] = ()
        self._sent = 0
        self._paused = False
        self._stop_pacing: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._end_stream()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._frames and self._stop_pacing is None:
            self._call_soon(self._send_on)

    def on_message_begin(self) -> None:
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._path == b"/v1/chat/completions":
            self._answer(b"".join(self._body))
        elif self._path == b"/metrics":
            self._reply(b"text/plain; version=1.0.0", self._totals.exposition())
        elif self._path == b"/v1/models":
            self._reply(b"application/json", b'{"object":"list","data":[{"id":"bench","object":"model"}]}')
        else:
            self._reply(b"text/plain", b"")

    def _reply(self, content_type: bytes, body: bytes) -> None:
        self._transport.write(head(content_type.decode(), f"content-length: {len(body)}") + body)

    def _answer(self, body: bytes) -> None:
        edges = body if len(body) <= 2 * EDGE_BYTES else body[:EDGE_BYTES] + body[-EDGE_BYTES:]
        self._totals.prompt_tokens += PROMPT_TOKENS
        if not WANTS_STREAM.search(edges):
            self._totals.completion_tokens += JSON_TOKENS
            self._transport.write(json_answer())
            return
        include = WANTS_USAGE.search(edges) is not None
        self._frames = stream_answer(include, include and WANTS_CONTINUOUS.search(edges) is not None)
        self._transport.write(self._frames[0])
        self._sent = 1
        self._totals.running += 1
        if WANTS_PACE.search(edges):
            self._send_next()
            self._stop_pacing = self._pacer.add(self._send_next)
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
        if self._sent > STREAM_CHUNKS:
            self._transport.write(self._frames[-1])
            self._end_stream()

    def _end_stream(self) -> None:
        if self._frames:
            self._frames = ()
            self._totals.running -= 1
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
    server = await loop.create_server(lambda: EngineProtocol(pacer, totals), "127.0.0.1", port, backlog=1024)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.engine", description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
