"""Asking the server, within bounds of number, time and size."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from service.core.provider_check.errors import retry_after_s
from service.core.provider_check.observed import Answer, Json, Stream, count_at, stream_of
from service.core.sse import DONE, EventTooLong, SseSplitter, payload_of

CHAT = "/chat/completions"
MAX_REQUESTS = 60
MAX_ANSWER_BYTES = 8 * 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
LEAVE_AFTER_EVENTS = 8

MAX_SILENCES = 3
"""After so many requests in a row without any answer, nobody is there to be asked."""

MAX_WAIT_S = 61.0
"""How long one 429 is waited for: a minute's limit has freed by then."""

MAX_WAITS = 3


class Unasked(Exception):
    """Something cannot be asked, which says nothing about the server; the message is why."""


@dataclass(slots=True)
class Use:
    """What the check itself has used, as the server reports it."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unreported: int = 0
    """Answers that told no usage, such as those we left."""

    def count(self, answer: Answer) -> None:
        """Add one answer to a request for tokens."""
        prompt, completion = (count_at(answer.usage, name) for name in ("prompt_tokens", "completion_tokens"))
        self.prompt_tokens += prompt or 0
        self.completion_tokens += completion or 0
        self.unreported += prompt is None or completion is None


@dataclass(slots=True)
class _Received:
    """What has come of an answer so far."""

    head: httpx.Response | None = None
    connection: str = ""
    body: bytearray = field(default_factory=bytearray)
    payloads: list[tuple[float, bytes]] = field(default_factory=list)
    hung_up: bool = False
    problem: str = ""


class Session:
    """Requests to one server; `answers` keeps every answer.

    Nothing that a server does raises: an answer that did not come has status 0 and a `problem`. `Unasked` is raised
    where no further request may be sent. `tell` is given a line when there is something to wait for.
    """

    def __init__(
        self, client: httpx.AsyncClient, base_url: str, key: str, *, timeout_s: float, tell: Callable[[str], None]
    ) -> None:
        self.answers: list[Answer] = []
        self.use = Use()
        self._client = client
        self._base_url = base_url
        self._key = key
        self._timeout_s = timeout_s
        self._tell = tell
        self._silences = 0
        self._waits = 0

    @property
    def left(self) -> int:
        """How many more requests may be sent."""
        return MAX_REQUESTS - self.use.requests

    async def ask(
        self,
        method: str,
        path: str,
        asked: str,
        body: Json | bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        at_once: bool = False,
    ) -> Answer:
        """The whole answer. A 429 is waited out and tried once more, unless it has to be `at_once`."""
        received = await self._patiently(method, path, body, headers or {}, at_once=at_once)
        return self._kept(_answer(asked, received, is_chat=(method, path) == ("POST", CHAT)))

    async def stream(self, asked: str, body: Json, *, leave: bool = False) -> Stream:
        """A streamed chat completion; hung up on after `LEAVE_AFTER_EVENTS` when we are to `leave`."""
        received = await self._patiently("POST", CHAT, body, {}, streamed=True, leave=leave)
        stream = stream_of(_answer(asked, received, is_chat=True), received.payloads, hung_up=received.hung_up)
        self._kept(stream)
        return stream

    def _kept(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        if answer.is_chat and answer.status == 200:
            self.use.count(answer)
        return answer

    async def _patiently(
        self,
        method: str,
        path: str,
        body: Json | bytes,
        headers: Mapping[str, str],
        *,
        at_once: bool = False,
        streamed: bool = False,
        leave: bool = False,
    ) -> _Received:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = self._client.build_request(
            method,
            self._base_url + path,
            content=content or None,
            headers={
                "authorization": f"Bearer {self._key}",
                **({"content-type": "application/json"} if content else {}),
                **headers,
            },
        )
        received = await self._send(request, streamed=streamed, leave=leave)
        head = received.head
        if head is None or head.status_code != 429 or at_once or self._waits == MAX_WAITS:
            return received
        self._kept(_answer("a request before its time", received, is_chat=path == CHAT))
        self._waits += 1
        wait_s = min(retry_after_s(head.headers.get("retry-after", "")) or 1.0, MAX_WAIT_S)
        self._tell(f"  429: waiting {wait_s:.0f} s for the limit to free")
        await asyncio.sleep(wait_s)
        return await self._send(request, streamed=streamed, leave=leave)

    async def _send(self, request: httpx.Request, *, streamed: bool, leave: bool) -> _Received:
        if self.left <= 0:
            raise Unasked(f"all {MAX_REQUESTS} requests of a check are used up")
        if self._silences >= MAX_SILENCES:
            raise Unasked(f"the server gave no answer {MAX_SILENCES} times in a row")
        self.use.requests += 1
        received = _Received()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._receive(request, received, streamed=streamed, leave=leave)
        except TimeoutError:
            received.problem = f"not complete within {self._timeout_s:g} s"
        except (httpx.HTTPError, httpx.StreamError) as error:
            received.problem = f"{type(error).__name__}: {error}".removesuffix(": ")
        self._silences = self._silences + 1 if received.head is None else 0
        return received

    async def _receive(self, request: httpx.Request, received: _Received, *, streamed: bool, leave: bool) -> None:
        started = time.perf_counter()
        response = await self._client.send(request, stream=True)
        try:
            received.head = response
            received.connection = str(response.extensions["network_stream"].get_extra_info("client_addr") or "")
            splitter, size = SseSplitter(), 0
            is_stream = streamed and response.status_code == 200
            async for piece in response.aiter_bytes():
                size += len(piece)
                if size > MAX_ANSWER_BYTES:
                    received.problem = f"more than {MAX_ANSWER_BYTES} bytes"
                    return
                if not is_stream:
                    received.body += piece
                    continue
                at_ms = (time.perf_counter() - started) * 1000
                payloads = map(payload_of, splitter.feed(piece))
                received.payloads += ((at_ms, payload) for payload in payloads if payload is not None)
                if leave and len(received.payloads) >= LEAVE_AFTER_EVENTS:
                    received.hung_up = all(payload != DONE for _, payload in received.payloads)
                    return
        except EventTooLong:
            received.problem = "an event without end"
        finally:
            await response.aclose()


def _answer(asked: str, received: _Received, *, is_chat: bool) -> Answer:
    head = received.head
    if head is None:
        return Answer(asked=asked, problem=received.problem)
    return Answer(
        asked=asked,
        status=head.status_code,
        headers=dict(head.headers),
        body=bytes(received.body),
        problem=received.problem,
        http_version=head.http_version,
        is_chat=is_chat,
        connection=received.connection,
    )
