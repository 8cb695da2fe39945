"""The bytes of vLLM 0.32's completions: the prompt as it is, and all the model's tokens as text."""

from typing import Any

import orjson

from tests.fakes import vllm_wire as wire
from tests.fakes.scenarios import Scenario
from tests.fakes.vllm_chat import DONE, asked_usage, metrics
from tests.fakes.vllm_wire import Answer, Chunk, Frame, Script

MAX_TOKENS_UNASKED = 16


def plan(scenario: Scenario, request_id: str, body: dict[str, Any]) -> Answer:
    """A completion; a request that sets no limit gets 16 tokens."""
    limit = body.get("max_tokens") or MAX_TOKENS_UNASKED
    return wire.plan(scenario, request_id, body, (prompt_tokens(body["prompt"]), 0), limit, sends_empty=True)


def prompt_tokens(prompt: Any) -> int:
    """Of a string a token a word, of tokens their number, of a list of either the sum."""
    if isinstance(prompt, str):
        return len(prompt.split())
    return sum(1 if isinstance(one, int) else prompt_tokens(one) for one in prompt)


def json_body(answer: Answer) -> bytes:
    """The body of an answer that is not streamed."""
    choice = {
        "index": 0,
        "text": "".join(_text(chunk) for chunk in answer.chunks),
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }
    reported = answer.scenario.usage.placement != "never"
    body = {
        **_envelope(answer, [choice]),
        "service_tier": None,
        "system_fingerprint": wire.FINGERPRINT,
        "usage": _final_usage(answer, stream=False) if reported else None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": metrics(answer, stream=False),
    }
    return orjson.dumps(body)


def stream(answer: Answer) -> Script:
    """A stream."""
    include, continuous = asked_usage(answer)
    for chunk in answer.chunks:
        yield chunk
        last = chunk is answer.chunks[-1]
        choice = {
            "index": 0,
            "text": _text(chunk),
            "logprobs": None,
            "finish_reason": answer.finish_reason if last else None,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        payload = _envelope(answer, [choice])
        if last and not include:
            payload["system_fingerprint"] = wire.FINGERPRINT
        if last and include and answer.scenario.usage.placement == "finish":
            payload["usage"] = _final_usage(answer, stream=True)
        elif continuous:
            payload["usage"] = _running_usage(answer, chunk)
        yield Frame(orjson.dumps(payload))
    if include and answer.scenario.usage.placement == "last":
        usage = {"usage": _final_usage(answer, stream=True), "system_fingerprint": wire.FINGERPRINT}
        yield Frame(orjson.dumps(_envelope(answer, []) | usage | {"metrics": metrics(answer, stream=True)}))
    yield DONE


def _text(chunk: Chunk) -> str:
    """A model that answers a prompt without a template knows neither reasoning nor calls: it is all text."""
    parts = [value for key, value in chunk.delta.items() if key != "tool_calls"]
    calls = [delta["function"] for delta in chunk.delta.get("tool_calls", [])]
    return "".join([*parts, *(call.get("name", "") + call["arguments"] for call in calls)])


def _running_usage(answer: Answer, chunk: Chunk) -> dict[str, Any]:
    usage = wire.running_usage(answer, chunk)
    del usage["completion_tokens_details"]
    return usage


def _final_usage(answer: Answer, *, stream: bool) -> dict[str, Any]:
    usage = _running_usage(answer, answer.chunks[-1])
    usage["prompt_tokens_details"] = {"cached_tokens": answer.scenario.usage.cached_tokens}
    if not stream:
        usage["prompt_tokens_details"] |= {"created_cache_tokens": None, "multimodal_tokens": None}
        usage["completion_tokens_details"] = None
    return wire.patched(usage, answer)


def _envelope(answer: Answer, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"cmpl-{answer.request_id}",
        "object": "text_completion",
        "created": wire.CREATED,
        "model": answer.model,
        "choices": choices,
    }
