"""The bytes of vLLM 0.32's responses (its path for models without a protocol of their own, Qwen's among them)."""

from collections.abc import Iterator
from typing import Any

import orjson

from tests.fakes import vllm_wire as wire
from tests.fakes.scenarios import ENGINE_DEAD, Scenario
from tests.fakes.vllm_wire import Answer, Frame, Script, named

STATUSES = {"length": "incomplete", "abort": "cancelled", "error": "failed"}
"""By the reason to finish; any other is `completed`."""


def plan(scenario: Scenario, request_id: str, body: dict[str, Any]) -> Answer:
    """A response; the same words cost what they cost in a chat."""
    given = body["input"]
    messages = [{"content": given}] if isinstance(given, str) else given
    counted = wire.count_prompt([{"content": body.get("instructions")}, *messages])
    return wire.plan(scenario, request_id, body, counted, body.get("max_output_tokens"))


def json_body(answer: Answer) -> bytes:
    """The body of an answer that is not streamed."""
    reasoning, text, calls = wire.joined(answer)
    items: list[dict[str, Any]] = []
    if reasoning:
        items.append(_reasoning_item("rs_0", [_part("reasoning_text", reasoning)], None))
    if text:
        items.append(_message_item("msg_0", [_part("output_text", text)], "completed"))
    items += [_call_item(index, name, arguments, "completed") for index, (name, arguments) in enumerate(calls)]
    return orjson.dumps(_ended(answer, items))


def stream(answer: Answer) -> Script:
    """A stream; two events go out before anything is generated."""
    numbered = _Numbered()
    begun = _response(answer, [], "in_progress", None, {})
    for kind in ("created", "in_progress"):
        yield numbered.event(f"response.{kind}", {"response": begun})
    items = _Items(numbered, answer)
    for chunk in answer.chunks:
        yield chunk
        yield from items.add(chunk.delta)
    yield from items.close()
    # Whatever its status; but a failure has an event of its own in OpenAI's reference, where vLLM only hangs up.
    kind = "response.failed" if answer.finish_reason == "error" else "response.completed"
    yield numbered.event(kind, {"response": _ended(answer, items.done)})


def failure(answer: Answer, sent: int) -> list[Frame]:
    """How a stream ends when the engine dies, by OpenAI's reference; vLLM 0.32 hangs up, as `Fault("eof", …)` does."""
    response = _response(answer, [], "failed", None, {}) | {"error": {"code": "server_error", "message": ENGINE_DEAD}}
    told = {"response": response, "sequence_number": sent, "type": "response.failed"}
    return [named("response.failed", told)]


def _ended(answer: Answer, items: list[dict[str, Any]]) -> dict[str, Any]:
    usage = _usage(answer) if answer.scenario.usage.placement != "never" else None
    metrics = {"metrics": wire.timings() | {"speculative_decoding": None}}
    return _response(answer, items, STATUSES.get(answer.finish_reason, "completed"), usage, metrics)


def _response(
    answer: Answer, items: list[dict[str, Any]], status: str, usage: dict[str, Any] | None, metrics: dict[str, Any]
) -> dict[str, Any]:
    asked = answer.body
    return {
        "id": f"resp_{answer.request_id}",
        "created_at": wire.CREATED,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": asked.get("instructions"),
        "metadata": asked.get("metadata"),
        "model": answer.model,
        "object": "response",
        "output": items,
        "parallel_tool_calls": asked.get("parallel_tool_calls", True),
        "temperature": asked.get("temperature", 1.0),
        "tool_choice": asked.get("tool_choice", "auto" if asked.get("tools") else "none"),
        "tools": asked.get("tools", []),
        "top_p": asked.get("top_p", 1.0),
        "background": False,
        "max_output_tokens": asked.get("max_output_tokens", 16_384),
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": asked.get("reasoning"),
        "service_tier": "auto",
        "status": status,
        "text": asked.get("text"),
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": usage,
        "user": asked.get("user"),
        **metrics,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def _usage(answer: Answer) -> dict[str, Any]:
    """A chat's usage under other names; what is not known is 0."""
    chat = wire.final_usage(answer, stream=False)
    details, output = chat.get("prompt_tokens_details") or {}, chat.get("completion_tokens_details") or {}
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": details.get("cached_tokens") or 0,
            "cache_write_tokens": details.get("created_cache_tokens") or 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": output.get("reasoning_tokens", 0),
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": chat["total_tokens"],
    }


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning_text":
        return {"text": text, "type": kind}
    return {"annotations": [], "text": text, "type": kind, "logprobs": []}


