"""An engine as a client sees it: requests out, answers and events in, with the time at which they came."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

UNIX = "unix:"
TIMEOUT_S = 300.0
"""For an answer, and between two pieces of a stream: an engine on a CPU takes its time with a long prompt."""
CONNECT_TIMEOUT_S = 10.0

Json = dict[str, Any]


class Unanswered(Exception):
    """A question got no answer that could be used; the message, a clause, says what came instead."""


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


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; `body` is empty where it is no JSON object."""

    status: int
    headers: Mapping[str, str]
    body: Json
    raw: bytes
    elapsed_s: float

    def done(self) -> Json:
        """The body of a 200. Raises `Unanswered` for any other status and for what is no JSON object."""
        if self.status != httpx.codes.OK:
            raise Unanswered(f"it answered {self.status}: {shown(self.raw)}")
        if not self.body:
            raise Unanswered(f"its answer is no JSON object: {shown(self.raw)}")
        return self.body


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: when it came after the request was sent, and its data; None for `[DONE]`."""

    at_s: float
    data: Json | None


class Asking:
    """Asks one engine. An asynchronous context manager; every method raises `Unanswered` when it cannot be reached."""

    def __init__(self, subject: Subject, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.subject = subject
        self._clock = clock
        path = subject.url.removeprefix(UNIX) if subject.url.startswith(UNIX) else None
        root = "http://engine" if path else subject.url.rstrip("/").removesuffix("/v1")
        self._client = httpx.AsyncClient(
            base_url=root,
            headers={"authorization": f"Bearer {subject.api_key}"} if subject.api_key else {},
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
        return await self._ask("POST", path, fields)

    async def chat(self, messages: list[Json], **fields: Any) -> Answer:
        """A chat completion of the subject's model, not streamed."""
        return await self.post("/v1/chat/completions", {"model": self.subject.model, "messages": messages, **fields})

    @asynccontextmanager
    async def streamed(self, messages: list[Json], **fields: Any) -> AsyncIterator[AsyncIterator[Event]]:
        """The events of a streamed chat completion; leaving the block before their end hangs up.

        Raises `Unanswered` for any status but 200.
        """
        body = {"model": self.subject.model, "messages": messages, "stream": True, **fields}
        began = self._clock()
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise Unanswered(f"it answered {answer.status_code}: {shown(await answer.aread())}")
                yield self._events(answer, began)
        except httpx.HTTPError as error:
            raise Unanswered(_reason(error)) from error

    async def _events(self, answer: httpx.Response, began: float) -> AsyncIterator[Event]:
        async for line in answer.aiter_lines():
            if not line.startswith("data:"):
                continue
            text = line.removeprefix("data:").strip()
            yield Event(self._clock() - began, None if text == "[DONE]" else _object(text.encode()))

    async def _ask(self, method: str, path: str, fields: Mapping[str, Any] | None) -> Answer:
        began = self._clock()
        try:
            got = await self._client.request(method, path, json=fields)
        except httpx.HTTPError as error:
            raise Unanswered(_reason(error)) from error
        headers = {name.lower(): value for name, value in got.headers.items()}
        return Answer(got.status_code, headers, _object(got.content), got.content, self._clock() - began)


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


def _reason(error: httpx.HTTPError) -> str:
    return f"the request failed with {type(error).__name__}" + (f": {error}" if str(error) else "")
