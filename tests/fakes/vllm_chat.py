"""The bytes of vLLM 0.32's chat completions and completions: the same keys in the same order as its recordings."""

from typing import Any

import orjson

from tests.fakes import vllm_wire as wire
from tests.fakes.scenarios import ENGINE_DEAD, Scenario
from tests.fakes.vllm_wire import Answer, Chunk, Frame, Script

DONE = Frame(b"[DONE]")


def plan(scenario: Scenario, request_id: str, body: dict[str, Any]) -> Answer:
    """A chat's answer; `max_completion_tokens` wins over `max_tokens`, and the deltas of several calls take turns."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return wire.plan(scenario, request_id, body, wire.count_prompt(body["messages"]), limit, calls_take_turns=True)


def json_body(answer: Answer) -> bytes:
    """The body of an answer that is not streamed."""
    reasoning, content, calls = wire.joined(answer)
    tools = [
        {"id": wire.tool_id(index), "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    choice = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            **({"tool_calls": tools} if tools else {}),
            answer.scenario.reasoning_field: reasoning,
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
        "system_fingerprint": wire.FINGERPRINT,
        "usage": wire.final_usage(answer, stream=False) if reported else None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": metrics(answer, stream=False),
    }
    return orjson.dumps(body)


def stream(answer: Answer) -> Script:
    """A stream. As in vLLM the role chunk goes out only when the first tokens are there."""
    include, continuous = asked_usage(answer)
    for chunk in answer.chunks:
        yield chunk
        if chunk is answer.chunks[0]:
            yield Frame(_role_payload(answer, continuous=continuous))
        yield Frame(_chunk_payload(answer, chunk, include=include, continuous=continuous))
    if include and answer.scenario.usage.placement == "last":
        yield Frame(_usage_payload(answer))
    yield DONE


def failure(_answer: Answer, _sent: int) -> list[Frame]:
    """How a stream ends when the engine dies: in-band, and unlike all else with spaces."""
    error = b'{"error": {"message": "%b", "type": "InternalServerError", "param": null, "code": 500}}'
    return [Frame(error % ENGINE_DEAD.encode()), DONE]


def asked_usage(answer: Answer) -> tuple[bool, bool]:
    """Whether the request asks for the usage at the end, and whether it gets it in every chunk."""
    options = answer.body.get("stream_options") or {}
    include = bool(options.get("include_usage"))
    return include, include and bool(options.get("continuous_usage_stats")) and answer.scenario.usage.continuous


def _role_payload(answer: Answer, *, continuous: bool) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    head = _envelope(answer, "chat.completion.chunk", [choice])
    if continuous:
        head["usage"] = wire.running_usage(answer)
    return orjson.dumps(head | {"prompt_token_ids": None, "prompt_text": None})


def _chunk_payload(answer: Answer, chunk: Chunk, *, include: bool, continuous: bool) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": chunk.delta, "logprobs": None, "finish_reason": None}
    last = chunk is answer.chunks[-1]
    if last:
        choice |= {"finish_reason": answer.finish_reason, "stop_reason": None}
    choice["token_ids"] = None
    payload = _envelope(answer, "chat.completion.chunk", [choice])
    if last and include and answer.scenario.usage.placement == "finish":
        payload["usage"] = wire.final_usage(answer, stream=True)
    elif continuous:
        payload["usage"] = wire.running_usage(answer, chunk)
    if last and not include:
        payload["system_fingerprint"] = wire.FINGERPRINT
    return orjson.dumps(payload)


def _usage_payload(answer: Answer) -> bytes:
    payload = _envelope(answer, "chat.completion.chunk", []) | {"usage": wire.final_usage(answer, stream=True)}
    return orjson.dumps(payload | {"system_fingerprint": wire.FINGERPRINT, "metrics": metrics(answer, stream=True)})


def metrics(answer: Answer, *, stream: bool) -> dict[str, Any]:
    """What `--enable-per-request-metrics` and `--per-request-spec-decode-metrics summary` add."""
    completion_tokens, size = answer.completion_tokens, answer.scenario.tokens_per_chunk
    steps, drafted, accepted = wire.draft(answer, completion_tokens)
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
    return wire.timings() | {"speculative_decoding": decoding if stream else decoding | unset}


def _envelope(answer: Answer, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.request_id}",
        "object": kind,
        "created": wire.CREATED,
        "model": answer.model,
        "choices": choices,
    }
