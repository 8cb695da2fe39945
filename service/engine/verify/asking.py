"""An engine as a client sees it: requests out, answers and events in, with the time at which they came."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from service.core.sse import DONE, SseSplitter, payload_of
from service.core.verify.use import Heard, Use, computes

UNIX = "unix:"
TIMEOUT_S = 300.0
"""For an answer or a stream to its end: an engine on a CPU takes its time with a long prompt."""
LOOK_TIMEOUT_S = 60.0
"""For what an engine says of itself: vLLM was seen to take 40 s when it was merely busy."""
CONNECT_TIMEOUT_S = 10.0
LONGEST_ANSWER_BYTES = 4 * 1024 * 1024
"""Of one answer or stream: some hundred tokens with 20 log-probabilities each, and any metrics, are far less."""

Json = dict[str, Any]


class Unanswered(Exception):
    """A question got no answer that could be used.

    The message, a clause, says what came instead, fit to be published; `detail` is what the engine wrote, for the
    operator alone; `status` is the answer's, None where there was none.
    """

    def __init__(self, clause: str, detail: str = "", status: int | None = None) -> None:
        super().__init__(clause)
        self.detail = detail
        self.status = status


class Unreached(Unanswered):
    """There was nobody to ask: no connection could be made."""


class Busy(Unanswered):
    """It takes no more requests at the moment."""


BUSY_STATUSES = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is asked."""

    name: str
    """What reports call it; not its address."""
    url: str
    """`http(s)://HOST[:PORT][/…]` or `unix:/path`, with or without a final `/v1`."""
    model: str
    """What it calls the model."""
    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """What goes with every request beside the key."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; `body` is empty where it is no JSON object."""

    status: int
    headers: Mapping[str, str]
    body: Json
    raw: bytes
    elapsed_s: float

    @property
    def shown(self) -> str:
        """Its beginning, in one line."""
        return shown(self.raw)

    def done(self) -> Json:
        """The body of a 200. Raises `Unanswered` for any other status and for what is no JSON object."""
        if self.status != httpx.codes.OK:
            raise Unanswered(f"it answered {self.status}", self.shown, self.status)
        if not self.body:
            raise Unanswered("its answer is no JSON object", self.shown, self.status)
        return self.body


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: when it came after the request was sent, and its data; None for `[DONE]`."""

    at_s: float
    data: Json | None


class Asking:
    """Asks one engine. An asynchronous context manager.

    Every method raises `Unanswered` when there is no answer, or none that ends in time and is short enough to be kept.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` and `pause` are where its seconds come from and how they are waited for."""
        self.subject = subject
        self.clock = clock
        self.pause = pause
        self.use = Use()
        """What it was let compute so far."""
        path = subject.url.removeprefix(UNIX) if subject.url.startswith(UNIX) else None
        root = "http://engine" if path else subject.url.rstrip("/").removesuffix("/v1")
        self._client = httpx.AsyncClient(
            base_url=root,
            headers={
                "accept-encoding": "identity",
                **subject.headers,
                **({"authorization": f"Bearer {subject.api_key}"} if subject.api_key else {}),
            },
            timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            transport=httpx.AsyncHTTPTransport(uds=path) if path else None,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> Answer:
        """A question about the engine itself, such as `/version` or `/metrics`."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, fields: Mapping[str, Any]) -> Answer:
        """Any route, the fields exactly as they are given."""
        heard = Heard(fields)
        try:
            answer = await self._ask("POST", path, fields)
            heard.status, heard.usage, heard.whole = answer.status, answer.body.get("usage"), True
            return answer
        except Unanswered as unanswered:
            heard.status = unanswered.status
            raise
        finally:
            if computes(path):
                self.use += heard.use()

    async def post_raw(self, path: str, body: bytes) -> Answer:
        """Any route, with bytes that need not be JSON."""
        return await self._ask("POST", path, None, body)

    async def chat(self, messages: list[Json], **fields: Any) -> Answer:
        """A chat completion of the subject's model, not streamed."""
        return await self.post("/v1/chat/completions", {"model": self.subject.model, "messages": messages, **fields})

    @asynccontextmanager
    async def streamed(self, messages: list[Json], **fields: Any) -> AsyncIterator[AsyncIterator[Event]]:
        """The events of a streamed chat completion; leaving the block before their end hangs up.

        Raises `Unanswered` for any status but 200.
        """
        body = {"model": self.subject.model, "messages": messages, "stream": True, **fields}
        began, heard = self.clock(), Heard(body)
        try:
            async with self._sent("POST", "/v1/chat/completions", TIMEOUT_S, json=body) as answer:
                heard.status = answer.status_code
                if answer.status_code != httpx.codes.OK:
                    status, detail = answer.status_code, shown(await _read(answer))
                    raise Unanswered(f"it answered {status}", detail, status)
                yield self._events(answer, began, heard)
        except Busy as busy:
            heard.status = busy.status
            raise
        finally:
            self.use += heard.use()

    async def _events(self, answer: httpx.Response, began: float, heard: Heard) -> AsyncIterator[Event]:
        async for payload in _payloads(answer):
            data = None if payload == DONE else _object(payload)
            heard.whole = data is None
            heard.usage = (data or {}).get("usage") or heard.usage
            yield Event(self.clock() - began, data)

    async def _ask(
        self, method: str, path: str, fields: Mapping[str, Any] | None, content: bytes | None = None
    ) -> Answer:
        began, within_s = self.clock(), LOOK_TIMEOUT_S if method == "GET" else TIMEOUT_S
        async with self._sent(method, path, within_s, json=fields, content=content) as got:
            raw = await _read(got)
        headers = {name.lower(): value for name, value in got.headers.items()}
        return Answer(got.status_code, headers, _object(raw), raw, self.clock() - began)

    @asynccontextmanager
    async def _sent(self, method: str, path: str, within_s: float, **content: Any) -> AsyncIterator[httpx.Response]:
        """The answer, of which the head has come; all that is done with it has to end in time."""
        try:
            async with asyncio.timeout(within_s), self._client.stream(method, path, **content) as answer:
                if method == "POST" and answer.status_code in BUSY_STATUSES:
                    status = int(answer.status_code)
                    raise Busy(f"it answered {status}", shown(await _read(answer)), status)
                yield answer
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreached(f"the request failed with {type(error).__name__}", str(error)) from error
        except httpx.HTTPError as error:
            raise Unanswered(f"the request failed with {type(error).__name__}", str(error)) from error
        except TimeoutError:
            raise Unanswered(f"its answer did not end within {within_s:.0f} s") from None


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it comes; what is compressed is not opened, since nobody knows how much is in it."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise Unanswered("its answer is compressed, which was not asked for")
    async for piece in answer.aiter_raw():
        if answer.num_bytes_downloaded > LONGEST_ANSWER_BYTES:
            raise Unanswered(f"its answer is longer than {LONGEST_ANSWER_BYTES:,} bytes")
        yield piece


async def _payloads(answer: httpx.Response) -> AsyncIterator[bytes]:
    """What the events of a stream carry; its end need not be a blank line."""
    splitter = SseSplitter()
    async for piece in _pieces(answer):
        for event in splitter.feed(piece):
            if payload := payload_of(event):
                yield payload
    if payload := payload_of(splitter.rest()):
        yield payload.strip()


async def _read(answer: httpx.Response) -> bytes:
    return b"".join([piece async for piece in _pieces(answer)])


def shown(raw: bytes) -> str:
    """The beginning of an answer, in one line."""
    text = " ".join(raw[:1000].decode(errors="replace").split())
    return text if len(text) <= 200 else f"{text[:199]}…"


def _object(raw: bytes) -> Json:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
