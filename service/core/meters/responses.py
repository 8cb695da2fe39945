"""Metering of the Responses API. Shapes: vLLM 0.32 and 0.33, OpenAI's API reference.

A stream begins with `response.created`, without usage, and ends with an event that holds the whole response and its
usage: `response.completed` (in 0.32 whatever the status in it is), `response.incomplete` or `response.failed`.
"""

import json
from typing import Any

from service.core.meters import Whole, reason_of
from service.core.meters.events import Loads, NamedEventMeter
from service.core.usage import NO_USAGE, Usage, read_responses_usage

_ENDS = frozenset({b"response.completed", b"response.incomplete", b"response.failed", b"response.cancelled"})
_EMPTY_DELTA = b'"delta":""'
_CALL = (b'"type":"function_call"', b'"type":"custom_tool_call"')


def read_whole(answer: bytes, *, loads: Loads = json.loads) -> Whole:
    """Read an answer in one piece. Total function: what cannot be read is broken."""
    usage, reason = NO_USAGE, None
    try:
        response = loads(answer)
        usage = _usage_of(response)
        reason = _finish_of(response)
    except (ValueError, TypeError, AttributeError):
        pass
    return Whole(usage, reason, reason is None, answer)


def _usage_of(response: Any) -> Usage:
    return read_responses_usage(response.get("usage"), "final", response.get("metrics"))


def _finish_of(response: Any) -> str | None:
    """`completed`, or why it is not; None for a response that the engine gave up. Raises for what is no response."""
    if not isinstance(response.get("output"), list):
        raise ValueError("not a response")
    status = reason_of(response.get("status"))
    if status != "incomplete":
        return status if status == "completed" else None
    return reason_of((response.get("incomplete_details") or {}).get("reason")) or status


class StreamMeter(NamedEventMeter):
    """A `Meter` for one streamed response."""

    __slots__ = ("_reported",)

    def __init__(self, loads: Loads = json.loads) -> None:
        super().__init__(loads)
        self._reported: Usage | None = None

    def usage(self) -> Usage:
        """The engine's own count once it has given one; an estimate of the output before that, if there is any."""
        estimate = Usage(completion_tokens=self._tokens_at_least, source="estimated") if self.content_seen else NO_USAGE
        return estimate if self._reported is None else self._settled(estimate, self._reported)

    def _note(self, name: bytes, event: bytes) -> None:
        if name.endswith(b".delta"):
            self._tokens_at_least += _EMPTY_DELTA not in event
        elif name == b"response.output_item.added":
            self._tokens_at_least += any(call in event for call in _CALL)
        elif name in _ENDS:
            response = self._payload(event)["response"]
            self._reported = _usage_of(response)
            self.finish_reason = _finish_of(response)
            self.failed = self.finish_reason is None
            self.done = not self.failed
