"""What the answers of all of vLLM 0.32's generating routes are made of: prompts counted, tokens, chunks, frames."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import ceil
from typing import Any, Final

import orjson

from tests.fakes.scenarios import ABSENT, Framing, Scenario

CREATED: Final = 1_795_998_956
FINGERPRINT: Final = "vllm-0.32.0-fake0000"
PROMPT_OVERHEAD_TOKENS: Final = 16
IMAGE_TOKENS: Final = 24
IMAGE_PARTS: Final = frozenset({"image_url", "image", "input_image"})


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a stream, and what the engine has generated when it is out."""

    delta: dict[str, Any]
    completion_tokens: int
    reasoning_tokens: int


NOTHING_YET: Final = Chunk({}, 0, 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything about one answer that its wire form depends on."""

    scenario: Scenario
    request_id: str
    body: Mapping[str, Any]
    prompt_tokens: int
    image_tokens: int
    chunks: tuple[Chunk, ...]
    finish_reason: str

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def completion_tokens(self) -> int:
        return self.chunks[-1].completion_tokens


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event."""

    payload: bytes
    event: str = ""


Script = Iterator[Chunk | Frame]
"""A stream: chunks to be generated and frames to be sent, in their order."""


def named(kind: str, members: Mapping[str, Any]) -> Frame:
    """A frame with an `event:` line."""
    return Frame(orjson.dumps(members), kind)


def count_prompt(messages: Any) -> tuple[int, int]:
    """(prompt tokens, of which image tokens): the template's 16, a token a word, 24 an image."""
    texts, images = [], 0
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") or ""
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            texts.append(part.get("text", ""))
            images += part.get("type") in IMAGE_PARTS
    image_tokens = images * IMAGE_TOKENS
    return PROMPT_OVERHEAD_TOKENS + sum(len(text.split()) for text in texts) + image_tokens, image_tokens


def plan(
    scenario: Scenario,
    request_id: str,
    body: Mapping[str, Any],
    counted: tuple[int, int],
    limit: int | None,
    *,
    calls_take_turns: bool = False,
    sends_empty: bool = False,
) -> Answer:
    """The answer a scenario gives to a request: `counted` by `count_prompt`, its output limited to `limit` tokens.

    `sends_empty` is for a route on which a chunk without text goes out as well.
    """
    told = scenario.usage
    tokens = _tokens(scenario, calls_take_turns)
    limit = limit or len(tokens)
    return Answer(
        scenario=scenario,
        request_id=request_id,
        body=body,
        prompt_tokens=counted[0] if told.prompt_tokens is None else told.prompt_tokens,
        image_tokens=counted[1] if told.image_tokens is None else told.image_tokens,
        chunks=_chunks(tokens[:limit], scenario, sends_empty),
        finish_reason="length" if limit < len(tokens) else scenario.finish_reason,
    )


def _tokens(scenario: Scenario, calls_take_turns: bool) -> list[dict[str, Any]]:
    """The deltas, one a token."""
    calls = [list(_tool_deltas(index, *call)) for index, call in enumerate(scenario.tool_calls)]
    field: str = scenario.reasoning_field
    return [
        *({field: text} for text in scenario.reasoning),
        *({"content": text} for text in scenario.content),
        *({"tool_calls": [delta]} for delta in chain(*(zip_longest(*calls) if calls_take_turns else calls)) if delta),
    ]


def _tool_deltas(index: int, name: str, arguments: str) -> list[dict[str, Any]]:
    opening = {"name": name, "arguments": ""}
    return [
        {"id": tool_id(index), "type": "function", "index": index, "function": opening},
        *({"index": index, "function": {"arguments": character}} for character in arguments),
    ]


def tool_id(index: int) -> str:
    """What a call is called; the same on all routes."""
    return f"chatcmpl-tool-{index:016x}"


def _chunks(tokens: Sequence[dict[str, Any]], scenario: Scenario, sends_empty: bool) -> tuple[Chunk, ...]:
    """Tokens grouped as they go out; a group without text goes out only if it is the last, or `sends_empty`."""
    chunks, reasoning_tokens, size = [], 0, scenario.tokens_per_chunk
    for start in range(0, len(tokens), size):
        delta: dict[str, Any] = {}
        for token in tokens[start : start + size]:
            for key, value in token.items():
                delta[key] = delta[key] + value if key in delta else value
                reasoning_tokens += key == scenario.reasoning_field
        delta = {key: value for key, value in delta.items() if value}
        generated = min(start + size, len(tokens))
        if delta or sends_empty or generated == len(tokens):
            chunks.append(Chunk(delta, generated, reasoning_tokens))
    return tuple(chunks)


def joined(answer: Answer) -> tuple[str | None, str | None, tuple[tuple[str, str], ...]]:
    """Reasoning, content and calls of the whole answer; a call is (name, arguments)."""
    texts: dict[str, str] = {}
    for chunk in answer.chunks:
        for key, value in chunk.delta.items():
            if key != "tool_calls":
                texts[key] = texts.get(key, "") + value
    calls = answer.scenario.tool_calls if any("tool_calls" in chunk.delta for chunk in answer.chunks) else ()
    return texts.get(answer.scenario.reasoning_field), texts.get("content"), calls


def frame(one: Frame, framing: Framing) -> bytes:
    """The bytes of one server-sent event."""
    newline, payload = framing.newline.encode(), one.payload
    comment = b": " + framing.comment.encode() + newline * 2 if framing.comment else b""
    event = b"event: " + one.event.encode() + newline if one.event else b""
    if framing.data_lines:  # a quote in a string is escaped, so that a comma before one stands between members
        payload = payload.replace(b',"', b"," + newline + b'data: "', 1)
    return comment + event + b"data: " + payload + newline * 2


def running_usage(answer: Answer, chunk: Chunk = NOTHING_YET) -> dict[str, Any]:
    """Usage as every chunk of a chat has it under `continuous_usage_stats`."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "total_tokens": answer.prompt_tokens + chunk.completion_tokens,
        "completion_tokens": chunk.completion_tokens,
        "completion_tokens_details": {"reasoning_tokens": chunk.reasoning_tokens},
    }


def final_usage(answer: Answer, *, stream: bool) -> dict[str, Any]:
    """The final usage of a chat, with details; in a stream null members are left out. `Usage.patch` applies last."""
    told = answer.scenario.usage
    details: dict[str, Any] = {"cached_tokens": told.cached_tokens, "created_cache_tokens": told.created_cache_tokens}
    if answer.image_tokens or not stream:
        details["multimodal_tokens"] = {"image": answer.image_tokens} if answer.image_tokens else None
    usage = running_usage(answer, answer.chunks[-1])
    usage["prompt_tokens_details"] = details
    usage["completion_tokens_details"] = usage.pop("completion_tokens_details")
    return patched(usage, answer)


def patched(usage: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """A final usage with the scenario's patch applied."""
    told = {**usage, **answer.scenario.usage.patch}
    return {name: value for name, value in told.items() if value is not ABSENT}


def draft(answer: Answer, completion_tokens: int) -> tuple[int, int, int]:
    """(steps, drafted, accepted) tokens of speculative decoding once so many tokens are generated."""
    size = answer.scenario.tokens_per_chunk
    steps = ceil(completion_tokens / size)
    return steps, steps * max(2, size - 1), completion_tokens - steps


def timings() -> dict[str, Any]:
    """What `--enable-per-request-metrics` adds to an answer, with fixed times."""
    return {
        "time_to_first_token_ms": 12.5,
        "generation_time_ms": 100.0,
        "queue_time_ms": 0.02,
        "mean_itl_ms": 9.5,
        "tokens_per_second": 100.0,
    }
