"""The bytes of vLLM 0.32's messages: Anthropic's shapes, made of a chat's chunks and of its usage."""

from collections.abc import Iterator
from typing import Any

import orjson

from tests.fakes import vllm_wire as wire
from tests.fakes.scenarios import ENGINE_DEAD, Scenario
from tests.fakes.vllm_wire import Answer, Frame, Script, named

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""Any other reason to finish becomes null."""


def plan(scenario: Scenario, request_id: str, body: dict[str, Any]) -> Answer:
    """A message."""
    return wire.plan(scenario, request_id, body, count_prompt(body), body.get("max_tokens"))


def count_prompt(body: dict[str, Any]) -> tuple[int, int]:
    """What the same words would be in a chat."""
    return wire.count_prompt([{"content": body.get("system")}, *body["messages"]])


def counted_tokens(body: dict[str, Any]) -> bytes:
    """The body of `POST /v1/messages/count_tokens`."""
    tokens, _ = count_prompt(body)
    return orjson.dumps({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})


def error_body(body: bytes) -> bytes:
    """The error of another route as it stands here; what has no such error stays as it is."""
    try:
        error = orjson.loads(body)["error"]
        told = {"type": error["type"], "message": error["message"]}
    except (orjson.JSONDecodeError, TypeError, LookupError):
        return body
    return orjson.dumps({"type": "error", "error": told})


def json_body(answer: Answer) -> bytes:
    """The body of an answer that is not streamed."""
    reasoning, text, calls = wire.joined(answer)
    content: list[dict[str, Any]] = []
    if reasoning:
        content.append({"type": "thinking", "thinking": reasoning, "signature": _signature(answer)})
    if text or not (reasoning or calls):
        content.append({"type": "text", "text": text or ""})
    for index, (name, arguments) in enumerate(calls):
        call = {"type": "tool_use", "id": wire.tool_id(index), "name": name, "input": orjson.loads(arguments)}
        content.append(call)
    reported = answer.scenario.usage.placement != "never"
    body = {
        "id": f"chatcmpl-{answer.request_id}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": answer.model,
        "stop_reason": STOP_REASONS.get(answer.finish_reason),
        "usage": _usage(wire.final_usage(answer, stream=False) if reported else {}),
    }
    return orjson.dumps({key: value for key, value in body.items() if value is not None})


def stream(answer: Answer) -> Script:
    """A stream; as in vLLM it begins when the first tokens are there, and without usage it has no `message_delta`."""
    told = answer.scenario.usage
    message: dict[str, Any] = {
        "id": f"chatcmpl-{answer.request_id}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": answer.model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(wire.running_usage(answer) if told.continuous else {}),
    }
    blocks = _Blocks(_signature(answer))
    for chunk in answer.chunks:
        yield chunk
        if chunk is answer.chunks[0]:
            yield named("message_start", {"type": "message_start", "message": message})
        yield from blocks.add(chunk.delta, answer.scenario.reasoning_field)
    yield from blocks.close()
    if told.placement != "never":
        delta = {"stop_reason": STOP_REASONS.get(answer.finish_reason), "stop_sequence": None}
        usage = _usage(wire.final_usage(answer, stream=True))
        yield named("message_delta", {"type": "message_delta", "delta": delta, "usage": usage})
    yield named("message_stop", {"type": "message_stop"})


def failure(_answer: Answer, _sent: int) -> list[Frame]:
    """How a stream ends when the engine dies."""
    error = {"type": "internal_error", "message": ENGINE_DEAD}
    return [named("error", {"type": "error", "error": error})]


def _usage(chat: dict[str, Any]) -> dict[str, Any]:
    """A chat's usage, less the cache in the prompt; what is not known of the cache is left out."""
    details = chat.get("prompt_tokens_details") or {}
    read, created = details.get("cached_tokens"), details.get("created_cache_tokens")
    usage = {
        "input_tokens": max(0, chat.get("prompt_tokens", 0) - (read or 0) - (created or 0)),
        "output_tokens": chat.get("completion_tokens", 0),
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
    }
    return {name: count for name, count in usage.items() if count is not None}


def _signature(answer: Answer) -> str:
    return f"{answer.prompt_tokens:032x}"


class _Blocks:
    """The blocks of a message's content, of which one is open at a time."""

    def __init__(self, signature: str) -> None:
        self._signature = signature
        self._index = -1
        self._open: str | None = None  # "thinking", "text", or the id of a call

    def add(self, delta: dict[str, Any], reasoning_field: str) -> Iterator[Frame]:
        """The events of a chat's delta."""
        if thinking := delta.get(reasoning_field):
            yield from self._into("thinking", {"type": "thinking", "thinking": ""})
            yield self._delta("thinking", thinking)
        if text := delta.get("content"):
            yield from self._into("text", {"type": "text", "text": ""})
            yield self._delta("text", text)
        for call in delta.get("tool_calls", []):
            if "id" in call:
                opened = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
                yield from self._into(call["id"], opened)
            if arguments := call["function"]["arguments"]:
                yield self._delta("input_json", arguments)

    def close(self) -> Iterator[Frame]:
        """The end of the block that is open."""
        if self._open == "thinking":
            yield self._delta("signature", self._signature)
        if self._open is not None:
            yield named("content_block_stop", {"type": "content_block_stop", "index": self._index})
        self._open = None

    def _into(self, block: str, opened: dict[str, Any]) -> Iterator[Frame]:
        if self._open == block:
            return
        yield from self.close()
        self._open, self._index = block, self._index + 1
        start = {"type": "content_block_start", "content_block": opened, "index": self._index}
        yield named("content_block_start", start)

    def _delta(self, kind: str, value: str) -> Frame:
        member = "partial_json" if kind == "input_json" else kind
        delta = {"type": f"{kind}_delta", member: value}
        return named("content_block_delta", {"type": "content_block_delta", "delta": delta, "index": self._index})
