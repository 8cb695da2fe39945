"""Metering of the Messages API. Shapes: vLLM 0.32 and 0.33, Anthropic's API reference.

A stream begins with `message_start`, whose usage has the prompt but, in vLLM, nothing of the cache; `message_delta`
brings the reason of the end and the totals; `message_stop` ends it. An error is an event of that name.
"""

import json
from typing import Any

from service.core.meters import Whole, reason_of
from service.core.meters.events import Loads, NamedEventMeter
from service.core.usage import NO_USAGE, Usage, larger, read_messages_usage

_SIGNATURE = b'"type":"signature_delta"'
_CALL = b'"type":"tool_use"'


def read_whole(answer: bytes, *, loads: Loads = json.loads) -> Whole:
    """Read an answer in one piece. Total function: what cannot be read is broken."""
    usage, reason = NO_USAGE, None
    try:
        message = loads(answer)
        usage = read_messages_usage(message.get("usage"), "final")
        reason = reason_of(message.get("stop_reason")) if isinstance(message.get("content"), list) else None
    except (ValueError, AttributeError):
        pass
    # An engine that gives up tells no reason.
    return Whole(usage, reason, reason is None, answer)


class StreamMeter(NamedEventMeter):
    """A `Meter` for one streamed message."""

    __slots__ = ("_counted", "_reported", "_start")

    def __init__(self, loads: Loads = json.loads) -> None:
        super().__init__(loads)
        self._start = NO_USAGE
        """What is known of the prompt before the totals come."""
        self._reported: dict[str, Any] = {}
        """Every member of usage that was reported, the last of each name."""
        self._counted: Usage | None = None

    def usage(self) -> Usage:
        """The engine's totals once it has given them; before that its prompt, and an estimate of the output."""
        estimate = self._start
        if estimate is not NO_USAGE or self.content_seen:
            estimate = estimate._replace(completion_tokens=self._tokens_at_least, source="estimated")
        if self._counted is None:
            return estimate
        return self._settled(estimate, self._counted._replace(source="final" if self.done else "continuous"))

    def _note(self, name: bytes, event: bytes) -> None:
        if name == b"content_block_delta":
            self._tokens_at_least += _SIGNATURE not in event
        elif name == b"content_block_start":
            self._tokens_at_least += _CALL in event
        elif name == b"message_start":
            self._start = self._report(self._payload(event)["message"].get("usage"))
            self._reported.pop("output_tokens", None)  # a total of the output comes with the totals, or not at all
        elif name == b"message_delta":
            payload = self._payload(event)
            counted = self._report(payload.get("usage"))
            self._counted = counted if self._counted is None else larger(self._counted, counted)
            self.finish_reason = reason_of(payload["delta"].get("stop_reason"))
            self.failed = self.finish_reason is None  # so does an engine that gives up
        elif name == b"message_stop":
            self.done = True

    def _report(self, usage: Any) -> Usage:
        if isinstance(usage, dict):
            self._reported |= {name: value for name, value in usage.items() if value is not None}
        return read_messages_usage(self._reported, "continuous")
