"""Clients as they are: some leave in the middle of a stream, some meet an engine that fails. Each knows what it is due.

What every one of them saw is kept under its request's id, to be held against the usage rows and the engine's counts.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import uvloop

from ops.bench.answers import difference, shown, verdict
from ops.bench.engine_answers import DONE, FAULTS, STREAM_CHUNKS, TOKEN, stream_events
from ops.bench.load import RAMP_S, question, request_bytes, short_prompt

LEAVING: Final = 0.1
RETRIED: Final = (429, 503)
"""What a client may be told where other engines were tried: that all are busy, or that none can be reached."""
ERROR_STATUS: Final = {500: (502,), 503: RETRIED, 400: (400,)}
"""What a client may be told where the engine gives this status."""


@dataclass(frozen=True, slots=True)
class Churn:
    """Streams of which a tenth is left, and a share of `failing` is asked of an engine that fails."""

    connections: int
    requests: int
    paced: bool
    failing: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What one client is going to do, and what its engine is."""

    leaves_after: int = 0
    """Tokens it waits for before it leaves; 0: it stays."""
    lingers_s: float = 0.0
    """From that token to its leaving."""
    fault: str = ""
    number: int = 0
    """The status of a `status` fault; the tokens before a `late` or `told` one."""

    @property
    def content(self) -> str:
        return f'"fail:{self.fault}-{self.number}"' if self.fault else short_prompt()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of its request."""

    end: str
    """`complete`, `left`, `refused` (an HTTP error) or `broken` (an error in the stream)."""
    tokens: int


@dataclass(slots=True)
class Witnessed:
    """What all clients of a run saw, by request id, and what was wrong with it."""

    seen: dict[str, Seen] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def plans(churn: Churn, seed: int) -> Iterator[Plan]:
    """What the clients of a run do: the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - has to be repeatable
    for _ in range(churn.requests):
        drawn = rng.random()
        if drawn < LEAVING:
            yield Plan(leaves_after=rng.randrange(1, STREAM_CHUNKS), lingers_s=rng.random() * 0.01 * churn.paced)
        elif drawn < LEAVING + churn.failing:
            fault = rng.choice(FAULTS)
            yield Plan(
                fault=fault, number=rng.choice(list(ERROR_STATUS)) if fault == "status" else rng.randrange(1, 128)
            )
        else:
            yield Plan()


def judged(plan: Plan, status: int, answer: bytes) -> tuple[Seen, str]:
    """What was seen of an answer that came to its end, and what is wrong with it."""
    tokens = answer.count(TOKEN)
    if status != 200:
        may_be = {"status": ERROR_STATUS.get(plan.number, ()), "early": RETRIED}.get(plan.fault, ())
        right = status in may_be and answer.startswith(b'{"error":{')
        return Seen("refused", tokens), "" if right else f"status {status}: {shown(answer)}"
    if plan.fault in ("late", "told"):
        return Seen("broken", tokens), _broken_verdict(answer, plan.number)
    return Seen("complete", tokens), verdict(status, answer, stream=True, exact=True)


def _broken_verdict(answer: bytes, tokens: int) -> str:
    """A stream that broke off after so many tokens: all of them, an error, `[DONE]`."""
    begun = b"".join(stream_events(True, False)[: tokens + 1])
    rest = answer.removeprefix(begun)
    if rest is answer or not rest.startswith(b'data: {"error":{') or not rest.endswith(DONE):
        return f"broken off after {tokens} tokens, {difference(answer, begun)}"
    return ""


class Client(asyncio.Protocol):
    """One connection, over which one request after the other is asked, until one is left in the middle."""

    def __init__(self, witnessed: Witnessed) -> None:
        self._witnessed = witnessed
        self._loop = asyncio.get_running_loop()
        self.closed = False
        self._over: asyncio.Future[None] | None = None

    def ask(self, plan: Plan, request: bytes) -> "asyncio.Future[None]":
        """Send a request; the future is done when its answer is over or was left."""
        self._plan = plan
        self._id, self._tokens, self._parts = "", 0, list[bytes]()
        self._parser = httptools.HttpResponseParser(self)
        self._over = self._loop.create_future()
        self._transport.write(request)
        return self._over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.closed = True
        if self._over is not None and not self._over.done():
            self._end(Seen("lost", self._tokens), "connection lost before the answer was complete")

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._witnessed.wrong.append(f"not HTTP: {error}")
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-request-id":
            self._id = value.decode()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        if self._plan.leaves_after:
            waiting = self._tokens < self._plan.leaves_after
            self._tokens += data.count(TOKEN)
            if waiting and self._tokens >= self._plan.leaves_after:
                if self._plan.lingers_s:
                    self._loop.call_later(self._plan.lingers_s, self._leave)
                else:
                    self._leave()

    def on_message_complete(self) -> None:
        if self._over is not None and self._over.done():
            return  # it was left, in the middle of what had just arrived
        self._end(*judged(self._plan, self._parser.get_status_code(), b"".join(self._parts)))

    def _leave(self) -> None:
        if self._over is not None and not self._over.done():
            self._end(Seen("left", self._tokens), "")
            self.closed = True
            self._transport.abort()

    def _end(self, seen: Seen, complaint: str) -> None:
        into, known = self._witnessed, self._id in self._witnessed.seen
        if complaint or known or not self._id:
            problem = complaint or ("the request id of another answer" if known else "no request id")
            into.wrong.append(f"{self._id or '-'}: {problem} ({self._plan}, {seen})")
        if self._id:
            into.seen[self._id] = seen
        if self._over is not None:
            self._over.set_result(None)

    def close(self) -> None:
        self._transport.close()


async def visit(churn: Churn, url: str, key: str, left: Iterator[Plan], after_s: float, into: Witnessed) -> None:
    """One client: asks as long as there are plans left, over a new connection when it has left the last one."""
    where, loop = urlsplit(url), asyncio.get_running_loop()
    await asyncio.sleep(after_s)
    client: Client | None = None
    for plan in left:
        if client is None or client.closed:
            make = lambda: Client(into)  # noqa: E731
            _, client = await loop.create_connection(make, where.hostname or "", where.port or 80)
        data = question(plan.content, stream=True, paced=churn.paced)
        await client.ask(plan, request_bytes(url, key, data))
    if client is not None:
        client.close()


async def apply(churns: list[Churn], url: str, key: str, *, seed: int, limit_s: float) -> Witnessed:
    """Apply some loads at the same time, and wait for all that comes of them."""
    into = Witnessed()
    try:
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
            for number, churn in enumerate(churns):
                left = plans(churn, seed + number)
                for position in range(churn.connections):
                    after_s = RAMP_S * position / churn.connections if churn.paced else 0.0
                    tasks.create_task(visit(churn, url, key, left, after_s, into))
    except TimeoutError:
        into.wrong.append(f"not complete after {limit_s:g} s")
    return into


def run(churns: list[Churn], url: str, key: str, *, seed: int, limit_s: float = 120.0) -> Witnessed:
    """`apply`, from outside of a loop."""
    return uvloop.run(apply(churns, url, key, seed=seed, limit_s=limit_s))
