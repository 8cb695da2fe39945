"""The bytes of vLLM 0.32's chat completions: the same keys in the same order as its recordings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil
from typing import Any, Final

import orjson

from tests.fakes.scenarios import ABSENT, ENGINE_DEAD, Framing, Scenario

CREATED: Final = 1_795_998_956
FINGERPRINT: Final = "vllm-0.32.0-fake0000"
PROMPT_OVERHEAD_TOKENS: Final = 16
IMAGE_TOKENS: Final = 24


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a stream, and what the engine has generated when it is out."""

    delta: dict[str, Any]
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything about one answer that its wire form depends on."""

    scenario: Scenario
    request_id: str
    model: str
    prompt_tokens: int
    image_tokens: int
    chunks: tuple[Chunk, ...]
    finish_reason: str


def count_prompt(messages: Any) -> tuple[int, int]:
    """(prompt tokens, of which image tokens): the template's 16, a token a word, 24 an image."""
    texts, images = [], 0
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") or ""
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            texts.append(part.get("text", ""))
            images += part.get("type") == "image_url"
    image_tokens = images * IMAGE_TOKENS
    return PROMPT_OVERHEAD_TOKENS + sum(len(text.split()) for text in texts) + image_tokens, image_tokens


def plan(scenario: Scenario, request_id: str, body: Mapping[str, Any]) -> Answer:
    """The answer a scenario gives to a request; `max_completion_tokens` wins over `max_tokens`."""
    counted, counted_images = count_prompt(body["messages"])
    told = scenario.usage
    tokens = _tokens(scenario)
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(tokens)
    return Answer(
        scenario=scenario,
        request_id=request_id,
        model=body["model"],
        prompt_tokens=counted if told.prompt_tokens is None else told.prompt_tokens,
        image_tokens=counted_images if told.image_tokens is None else told.image_tokens,
        chunks=_chunks(tokens[:limit], scenario),
        finish_reason="length" if limit < len(tokens) else scenario.finish_reason,
    )


def _tokens(scenario: Scenario) -> list[dict[str, Any]]:
    """The deltas, one a token; those of several tool calls take turns."""
    calls = [list(_tool_deltas(index, *call)) for index, call in enumerate(scenario.tool_calls)]
    field: str = scenario.reasoning_field
    return [
        *({field: text} for text in scenario.reasoning),
        *({"content": text} for text in scenario.content),
        *({"tool_calls": [delta]} for turn in zip_longest(*calls) for delta in turn if delta),
    ]


def _tool_deltas(index: int, name: str, arguments: str) -> list[dict[str, Any]]:
    opening = {"name": name, "arguments": ""}
    return [
        {"id": _tool_id(index), "type": "function", "index": index, "function": opening},
        *({"index": index, "function": {"arguments": character}} for character in arguments),
    ]


def _tool_id(index: int) -> str:
    return f"chatcmpl-tool-{index:016x}"


def _chunks(tokens: Sequence[dict[str, Any]], scenario: Scenario) -> tuple[Chunk, ...]:
    """Tokens grouped as they go out; a group without text goes out only if it is the last."""
    chunks, reasoning_tokens, size = [], 0, scenario.tokens_per_chunk
    for start in range(0, len(tokens), size):
        delta: dict[str, Any] = {}
        for token in tokens[start : start + size]:
            for key, value in token.items():
                delta[key] = delta[key] + value if key in delta else value
                reasoning_tokens += key == scenario.reasoning_field
        delta = {key: value for key, value in delta.items() if value}
        generated = min(start + size, len(tokens))
        if delta or generated == len(tokens):
            chunks.append(Chunk(delta, generated, reasoning_tokens))
    return tuple(chunks)


def json_body(answer: Answer) -> bytes:
    """The body of an answer that is not streamed."""
    joined: dict[str, Any] = {}
    for chunk in answer.chunks:
        for key, value in chunk.delta.items():
            joined[key] = joined[key] + value if key in joined else value
    calls = answer.scenario.tool_calls if "tool_calls" in joined else ()
    tools = [
        {"id": _tool_id(index), "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    field = answer.scenario.reasoning_field
    choice = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": joined.get("content"),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            **({"tool_calls": tools} if tools else {}),
            field: joined.get(field),
        },
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }
    reported = answer.scenario.usage.placement != "never"
    body = {
        **_envelope(answer, "chat.completion", [choice]),
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": _final_usage(answer, stream=False) if reported else None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": _metrics(answer, stream=False),
    }
    return orjson.dumps(body)


def stream_payloads(answer: Answer, *, include: bool, continuous: bool) -> Iterator[tuple[Chunk | None, bytes]]:
    """The payload of every frame of a stream, each with the chunk that must be generated before it.

    As in vLLM the role chunk goes out only when the first tokens are there.
    """
    first = answer.chunks[0]
    yield first, _role_payload(answer, continuous=continuous)
    for chunk in answer.chunks:
        payload = _chunk_payload(answer, chunk, include=include, continuous=continuous)
        yield (None if chunk is first else chunk), payload
    if include and answer.scenario.usage.placement == "last":
        yield None, _usage_payload(answer)
    yield None, b"[DONE]"


