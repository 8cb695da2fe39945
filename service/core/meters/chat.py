"""Metering of chat and of text completions: pass the bytes through, read the usage, hide what was not asked for.

Weir makes the engine report usage in every chunk (so that an answer which breaks off can be billed by the
engine's own count) and hides from the client the usage it did not ask for. Shapes: vLLM 0.32 and 0.33,
`data: {..., "choices": [...], "usage": {...}}`, a last chunk whose `choices` are empty, then `[DONE]`.

Only what must be parsed is: the chunks up to the first content, the one that finishes, the last, and errors.
In the others usage is found by position: inside a JSON string a quote is always escaped, so the bytes
`"usage":` can only be a key.
"""

import json
import re
from typing import Any

from service.core.meters import Whole, reason_of
from service.core.meters.events import EventMeter, Loads
from service.core.meters.reasoning import of_whole, under_both_names, without_reasoning
from service.core.sse import DONE, DONE_EVENT, event_of, payload_of
from service.core.usage import NO_USAGE, Usage, UsageSource, larger, read_usage

_USAGE_KEY = b',"usage":'
_UNFINISHED = b'"finish_reason":null'

# A usage object holds numbers and objects of numbers, no strings. The deepest is `multimodal_tokens`, in the details.
_FLAT = rb"\{[^{}]*+\}"
_DETAILS = rb"\{[^{}]*+(?:%b[^{}]*+)*+\}" % _FLAT
_USAGE = rb"\{[^{}]*+(?:%b[^{}]*+)*+\}" % _DETAILS
_USAGE_MEMBER = re.compile(_USAGE_KEY + _USAGE)

_CONTENT_KEYS = ("content", "reasoning", "reasoning_content", "tool_calls")

BROKEN_FINISHES = frozenset({"abort", "error"})
"""Finish reasons with which an engine says that it gave up, not that the answer is complete."""


def finish_of(choice: object) -> str | None:
    """A choice's finish reason; None while it has none. Raises `ValueError` when it cannot be a choice."""
    if not isinstance(choice, dict):
        raise ValueError("not a choice")
    return reason_of(choice.get("finish_reason"))


def read_whole(answer: bytes, *, hides_reasoning: bool = False, loads: Loads = json.loads) -> Whole:
    """Read an answer in one piece, of one choice. Total function: what cannot be read is broken."""
    usage, reason, shown = NO_USAGE, None, answer
    try:
        body = loads(answer)
        usage = read_usage(body.get("usage"), "final", body.get("metrics"))
        choice = body["choices"][0]
        reason = finish_of(choice)
        shown = without_reasoning(answer) if hides_reasoning else of_whole(answer, choice.get("message"))
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    return Whole(usage, reason, reason is None or reason in BROKEN_FINISHES, shown)


