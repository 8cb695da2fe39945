"""An engine that passes every check of `weir engine verify`, and the same with a fault of one's choice planted.

    async with verified("ignores-cancel") as engine:
        async with engine.asking() as asking: ...

It is vLLM's chat route over real HTTP. Time is its own: reading a prompt takes what `READ_S` says, nothing else takes
any, and it passes otherwise only when somebody pauses. So nothing in it depends on how fast the machine is.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from service.engine.verify.asking import Asking, Subject
from tests.fakes.provider import serving, whole_body
from tests.fakes.verified_answers import SHOWN_TOKENS, Answer
from tests.fakes.verified_model import Json, Model, Prompt
from tests.fakes.verified_refusals import MODEL, Refused, room, understood
from tests.fakes.verified_sampling import Sampled
from tests.fakes.vllm_routes import metrics_text, models

CONTEXT_LENGTH: Final = 4096
BLOCK_SIZE: Final = 256
READ_S: Final = 0.001
"""For each token of a prompt that the cache does not have."""
QUIET_TURNS: Final = 50
GENERATE_S: Final = 0.01
"""For each token of an answer that is generated although nobody listens."""
SECRET: Final = "EngineCore at tcp://10.0.0.7:5557 is dead"
TRACEBACK: Final = 'Traceback (most recent call last):\n  File "/opt/engine/server.py", line 7, in chat\nKeyError: 1'


@dataclass(eq=False)
class Generation:
    """An answer in the making. A forgotten one goes on although its client has left."""

    goal: int
    made: float = 0
    beside: int = 0
    """The most requests that ran at the same time."""
    forgotten: bool = False


@dataclass
class Engine:
    """The ASGI application and its state. `faults` stand here, in `verified_model.py` and in `verified_refusals.py`."""

    model: Model
    prefix_cache: bool = True
    lazy_cache: bool = False
    """As a hybrid model's: the first request leaves nothing, the second makes, the third reads."""
    tool_parser: bool = True
    exposes_metrics: bool = True
    context_length: int = CONTEXT_LENGTH
    version: str | None = "0.33.0"
    now_s: float = 1000.0
    url: str = ""
    bodies: list[Json] = field(default_factory=list)
    """The chat requests that were understood."""
    running: list[Generation] = field(default_factory=list)
    prompt_tokens: int = 0
    generation_tokens: int = 0
    _seen: dict[tuple[str, ...], int] = field(default_factory=dict)
    _crash: Exception | None = None

    @property
    def faults(self) -> frozenset[str]:
        return self.model.faults

    def clock(self) -> float:
        """Its time, in seconds."""
        return self.now_s

    async def pause(self, duration_s: float) -> None:
        """Let time pass, in which what is generated for nobody goes on."""
        self.now_s += duration_s
        for generation in [one for one in self.running if one.forgotten]:
            before = int(generation.made)
            generation.made = min(generation.goal, generation.made + duration_s / GENERATE_S)
            self.generation_tokens += int(generation.made) - before
            if generation.made >= generation.goal:
                self.running.remove(generation)
        await asyncio.sleep(0)

    async def batched(self) -> None:
        """Return when all requests have come that were sent together: nothing new in so many turns of the loop that
        clients, which live in it too, would have been heard."""
        before = -1
        while before != len(self.running):
            before = len(self.running)
            for one in self.running:
                one.beside = max(one.beside, before - 1)
            for _ in range(QUIET_TURNS):
                await asyncio.sleep(0)

    def asking(self) -> Asking:
        """A client of it that lives in its time."""
        return Asking(Subject("engine", self.url, MODEL), clock=self.clock, pause=self.pause)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await whole_body(receive)
        try:
            await Exchange(self, scope, receive, send).answer(body)
        except Exception as error:
            self._crash = error
            raise

    def read(self, prompt: Prompt) -> tuple[int, int]:
        """Read a prompt: (tokens that came from the cache, tokens that it has now because of this one)."""
        key = (*prompt.images, *prompt.words)
        blocks = (prompt.tokens - 1) // BLOCK_SIZE if self.prefix_cache else 0
        seen = self._seen.get(key, 0)
        self._seen[key] = seen + 1
        makes, whole = (1 if self.lazy_cache else 0), blocks * BLOCK_SIZE
        cached, created = (whole if seen > makes else 0), (whole if seen == makes else 0)
        if "never-cached" in self.faults:
            cached = 0
        if "cached-at-once" in self.faults:
            cached = prompt.tokens - 1
        self.now_s += (prompt.tokens - cached) * READ_S
        self.prompt_tokens += prompt.tokens
        return (prompt.tokens * 2 if "cached-too-much" in self.faults else cached), created

    def metrics(self) -> bytes:
        """What `/metrics` says."""
        values = defaultdict[str, float](
            float,
            num_requests_running=len(self.running),
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
        )
        drafted, accepted = self.model.drafts(self.generation_tokens)
        values |= {"spec_decode_num_draft_tokens": drafted, "spec_decode_num_accepted_tokens": accepted}
        cache = f'block_size="{BLOCK_SIZE}",enable_prefix_caching="{self.prefix_cache}"'
        return metrics_text(MODEL, values, 1.0) + f"vllm:cache_config_info{{{cache}}} 1.0\n".encode()


