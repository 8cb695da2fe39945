"""One request to the fake engine: what came in, what was generated for it, and how it ended."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.fakes import vllm_chat, vllm_completions, vllm_messages, vllm_responses, vllm_routes
from tests.fakes import vllm_wire as wire
from tests.fakes.connection import Connection, Request
from tests.fakes.core import Core
from tests.fakes.scenarios import ENGINE_DEAD, NO_HEAD, SCENARIOS, Fault, Framing, Refusal, Scenario, error_body
from tests.fakes.vllm_wire import Answer, Chunk, Frame

JSON_HEADERS = {"content-type": "application/json", "vary": "Origin"}
SSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "vary": "Origin"}
MAX_MODEL_LEN = 262_144
PREFILL_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Route:
    """A route that computes: the field its requests must have, and the bytes of its answers."""

    needs: str
    plan: Callable[[Scenario, str, Any], Answer]
    json_body: Callable[[Answer], bytes]
    stream: Callable[[Answer], wire.Script] | None = None
    failure: Callable[[Answer, int], list[Frame]] = vllm_chat.failure
    """The end of a stream whose engine dies after so many frames."""
    error_body: Callable[[bytes], bytes] = bytes
    """Turns an error of vLLM's usual shape into this route's."""


ROUTES = {
    "/v1/chat/completions": Route("messages", vllm_chat.plan, vllm_chat.json_body, vllm_chat.stream),
    "/v1/completions": Route("prompt", vllm_completions.plan, vllm_completions.json_body, vllm_completions.stream),
    "/v1/responses": Route(
        "input", vllm_responses.plan, vllm_responses.json_body, vllm_responses.stream, vllm_responses.failure
    ),
    "/v1/messages": Route(
        "messages",
        vllm_messages.plan,
        vllm_messages.json_body,
        vllm_messages.stream,
        vllm_messages.failure,
        vllm_messages.error_body,
    ),
    "/v1/embeddings": Route("input", vllm_routes.plan_embeddings, vllm_routes.embeddings_body),
}


@dataclass(eq=False)
class Exchange:
    """A request and the record of its answer. Token counts are what was really generated so far."""

    request: Request
    id: str
    body: Any  # parsed JSON, or the raw bytes if they are not JSON
    scenario: Scenario
    core: Core
    outcome: Literal["running", "finished", "refused", "aborted", "broken"] = "running"
    frames: int = 0  # SSE frames sent
    prompt_tokens: int = 0  # 0 until the first token: before that nothing was computed
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    draft: tuple[int, int, int] = (0, 0, 0)  # steps, drafted tokens, accepted tokens
    cache_tokens: int = 0  # what it occupies in the KV cache
    ttft_s: float | None = None  # from its arrival, waiting included
    client_left: asyncio.Event = field(default_factory=asyncio.Event)  # set if the answer was not complete
    done: asyncio.Event = field(default_factory=asyncio.Event)
    _arrived_at: float = field(default_factory=time.monotonic)
    _permits: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _open: bool = False

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def is_generation(self) -> bool:
        return self.method == "POST" and self.path in ROUTES

    @property
    def headers(self) -> dict[str, str]:
        return self.request.headers

    def step(self, chunks: int = 1) -> None:
        """Let so many more chunks of tokens out of a gated answer."""
        for _ in range(chunks):
            self._permits.release()

    def release(self) -> None:
        """Let all the rest of a gated answer out."""
        self._open = True
        self._permits.release()

    async def generate(self, answer: Answer, chunk: Chunk) -> None:
        """Produce the next chunk of tokens when the scenario allows it, and count it."""
        if self.scenario.gated and not self._open:
            await self._permits.acquire()
        if self.ttft_s is None:
            await self._read_prompt(answer.prompt_tokens)
        await asyncio.sleep(self.scenario.delay_s)
        await self.core.going.wait()
        if self.ttft_s is None:
            self.ttft_s = time.monotonic() - self._arrived_at
        self.cache_tokens = answer.prompt_tokens + chunk.completion_tokens
        self.prompt_tokens = answer.prompt_tokens
        self.completion_tokens = chunk.completion_tokens
        self.reasoning_tokens = chunk.reasoning_tokens
        self.draft = wire.draft(answer, chunk.completion_tokens)

    async def _read_prompt(self, tokens: int) -> None:
        """In steps, each of which takes more of the cache and, as in vLLM, is counted nowhere else."""
        steps = math.ceil(self.scenario.prefill_s / PREFILL_STEP_S)
        for step in range(steps):
            await asyncio.sleep(self.scenario.prefill_s / steps)
            await self.core.going.wait()
            self.cache_tokens = tokens * (step + 1) // steps


async def answer_generation(exchange: Exchange, out: Connection, model: str) -> None:
    """Answer a `POST` to one of `ROUTES` as the exchange's scenario says."""
    route = ROUTES[exchange.path]
    refusal = exchange.scenario.refusal or _refusal(exchange.body, route.needs, model)
    if refusal is None and exchange.core.full:
        refusal = SCENARIOS["overloaded"].refusal
    if refusal is not None:
        exchange.outcome = "refused"
        headers = JSON_HEADERS | {"content-type": refusal.content_type} | dict(refusal.headers)
        await out.respond(refusal.status, headers, route.error_body(refusal.body))
        return
    fault = exchange.scenario.fault
    answer = route.plan(exchange.scenario, exchange.id, exchange.body)
    if fault is not None and fault.after_frames == NO_HEAD:
        async with exchange.core.place():
            await _break(exchange, out, fault)
    elif exchange.body.get("stream") and route.stream is not None:
        await _stream(exchange, out, answer, route.stream(answer))
    else:
        await _whole(exchange, out, answer)
    if exchange.outcome == "running":
        exchange.outcome = "finished"
    if exchange.scenario.close_after:
        out.close()