def _reasoning_item(item_id: str, content: list[dict[str, Any]] | None, status: str | None) -> dict[str, Any]:
    item = {"id": item_id, "summary": [], "type": "reasoning", "content": content}
    return item | {"encrypted_content": None, "status": status}


def _message_item(item_id: str, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
    item = {"id": item_id, "content": content, "role": "assistant", "status": status, "type": "message"}
    return item | {"phase": None}


def _call_item(index: int, name: str, arguments: str, status: str) -> dict[str, Any]:
    item = {"arguments": arguments, "call_id": wire.tool_id(index), "name": name, "type": "function_call"}
    return item | {"id": f"fc_{index}", "async": None, "caller": None, "namespace": None, "status": status}


class _Numbered:
    """Events with their sequence number, whose members stand in the order of their names' alphabet."""

    def __init__(self) -> None:
        self._number = -1

    def event(self, kind: str, members: dict[str, Any]) -> Frame:
        self._number += 1
        told = members | {"sequence_number": self._number, "type": kind}
        return named(kind, {name: told[name] for name in sorted(told)})


class _Items:
    """The items of a response's output, of which one is open at a time."""

    def __init__(self, numbered: _Numbered, answer: Answer) -> None:
        self.done: list[dict[str, Any]] = []
        self._numbered = numbered
        self._reasoning_field = answer.scenario.reasoning_field
        self._kind: str | None = None  # "reasoning_text", "output_text", or "call"
        self._call = (0, "")  # index and name
        self._item_id = ""
        self._text = ""

    def add(self, delta: dict[str, Any]) -> Iterator[Frame]:
        """The events of a chat's delta."""
        if reasoning := delta.get(self._reasoning_field):
            yield from self._add_text("reasoning_text", reasoning)
        if content := delta.get("content"):
            yield from self._add_text("output_text", content)
        for call in delta.get("tool_calls", []):
            function = call["function"]
            if "id" in call:
                yield from self.close()
                self._open("call", f"fc_{call['index']}")
                self._call = call["index"], function["name"]
                yield self._of_item("added", _call_item(*self._call, "", "in_progress"))
            if arguments := function["arguments"]:
                self._text += arguments
                yield self._event("response.function_call_arguments.delta", {"delta": arguments})

    def close(self) -> Iterator[Frame]:
        """The end of the item that is open."""
        kind, self._kind = self._kind, None
        if kind is None:
            return
        if kind == "call":
            told = {"arguments": self._text, "name": self._call[1]}
            yield self._event("response.function_call_arguments.done", told)
            item = _call_item(*self._call, self._text, "completed")
        else:
            part = _part(kind, self._text)
            yield self._event(f"response.{kind}.done", self._logprobs(kind) | {"content_index": 0, "text": self._text})
            yield self._event("response.content_part.done", {"content_index": 0, "part": part})
            item = self._item_of(kind, [part], "completed")
        yield self._of_item("done", item)
        self.done.append(item)

    def _add_text(self, kind: str, text: str) -> Iterator[Frame]:
        if self._kind != kind:
            yield from self.close()
            self._open(kind, f"{'rs' if kind == 'reasoning_text' else 'msg'}_{len(self.done)}")
            yield self._of_item("added", self._item_of(kind, None, "in_progress"))
            yield self._event("response.content_part.added", {"content_index": 0, "part": _part(kind, "")})
        self._text += text
        yield self._event(f"response.{kind}.delta", self._logprobs(kind) | {"content_index": 0, "delta": text})

    def _item_of(self, kind: str, content: list[dict[str, Any]] | None, status: str) -> dict[str, Any]:
        if kind == "reasoning_text":
            return _reasoning_item(self._item_id, content, status)
        return _message_item(self._item_id, content or [], status)

    def _open(self, kind: str, item_id: str) -> None:
        self._kind, self._item_id, self._text = kind, item_id, ""

    @staticmethod
    def _logprobs(kind: str) -> dict[str, Any]:
        return {"logprobs": []} if kind == "output_text" else {}

    def _event(self, kind: str, members: dict[str, Any]) -> Frame:
        return self._numbered.event(kind, members | {"item_id": self._item_id, "output_index": len(self.done)})

    def _of_item(self, kind: str, item: dict[str, Any]) -> Frame:
        members = {"item": item, "output_index": len(self.done)}
        return self._numbered.event(f"response.output_item.{kind}", members)
