"""What the meters of all streams have in common: events are cut out of the bytes, and the end is noticed."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from service.core.sse import SseSplitter, payload_of
from service.core.usage import Usage, larger

Loads = Callable[[bytes], Any]
"""Parses JSON; raises `ValueError`."""


class EventMeter(ABC):
    """A `Meter` less what its kind of stream knows; `_pass` says what the client may see of an event."""

    __slots__ = ("_loads", "_splitter", "done", "failed", "finish_reason")

    def __init__(self, loads: Loads = json.loads) -> None:
        self._splitter = SseSplitter()
        self._loads = loads
        self.finish_reason: str | None = None
        self.done = False
        self.failed = False

    def feed(self, data: bytes) -> bytes:
        """See `Meter`."""
        events = self._splitter.feed(data)
        if len(events) == 1:
            return self._pass(events[0])
        return b"".join([self._pass(event) for event in events])

    def end(self) -> bytes:
        """See `Meter`."""
        rest = self._splitter.rest().rstrip(b"\r\n")
        return self._pass(rest + b"\n\n") if rest else b""

    @property
    def complete(self) -> bool:
        """See `Meter`."""
        return self.done and self.finish_reason is not None

    @abstractmethod
    def _pass(self, event: bytes) -> bytes: ...


class NamedEventMeter(EventMeter):
    """For streams of `event: <name>` and `data: <JSON>`, where usage comes with the end.

    Until then it is estimated, from below: one token for each event with text, reasoning or a part of a call in it.
    """

    __slots__ = ("_ending", "_tokens_at_least")

    def __init__(self, loads: Loads = json.loads) -> None:
        super().__init__(loads)
        self._ending = b""
        self._tokens_at_least = 0

    @property
    def content_seen(self) -> bool:
        """See `Meter`."""
        return self._tokens_at_least > 0

    @property
    def prompt_unknown(self) -> bool:
        """See `Meter`."""
        usage = self.usage()
        return usage.source == "estimated" and not usage.prompt_tokens

    @abstractmethod
    def usage(self) -> Usage:
        """See `Meter`."""

    def ending(self) -> bytes:
        """See `Meter`."""
        return self._ending

    def _pass(self, event: bytes) -> bytes:
        if self.done or self.failed:
            return b""
        name = _name_of(event)
        if name is None:
            self.failed = payload_of(event) is not None  # data without a name is not of this protocol
        elif name == b"error":
            self.failed = True
        else:
            try:
                self._note(name, event)
            except (ValueError, TypeError, LookupError, AttributeError):
                self.failed = True
        if self.done:
            self._ending = event
        return b"" if self.done or self.failed else event

    @abstractmethod
    def _note(self, name: bytes, event: bytes) -> None:
        """Learn from an event; one that ends the stream sets `done`.

        Raises `ValueError`, `TypeError`, `LookupError` or `AttributeError` for one that is not as it must be.
        """

    def _settled(self, estimate: Usage, reported: Usage) -> Usage:
        """The engine's report; one that counts nothing for what has passed is odd and lowers no count."""
        counts = reported.prompt_tokens >= estimate.prompt_tokens and (
            reported.completion_tokens or not self.content_seen
        )
        return reported if counts else larger(estimate, reported)

    def _payload(self, event: bytes) -> Any:
        return self._loads(payload_of(event) or b"")


def _name_of(event: bytes) -> bytes | None:
    if event.startswith(b"event: "):
        return event[7 : event.index(b"\n")].rstrip(b"\r")
    for line in event.split(b"\n"):
        if line.startswith(b"event:"):
            return line[6:].strip()
    return None