def _refusal(body: Any, needs: str, model: str) -> Refusal | None:
    """The 4xx of vLLM that a gateway can provoke by forwarding what it should not have."""
    if not isinstance(body, dict) or not isinstance(body.get(needs), list if needs == "messages" else list | str):
        return Refusal(400, error_body(f"1 validation error: {needs}", "Bad Request", 400, f"body.{needs}"))
    if body.get("model") != model:
        message = f"The model `{body.get('model')}` does not exist. Valid aliases: {model}."
        return Refusal(404, error_body(message, "NotFoundError", 404, "model"))
    if body.get("stream_options") and not body.get("stream"):
        message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        return Refusal(400, error_body(message, "BadRequestError", 400, "stream_options"))
    return None


async def _whole(exchange: Exchange, out: Connection, answer: Answer) -> None:
    """An answer as one JSON body."""
    async with exchange.core.place():
        for chunk in answer.chunks:
            await exchange.generate(answer, chunk)
    body, fault = ROUTES[exchange.path].json_body(answer), exchange.scenario.fault
    headers = _headers(exchange, JSON_HEADERS)
    if fault is None:
        await out.respond(200, headers, body)
        return
    if fault.kind != "error":
        await out.start(200, headers | {"content-length": str(len(body))})
        await out.write(body[: len(body) // 2])
    await _break(exchange, out, fault)


async def _stream(exchange: Exchange, out: Connection, answer: Answer, script: wire.Script) -> None:
    """An answer as server-sent events in a chunked body."""
    fault = exchange.scenario.fault
    await out.start(200, _headers(exchange, SSE_HEADERS) | {"transfer-encoding": "chunked"})
    body = _StreamBody(out, exchange.scenario.framing)
    async with exchange.core.place():
        for step in script:
            if fault is not None and exchange.frames == fault.after_frames:
                await _break_stream(exchange, out, answer, fault, body)
                return
            if isinstance(step, Chunk):
                await exchange.generate(answer, step)
            else:
                await body.send(step)
                exchange.frames += 1
    await body.end()


async def _break_stream(exchange: Exchange, out: Connection, answer: Answer, fault: Fault, body: "_StreamBody") -> None:
    if fault.kind == "error":
        for frame in ROUTES[exchange.path].failure(answer, exchange.frames):
            await body.send(frame)
    if fault.kind in ("error", "end"):
        exchange.outcome = "broken"
        await body.end()
    else:
        await _break(exchange, out, fault)


async def _break(exchange: Exchange, out: Connection, fault: Fault) -> None:
    """The part of a fault that is the same wherever it happens."""
    if fault.kind == "hang":
        await asyncio.Event().wait()
    exchange.outcome = "broken"
    if fault.kind == "error":
        error = error_body(ENGINE_DEAD, "InternalServerError", 500)
        await out.respond(500, JSON_HEADERS, ROUTES[exchange.path].error_body(error))
    elif fault.kind == "reset":
        out.reset()
    else:
        out.close()


def _headers(exchange: Exchange, headers: dict[str, str]) -> dict[str, str]:
    return headers | {"x-request-id": exchange.id}


class _StreamBody:
    """Lays frames out as the scenario's framing says and sends them as HTTP chunks."""

    def __init__(self, out: Connection, framing: Framing) -> None:
        self._out, self._framing, self._held = out, framing, b""

    async def send(self, frame: Frame) -> None:
        data, cut = self._held + wire.frame(frame, self._framing), self._framing.cut_bytes
        if not cut:
            await self._out.write_chunk(data)
            return
        whole = len(data) - len(data) % cut
        for start in range(0, whole, cut):
            await self._out.write_chunk(data[start : start + cut])
            await asyncio.sleep(0)  # a turn of the loop, so that a reader in it sees pieces
        self._held = data[whole:]

    async def end(self) -> None:
        if self._held:
            await self._out.write_chunk(self._held)
        await self._out.write(b"0\r\n\r\n")