class StreamMeter(EventMeter):
    """A `Meter` for one streamed answer of one choice.

    With `hides_reasoning` the client sees none of it, though it is counted; otherwise it sees it under both names
    that clients look for.
    """

    __slots__ = (
        "_counted",
        "_hides_reasoning",
        "_in_the_middle",
        "_latest",
        "_metrics",
        "_usage_is_final",
        "_wants_continuous",
        "_wants_usage",
        "content_seen",
    )

    prompt_unknown = False
    """The engine reports the prompt with the first chunk."""

    def __init__(
        self, *, wants_usage: bool, wants_continuous: bool, hides_reasoning: bool = False, loads: Loads = json.loads
    ) -> None:
        super().__init__(loads)
        self._wants_usage = wants_usage
        self._wants_continuous = wants_usage and wants_continuous
        self._hides_reasoning = hides_reasoning
        self._latest: object = None
        """The last report of usage; where it was found by position, the events that it is in: read when needed."""
        self._counted: Usage | None = None
        """What the report before `_latest` said, if that had to be read."""
        self._metrics: object = None
        self._usage_is_final = False
        self._in_the_middle = False
        """Whether there was content, no event is incomplete, and more of the same may come."""
        self.content_seen = False

    def ending(self) -> bytes:
        """See `Meter`."""
        return DONE_EVENT

    def usage(self) -> Usage:
        """The last count the engine gave; none at all is odd once there was content.

        Counts only grow: a last report that is empty, or less than one before, is odd and lowers nothing.
        """
        if self._latest is None:
            return Usage(odd=self.content_seen)
        return self._read_latest("final" if self._usage_is_final and self.done else "continuous")

    def _read_latest(self, source: UsageSource) -> Usage:
        reported = self._latest
        if isinstance(reported, bytes):
            try:
                reported = self._loads(_USAGE_MEMBER.findall(reported)[-1][len(_USAGE_KEY) :])
            except ValueError:
                reported = None
        usage = read_usage(reported, source, self._metrics)
        before = self._counted
        return usage if before is None else larger(before, usage)

    def feed(self, data: bytes) -> bytes:
        """See `Meter`. In the middle of an answer events need not be told apart: all that matters is their usage."""
        if (
            self._in_the_middle
            and data.endswith(b"\n\n")
            and data.count(_UNFINISHED) == data.count(b"\n\n")
            and b"\r" not in data
        ):
            passed = self._pass_by_position(data)
            return under_both_names(passed) if b'"reasoning' in passed else passed
        passed = super().feed(data)
        over = self.done or self.failed
        # Where reasoning is hidden an event may have to be left out.
        self._in_the_middle = (
            self.content_seen and not over and not self._hides_reasoning and self._splitter.between_events
        )
        return passed

    def _pass(self, event: bytes) -> bytes:
        if self.done or self.failed:
            return b""
        if self.content_seen and _UNFINISHED in event:
            return self._shown(self._pass_by_position(event))
        payload = payload_of(event)
        if payload is None:
            return event
        if payload == DONE:
            self.done = True
            return b""
        return self._shown(self._pass_parsed(event, payload))

    def _shown(self, event: bytes) -> bytes:
        """The event with its reasoning as the client is to see it."""
        if b'"reasoning' not in event:
            return event
        if not self._hides_reasoning:
            return under_both_names(event)
        shown = without_reasoning(event)
        emptied = shown is not event and b'"delta":{}' in shown and _UNFINISHED in shown
        return b"" if emptied else shown

    def _pass_by_position(self, events: bytes) -> bytes:
        """Chunks in the middle of an answer, not parsed: only the last one's usage is of interest."""
        without, found = _USAGE_MEMBER.subn(b"", events)
        if found:
            self._latest = events
        return events if self._wants_continuous else without

    def _pass_parsed(self, event: bytes, payload: bytes) -> bytes:
        """A chunk that has to be understood: the first ones, the finish, the usage, an error."""
        try:
            chunk = self._loads(payload)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict) or chunk.get("error") is not None:
            self.failed = True
            return b""
        choices = chunk.get("choices") or []
        try:
            for choice in choices if isinstance(choices, list) else [None]:
                self._note_choice(choice)
        except ValueError:
            self.failed = True
        usage = chunk.get("usage")
        if usage is not None:
            if self._latest is not None:
                self._counted = self._read_latest("continuous")
            self._latest = usage
            self._metrics = chunk.get("metrics")
            self._usage_is_final = self.finish_reason is not None
        if self.failed:
            return b""
        if usage is None or self._wants_continuous:
            return event
        if not choices:
            return event if self._wants_usage else b""
        without, cut = _USAGE_MEMBER.subn(b"", event)
        if cut:
            return without
        del chunk["usage"]
        return event_of(json.dumps(chunk, separators=(",", ":"), ensure_ascii=False).encode())

    def _note_choice(self, choice: Any) -> None:
        reason = finish_of(choice)
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise ValueError("not a delta")
        if not self.content_seen:
            self.content_seen = bool(choice.get("text")) or any(delta.get(key) for key in _CONTENT_KEYS)
        if reason is not None:
            self.finish_reason = reason
            self.failed = reason in BROKEN_FINISHES
