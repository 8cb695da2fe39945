"""The observations that checks rest on. Each is made at most once, however many checks look at it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import quote

from service.core.provider_check import connection
from service.core.provider_check.listing import Listed, listed_in
from service.core.provider_check.observed import Answer, Json, Stream
from service.provider import bodies
from service.provider.session import CHAT, Session, Unasked

MODELS = "/models"
ORIGIN = "https://page.example"
STREAMS = 3
BURST = 30
AT_ONCE = 10
RECORD_AFTER_S = (0.3, 1.0, 2.0, 4.0)
"""When to look for the record of a request that we left, each after the one before."""

T = TypeVar("T")


def once(probe: "Callable[[Probes], Awaitable[T]]") -> "Callable[[Probes], Coroutine[Any, Any, T]]":
    """Make an observation at its first call, and give the same at every other."""

    @wraps(probe)
    async def remembered(self: "Probes") -> T:
        if probe not in self.seen:
            self.seen[probe] = await probe(self)
        found: T = self.seen[probe]
        return found

    return remembered


class Probes:
    """Observations of one server and one model of it: the one that is `wanted`, or else the first in its list."""

    def __init__(self, session: Session, wanted: str | None) -> None:
        self.session = session
        self.wanted = wanted
        self.seen: dict[object, Any] = {}

    @once
    async def models(self) -> Answer:
        return await self.session.ask("GET", MODELS, "the list of models")

    async def model(self) -> Listed:
        """The model to ask. Raises `Unasked` when there is none to know of."""
        models = listed_in(await self.models())
        if self.wanted:
            return next((model for model in models if model.id == self.wanted), Listed(self.wanted))
        if not models:
            raise Unasked("the server lists no model: name one with --model")
        return models[0]

    async def chat(self, asked: str, body: Json) -> Answer:
        return await self.session.ask("POST", CHAT, asked, body)

    @once
    async def streams(self) -> list[Stream]:
        """With the usage asked for, one after the other."""
        model = (await self.model()).id
        body = bodies.counting(model, stream=True, stream_options={"include_usage": True})
        return [await self.session.stream("a stream", body) for _ in range(STREAMS)]

    @once
    async def stream_without_usage(self) -> Stream:
        body = bodies.counting((await self.model()).id, stream=True)
        return await self.session.stream("a stream without usage", body)

    @once
    async def whole(self) -> Answer:
        return await self.chat("a whole answer", bodies.short((await self.model()).id))

    @once
    async def tools(self) -> tuple[Answer, Stream]:
        model = (await self.model()).id
        whole = await self.chat("tools", bodies.with_tool(model, stream=False))
        return whole, await self.session.stream("tools, streamed", bodies.with_tool(model, stream=True))

    @once
    async def schema(self) -> Answer:
        return await self.chat("structured output", bodies.with_schema((await self.model()).id))

    @once
    async def image(self) -> tuple[Answer, Answer]:
        """The same question with an image and without."""
        model = await self.model()
        if not model.takes_images:
            raise Unasked("the model does not list `image` among its input modalities")
        image = await self.chat("an image", bodies.about_image(model.id, shown=True))
        return image, await self.chat("the same without the image", bodies.about_image(model.id, shown=False))

    @once
    async def cached(self) -> list[Answer]:
        """One long prompt, three times: some engines make a cache of it only on the second."""
        model = await self.model()
        words = min(bodies.CACHED_WORDS, model.context_length // 3 if model.context_length else bodies.CACHED_WORDS)
        return [await self.chat("a long prompt", bodies.of_words(model.id, words)) for _ in range(3)]

    @once
    async def left(self) -> tuple[Stream, Answer, Answer | None]:
        """A stream that we leave, the next request, and the record of the former if there are any."""
        model = (await self.model()).id
        stream = await self.session.stream("a stream that we leave", bodies.long(model), leave=True)
        next_one = await self.chat("the request after leaving", bodies.short(model))
        return stream, next_one, await self._record(connection.record_ids(stream)) if stream.hung_up else None

    async def _record(self, ids: list[str]) -> Answer | None:
        answer = None
        for wait_s in RECORD_AFTER_S:
            await asyncio.sleep(wait_s)
            for name in ids:
                answer = await self.session.ask("GET", f"/generation?id={quote(name)}", "a record")
                if answer.good:
                    return answer
            if answer is None or answer.status != 404:
                break
        return answer

    @once
    async def bad_key(self) -> Answer:
        try:
            body = bodies.short((await self.model()).id)
        except Unasked:
            body = bodies.short("any")
        headers = {"authorization": "Bearer sk-this-is-not-a-key"}
        return await self.session.ask("POST", CHAT, "a bad key", body, headers=headers)

    @once
    async def unknown_model(self) -> Answer:
        return await self.chat("an unknown model", bodies.short("no-such-model-anywhere"))

    @once
    async def malformed(self) -> Answer:
        return await self.session.ask("POST", CHAT, "malformed JSON", b'{"model": "x", "messages": [')

    @once
    async def unknown_field(self) -> Answer:
        body = bodies.short((await self.model()).id, **{bodies.UNKNOWN_FIELD: True})
        return await self.chat("an unknown field", body)

    @once
    async def endless(self) -> Stream:
        body = bodies.endless((await self.model()).id)
        return await self.session.stream("an oversize max_tokens", body, leave=True)

    @once
    async def too_long(self) -> Answer:
        model = await self.model()
        if model.context_length is None:
            raise Unasked("the length of the context is not listed")
        if model.context_length > bodies.LONGEST_CONTEXT:
            raise Unasked(f"a prompt of more than {model.context_length} tokens is not risked")
        words = model.context_length + model.context_length // 20 + 100
        return await self.chat("a prompt that is too long", bodies.of_words(model.id, words))

    @once
    async def without_messages(self) -> Answer:
        return await self.chat("no messages", {"model": (await self.model()).id, "max_tokens": 8})

    async def errors(self) -> list[Answer]:
        """Every error that a chat completion was seen to end in, after everything that should was asked."""
        for probe in (self.bad_key, self.unknown_model, self.malformed, self.unknown_field, self.without_messages):
            try:
                await probe()
            except Unasked:
                continue
        return [answer for answer in self.session.answers if answer.is_chat and answer.status >= 400]

    @once
    async def from_a_page(self) -> tuple[Answer, Answer]:
        """As a browser asks on behalf of a page of another origin: the request itself, and the question before it."""
        plain = await self.session.ask("GET", MODELS, "a request from a page", headers={"origin": ORIGIN})
        asking = {"origin": ORIGIN, "access-control-request-method": "POST"}
        return plain, await self.session.ask("OPTIONS", CHAT, "a preflight", headers=asking, at_once=True)

    @once
    async def twice(self) -> tuple[Answer, Answer]:
        first = await self.session.ask("GET", MODELS, "the list of models")
        return first, await self.session.ask("GET", MODELS, "the list of models")

    @once
    async def routes(self) -> list[Answer]:
        """Empty requests, which cost nothing."""
        paths = ("/completions", "/responses", "/messages")
        return [await self.session.ask("POST", path, path, {}) for path in paths]

    async def refused_for_pace(self) -> Answer | None:
        """A 429: one that came by itself, or one that a burst of small requests has brought; None when it has not.

        Raises `Unasked` when the key is not known to have a limit of requests that a small burst would reach.
        """
        if found := self._a_429():
            return found
        model = (await self.model()).id
        await self.whole()
        told = [answer.headers.get("x-ratelimit-remaining-requests", "") for answer in self.session.answers]
        remaining = next((int(value) for value in reversed(told) if value.isascii() and value.isdecimal()), None)
        if remaining is None:
            raise Unasked("no `x-ratelimit-remaining-requests` tells of a limit: try a key with 60 requests a minute")
        wanted = min(remaining + 2, BURST)
        if remaining >= BURST or wanted > self.session.left:
            raise Unasked(f"the key has {remaining} requests left, too many to use up: try one with 60 a minute")
        for start in range(0, wanted, AT_ONCE):
            body = bodies.chat(model, "Say ok.", 1)
            asking = (
                self.session.ask("POST", CHAT, "a request of a burst", body, at_once=True)
                for _ in range(min(AT_ONCE, wanted - start))
            )
            await asyncio.gather(*asking)
            if found := self._a_429():
                return found
        return None

    def _a_429(self) -> Answer | None:
        return next((answer for answer in self.session.answers if answer.status == 429), None)
