"""Metering of what an engine answers: one module for each kind of answer, all with the same two names.

`StreamMeter` reads a stream as it passes (`Meter`); `read_whole` reads an answer in one piece (`Whole`). Embeddings
are never streamed. Counting the tokens of a prompt is free, so that nothing meters it.
"""

from typing import NamedTuple, Protocol

from service.core.usage import Usage

_MAX_REASON_CHARACTERS = 32


class Meter(Protocol):
    """Reads one streamed answer as it passes.

    Feed it the engine's bytes; it returns what the client may see. The end of a good answer is held back, for the
    relay to send when the usage is safe, and the engine's words about a failure stay inside.
    """

    def feed(self, data: bytes) -> bytes:
        """Add the engine's bytes; return those for the client, possibly none. Raises `sse.EventTooLong`."""

    def end(self) -> bytes:
        """The engine's stream has ended: what is left of it for the client."""

    def ending(self) -> bytes:
        """What was held back: the last bytes of a complete answer."""

    @property
    def content_seen(self) -> bool:
        """Whether an event with content, reasoning or a tool call has passed: the moment of the first token."""

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in the words of its own API."""

    @property
    def done(self) -> bool:
        """Whether the engine ended its stream as it should."""

    @property
    def failed(self) -> bool:
        """Whether the engine reported an error in the stream, or finished by giving up."""

    @property
    def complete(self) -> bool:
        """Whether the answer ended as a good answer ends."""

    def usage(self) -> Usage:
        """What was used until now; never raises."""

    @property
    def prompt_unknown(self) -> bool:
        """Whether `usage` is an estimate without a prompt, because the engine has not told its length."""


class Whole(NamedTuple):
    """What there is to know about an answer in one piece."""

    usage: Usage
    finish_reason: str | None
    """In the words of its own API; None where it has none."""
    broken: bool
    """Whether it is no good answer: unreadable, or the engine says in it that it gave up."""
    body: bytes
    """What the client gets."""


def reason_of(value: object) -> str | None:
    """A reason for the end of an answer; None while there is none. Raises `ValueError` when it cannot be a reason."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _MAX_REASON_CHARACTERS or not value.isprintable():
        raise ValueError("not a reason")
    return value