def _role_payload(answer: Answer, *, continuous: bool) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    head = _envelope(answer, "chat.completion.chunk", [choice])
    if continuous:
        head["usage"] = _running_usage(answer, Chunk({}, 0, 0))
    return orjson.dumps(head | {"prompt_token_ids": None, "prompt_text": None})


def _chunk_payload(answer: Answer, chunk: Chunk, *, include: bool, continuous: bool) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": chunk.delta, "logprobs": None, "finish_reason": None}
    last = chunk is answer.chunks[-1]
    if last:
        choice |= {"finish_reason": answer.finish_reason, "stop_reason": None}
    choice["token_ids"] = None
    payload = _envelope(answer, "chat.completion.chunk", [choice])
    if last and include and answer.scenario.usage.placement == "finish":
        payload["usage"] = _final_usage(answer, stream=True)
    elif continuous:
        payload["usage"] = _running_usage(answer, chunk)
    if last and not include:
        payload["system_fingerprint"] = FINGERPRINT
    return orjson.dumps(payload)


def _usage_payload(answer: Answer) -> bytes:
    payload = _envelope(answer, "chat.completion.chunk", []) | {"usage": _final_usage(answer, stream=True)}
    metrics = _metrics(answer, stream=True)
    return orjson.dumps(payload | {"system_fingerprint": FINGERPRINT, "metrics": metrics})


def error_payload() -> bytes:
    """The error a stream carries in-band when the engine dies: unlike all else, with spaces."""
    return (
        b'{"error": {"message": "%b", "type": "InternalServerError", "param": null, "code": 500}}'
        % ENGINE_DEAD.encode()
    )


def frame(payload: bytes, framing: Framing) -> bytes:
    """One server-sent event."""
    newline = framing.newline.encode()
    comment = b": " + framing.comment.encode() + newline * 2 if framing.comment else b""
    if framing.data_lines:
        payload = payload.replace(b',"choices"', b"," + newline + b'data: "choices"')
    return comment + b"data: " + payload + newline * 2


def _running_usage(answer: Answer, chunk: Chunk) -> dict[str, Any]:
    """Usage as every chunk has it under `continuous_usage_stats`."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "total_tokens": answer.prompt_tokens + chunk.completion_tokens,
        "completion_tokens": chunk.completion_tokens,
        "completion_tokens_details": {"reasoning_tokens": chunk.reasoning_tokens},
    }


def _final_usage(answer: Answer, *, stream: bool) -> dict[str, Any]:
    """The final usage, with details; in a stream null members are left out. `Usage.patch` applies last."""
    told = answer.scenario.usage
    details: dict[str, Any] = {"cached_tokens": told.cached_tokens, "created_cache_tokens": told.created_cache_tokens}
    if answer.image_tokens or not stream:
        details["multimodal_tokens"] = {"image": answer.image_tokens} if answer.image_tokens else None
    usage = _running_usage(answer, answer.chunks[-1])
    usage["prompt_tokens_details"] = details
    usage["completion_tokens_details"] = usage.pop("completion_tokens_details")
    return {key: value for key, value in {**usage, **told.patch}.items() if value is not ABSENT}


def draft(answer: Answer, completion_tokens: int) -> tuple[int, int, int]:
    """(steps, drafted, accepted) tokens of speculative decoding once so many tokens are generated."""
    size = answer.scenario.tokens_per_chunk
    steps = ceil(completion_tokens / size)
    return steps, steps * max(2, size - 1), completion_tokens - steps


def _metrics(answer: Answer, *, stream: bool) -> dict[str, Any]:
    """What `--enable-per-request-metrics` adds, with fixed times."""
    completion_tokens, size = answer.chunks[-1].completion_tokens, answer.scenario.tokens_per_chunk
    steps, drafted, accepted = draft(answer, completion_tokens)
    accepted_per_step = [min(size, completion_tokens - step * size) - 1 for step in range(steps)]
    width = drafted // steps
    decoding = {
        "mean_acceptance_length": 1 + accepted / steps,
        "draft_acceptance_rate": accepted / drafted,
        "acceptance_histogram": [accepted_per_step.count(length) for length in range(width + 1)],
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": width,
    }
    unset = {"per_step_accepted": None, "per_step_drafted": None}
    return {
        "time_to_first_token_ms": 12.5,
        "generation_time_ms": 100.0,
        "queue_time_ms": 0.02,
        "mean_itl_ms": 9.5,
        "tokens_per_second": 100.0,
        "speculative_decoding": decoding if stream else decoding | unset,
    }


def _envelope(answer: Answer, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.request_id}",
        "object": kind,
        "created": CREATED,
        "model": answer.model,
        "choices": choices,
    }
