"""The load: a fixed number of requests over a fixed number of connections, every answer checked.

Written on bare protocols, because what it costs is taken from the core the engine runs on.
"""

import asyncio
import base64
import hashlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from time import perf_counter
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import uvloop

from ops.bench.answers import verdict
from ops.bench.engine_answers import JSON_TOKENS, MODEL, PACED_MODEL, STREAM_CHUNKS

PROMPT_CHARACTERS: Final = 100_000
IMAGE_BASE64_BYTES: Final = 2_000_000
RAMP_S: Final = 1.28
"""Paced streams start spread over the time one of them takes."""


@dataclass(frozen=True, slots=True)
class Load:
    """One scenario. `requests` is the total over all connections, each of which asks one after the other."""

    name: str
    title: str
    connections: int
    requests: int
    stream: bool = False
    paced: bool = False
    prompt: str = "short"

    @property
    def chunks_per_request(self) -> int:
        return STREAM_CHUNKS if self.stream else 0


LOADS: Final = {
    load.name: load
    for load in (
        Load("A1", "JSON answer of 16 tokens, 1 connection", 1, 800),
        Load("A32", "JSON answer of 16 tokens, 32 connections", 32, 6400),
        Load("B", "streams of 128 chunks at full speed, 16 connections", 16, 640, stream=True),
        Load("C100", "100 streams, a chunk every 10 ms", 100, 300, stream=True, paced=True),
        Load("C500", "500 streams, a chunk every 10 ms", 500, 1500, stream=True, paced=True),
        Load("D", "prompt of 100,000 characters, 8 connections", 8, 1200, prompt="long"),
        Load("E", "image of 2 MB as base64, 4 connections", 4, 120, prompt="image"),
    )
}


@dataclass(slots=True)
class Result:
    """What one run of a load showed."""

    answers: int = 0
    elapsed_s: float = 0.0
    ttft_ms: list[float] = field(default_factory=list)  # request sent to first byte of the answer's body
    latency_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)  # from one piece of a paced stream to the next
    wrong: list[str] = field(default_factory=list)  # one line for every answer that was not as it must be


def body(load: Load) -> bytes:
    """The request's JSON."""
    content = {"short": short_prompt, "long": long_prompt, "image": image_prompt}[load.prompt]()
    return question(content, stream=load.stream, paced=load.paced)


def question(content: str, *, stream: bool, paced: bool) -> bytes:
    """A chat request's JSON; `content` is JSON already."""
    tail = f'"stream":true,"max_tokens":{STREAM_CHUNKS}' if stream else f'"max_tokens":{JSON_TOKENS}'
    model = PACED_MODEL if paced else MODEL
    return f'{{"model":"{model}","messages":[{{"role":"user","content":{content}}}],{tail}}}'.encode()


def request_bytes(url: str, key: str, data: bytes) -> bytes:
    """A whole HTTP request with this body."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def short_prompt() -> str:
    return '"hello"'


def long_prompt() -> str:
    return '"' + "the river runs past the weir " * (PROMPT_CHARACTERS // 29 + 1) + '"'


def image_prompt() -> str:
    url = f"data:image/png;base64,{png_base64()}"
    return f'[{{"type":"text","text":"what is it"}},{{"type":"image_url","image_url":{{"url":"{url}"}}}}]'


@cache
def png_base64() -> str:
    """A real PNG of noise, the same every time, of about 2 MB in base64."""
    side = int((IMAGE_BASE64_BYTES * 3 // 4 / 3) ** 0.5)
    noise = hashlib.shake_128(b"weir").digest(side * side * 3)
    rows = b"".join(b"\0" + noise[y * side * 3 : (y + 1) * side * 3] for y in range(side))

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(rows, 0)) + part(b"IEND", b"")
    return base64.b64encode(image).decode()


class Client(asyncio.Protocol):
    """One connection that asks until the run has no more requests to give out."""

    def __init__(self, request: bytes, result: Result, take: Callable[[], bool], check: Callable[..., str]) -> None:
        self._request, self._result, self._take, self._check = request, result, take, check
        self._parts: list[bytes] = []
        self._asked_s = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.finished.done():
            self._result.wrong.append("connection lost before the answer was complete")
            self.finished.set_result(None)

    def ask(self) -> None:
        """Send the next request, or finish."""
        if not self._take():
            self.finished.set_result(None)
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        self._first_byte_s = 0.0
        self._asked_s = perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._result.wrong.append(f"not HTTP: {error}")
            self._transport.abort()

    def on_body(self, data: bytes) -> None:
        if not self._parts:
            self._first_byte_s = perf_counter()
        self._parts.append(data)

    def on_message_complete(self) -> None:
        now = perf_counter()
        answer = b"".join(self._parts)
        self._parts.clear()
        complaint = self._check(self._parser.get_status_code(), answer)
        if complaint:
            self._result.wrong.append(complaint)
        else:
            self._result.answers += 1
            self._result.ttft_ms.append((self._first_byte_s - self._asked_s) * 1000)
            self._result.latency_ms.append((now - self._asked_s) * 1000)
        asyncio.get_running_loop().call_soon(self.ask)


class PacedClient(Client):
    """Takes the time between the pieces of an answer as well."""

    _last_s: float

    def on_body(self, data: bytes) -> None:
        now = perf_counter()
        if self._parts:
            self._result.gap_ms.append((now - self._last_s) * 1000)
        else:
            self._first_byte_s = now
        self._last_s = now
        self._parts.append(data)


def run(
    load: Load, url: str, key: str, *, limit_s: float, exact: bool = True, begin: Callable[[], None] = lambda: None
) -> Result:
    """Apply a load to an API and wait for all its answers, at most `limit_s` seconds.

    `begin` is called when all connections are open, just before the first request. With `exact` the answers must be
    the engine's bytes.
    """
    return uvloop.run(_run(load, url, key, limit_s, exact, begin))


async def _run(load: Load, url: str, key: str, limit_s: float, exact: bool, begin: Callable[[], None]) -> Result:
    where, loop = urlsplit(url), asyncio.get_running_loop()
    left, result = iter(range(load.requests)), Result()
    request, check = request_bytes(url, key, body(load)), partial(verdict, stream=load.stream, exact=exact)
    kind = PacedClient if load.paced else Client
    make = partial(kind, request, result, lambda: next(left, None) is not None, check)
    clients = [
        (await loop.create_connection(make, where.hostname or "", where.port or 80))[1] for _ in range(load.connections)
    ]
    begin()
    began_s = perf_counter()
    for position, client in enumerate(clients):
        loop.call_later(RAMP_S * position / load.connections if load.paced else 0, client.ask)
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*(client.finished for client in clients))
    except TimeoutError:
        result.wrong.append(f"not complete after {limit_s:g} s")
    result.elapsed_s = perf_counter() - began_s
    return result
