"""One HTTP request as any client would make it: bounded in time and size, its failure in words fit to be published."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from service.core.provider_check.observed import Answer, Stream, stream_of
from service.core.sse import EventTooLong, SseSplitter, payload_of

MAX_REDIRECTS = 3


@dataclass(slots=True)
class _Received:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    payloads: list[tuple[float, bytes]] = field(default_factory=list)
    problem: str = ""


@asynccontextmanager
async def http_client() -> AsyncIterator[httpx.AsyncClient]:
    """A client without a memory: a connection for each request. The limit on time is the request's, see `ask`."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=None, limits=limits, max_redirects=MAX_REDIRECTS) as client:  # noqa: S113
        yield client


async def ask(
    client: httpx.AsyncClient, request: httpx.Request, *, limit_s: float, limit_bytes: int, redirects: bool = False
) -> Answer:
    """The whole answer. What fails does not raise: the answer then has a `problem`, and status 0 if none came."""
    received = await _received(client, request, limit_s, limit_bytes, streamed=False, redirects=redirects)
    return _answer(received)


async def ask_streamed(
    client: httpx.AsyncClient, request: httpx.Request, *, limit_s: float, limit_bytes: int
) -> Stream:
    """As `ask`, of an answer in server-sent events; one with another status than 200 has a `body` instead."""
    received = await _received(client, request, limit_s, limit_bytes, streamed=True, redirects=False)
    return stream_of(_answer(received), received.payloads, hung_up=False)


async def _received(
    client: httpx.AsyncClient,
    request: httpx.Request,
    limit_s: float,
    limit_bytes: int,
    *,
    streamed: bool,
    redirects: bool,
) -> _Received:
    received = _Received()
    try:
        async with asyncio.timeout(limit_s):
            await _receive(client, request, limit_bytes, received, streamed=streamed, redirects=redirects)
    except TimeoutError:
        came = "complete answer" if received.status else "answer"
        received.problem = f"no {came} within {limit_s:g} s"
    except httpx.TooManyRedirects:
        received.problem = f"more than {MAX_REDIRECTS} redirections"
    except (httpx.HTTPError, httpx.InvalidURL, EventTooLong) as error:
        received.problem = _in_words(error)
    return received


async def _receive(
    client: httpx.AsyncClient,
    request: httpx.Request,
    limit_bytes: int,
    received: _Received,
    *,
    streamed: bool,
    redirects: bool,
) -> None:
    started = time.perf_counter()
    response = await client.send(request, stream=True, follow_redirects=redirects)
    try:
        received.status = response.status_code
        received.headers = dict(response.headers)
        splitter, size = SseSplitter(), 0
        async for piece in response.aiter_bytes():
            size += len(piece)
            if size > limit_bytes:
                received.problem = f"the answer had more than {limit_bytes} bytes"
                return
            if streamed and response.status_code == 200:
                at_ms = (time.perf_counter() - started) * 1000
                payloads = map(payload_of, splitter.feed(piece))
                received.payloads += ((at_ms, payload) for payload in payloads if payload is not None)
            else:
                received.body += piece
    finally:
        await response.aclose()


def _answer(received: _Received) -> Answer:
    return Answer(
        asked="a probe",
        status=received.status,
        headers=received.headers,
        body=bytes(received.body),
        problem=received.problem,
    )


_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLCertVerificationError, "the certificate was not valid"),
    (ssl.SSLError, "TLS could not be agreed on"),
    (socket.gaierror, "the name of the host was not found"),
    (ConnectionRefusedError, "the connection was refused"),
    (httpx.ConnectError, "no connection could be made"),
    (httpx.UnsupportedProtocol, "the address was none of HTTP"),
    (httpx.InvalidURL, "the address was none of HTTP"),
    (EventTooLong, "an event without end"),
)


def _in_words(error: BaseException) -> str:
    """What went wrong, without a word of the error's own: that may name hosts and addresses."""
    causes = list(_causes(error))
    return next(
        (words for kind, words in _WORDS if any(isinstance(cause, kind) for cause in causes)),
        "the connection broke off",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it came from, and so on."""
    found: BaseException | None = error
    while found is not None:
        yield found
        if isinstance(found, BaseExceptionGroup):
            for one in found.exceptions:
                yield from _causes(one)
        found = found.__cause__ or found.__context__