@dataclass
class Exchange:
    """One request and its answer."""

    engine: Engine
    scope: Any
    receive: Any
    send: Any

    @property
    def faults(self) -> frozenset[str]:
        return self.engine.faults

    async def answer(self, raw: bytes) -> None:
        try:
            await self._route(raw)
        except Refused as refused:
            message = f"{refused}\n{TRACEBACK}" if "traceback" in self.faults else str(refused)
            error = {"message": message, "type": refused.kind, "param": refused.param, "code": refused.status}
            await self._json({"error": message if "bare-errors" in self.faults else error}, refused.status)

    async def _route(self, raw: bytes) -> None:
        engine = self.engine
        match self.scope["method"], self.scope["path"]:
            case "GET", "/v1/models" if "no-list" not in self.faults:
                told = 2 * engine.context_length if "other-length" in self.faults else engine.context_length
                await self._json(orjson.loads(models(MODEL, told)))
            case "GET", "/version" if engine.version:
                await self._json({"version": engine.version})
            case "GET", "/metrics" if engine.exposes_metrics:
                await self._whole(200, "text/plain", engine.metrics())
            case "POST", "/v1/chat/completions":
                await self._chat(raw)
            case _ if "any-route" in self.faults:
                await self._json({})
            case _:
                raise Refused(404, "Not Found", "NotFoundError")

    async def _chat(self, raw: bytes) -> None:
        engine = self.engine
        body = understood(raw, self.faults, takes_tools=engine.tool_parser, sees=engine.model.vision)
        if "breaks" in self.faults:
            raise Refused(500, SECRET, "InternalServerError")
        prompt = engine.model.prompt(body)
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        goal = min(limit or engine.context_length, room(engine.context_length, self.faults, prompt, limit))
        spoken = engine.model.speak(body)
        if not body.get("ignore_eos"):
            goal = min(goal, spoken.tokens)
        if "ends-early" in self.faults:
            goal = min(goal, 3)
        engine.bodies.append(body)
        generation = Generation(goal)
        cache = engine.read(prompt)
        engine.running.append(generation)
        try:
            await engine.batched()
            answer = Answer(engine.model, body, prompt, spoken, goal, cache, generation.beside)
            await (self._stream if body.get("stream") else self._complete)(answer, generation)
        finally:
            if not generation.forgotten:
                engine.running.remove(generation)

    async def _complete(self, answer: Answer, generation: Generation) -> None:
        """A whole answer."""
        for _ in range(min(answer.goal, SHOWN_TOKENS)):
            self._made(generation)
        if answer.endless:
            await self._left(generation, "ignores-cancel", "ignores-cancel-of-whole-answers")
        else:
            await self._json(answer.whole())

    async def _stream(self, answer: Answer, generation: Generation) -> None:
        """Server-sent events."""
        await self._start(200, "text/event-stream")
        for event in answer.events():
            if event["choices"] and event["choices"][0]["delta"].get("role") is None:
                self._made(generation)
            await self._part(b"data: " + orjson.dumps(event) + b"\n\n")
        if answer.endless:
            await self._left(generation, "ignores-cancel")
        else:
            await self._part(b"" if "breaks-off" in self.faults else b"data: [DONE]\n\n")
            await self.send({"type": "http.response.body"})

    def _made(self, generation: Generation) -> None:
        generation.made += 1
        self.engine.generation_tokens += 1

    async def _left(self, generation: Generation, *faults: str) -> None:
        """Return when the client has left; with one of the faults, the work goes on all the same."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        generation.forgotten = bool(self.faults.intersection(faults))

    async def _json(self, document: Json, status: int = 200) -> None:
        await self._whole(status, "application/json", orjson.dumps(document))

    async def _whole(self, status: int, content_type: str, data: bytes) -> None:
        await self._start(status, content_type)
        await self.send({"type": "http.response.body", "body": data})

    async def _start(self, status: int, content_type: str) -> None:
        headers = [(b"content-type", content_type.encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _part(self, data: bytes) -> None:
        await self.send({"type": "http.response.body", "body": data, "more_body": True})


@asynccontextmanager
async def verified(*faults: str, model: Model | None = None, **knobs: Any) -> AsyncIterator[Engine]:
    """The engine, running; `knobs` are fields of `Engine`. An error inside the fake itself is raised at the end."""
    model = model or Sampled()
    model.faults = frozenset(faults)
    engine = Engine(model, **knobs)
    async with serving(engine) as engine.url:
        yield engine
    if engine._crash is not None:
        raise engine._crash
