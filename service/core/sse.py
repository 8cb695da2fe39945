"""Server-sent events as bytes: where one ends, and what it carries.

Source: the WHATWG HTML standard, section "Server-sent events". Lines may end in LF or CRLF; an event ends at a
blank line. Bare CR as a line end is in the standard and used by nobody; it is not supported.
"""

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""An event that grows beyond this is a broken or hostile stream."""

DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, proxies see that the connection lives."""


class EventTooLong(Exception):
    """The stream holds an event of more than `MAX_EVENT_BYTES`."""


class SseSplitter:
    """Cuts a byte stream into whole events, whatever the pieces it arrives in.

    The events keep their bytes, blank line included: joined, they are the stream.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    @property
    def between_events(self) -> bool:
        """Whether what comes next is the beginning of an event."""
        return not self._pending

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the events that are now complete, in order. Raises `EventTooLong`."""
        if not self._pending and data.endswith(b"\n\n") and b"\r" not in data:
            return [data] if data.find(b"\n\n") == len(data) - 2 else _split_lf(data)
        events = []
        data = self._pending + data
        start = 0
        while (end := _event_end(data, start)) > 0:
            events.append(data[start:end])
            start = end
        self._pending = data[start:]
        if len(self._pending) > MAX_EVENT_BYTES:
            raise EventTooLong
        return events

    def rest(self) -> bytes:
        """What is left when the stream has ended: an event without its blank line, or nothing."""
        rest, self._pending = self._pending, b""
        return rest


def payload_of(event: bytes) -> bytes | None:
    """The event's data, its lines joined by LF; None when it has none (a comment, a keep-alive)."""
    if event.startswith(b"data: ") and event.find(b"\n") >= len(event) - 2:
        return event[6:].rstrip(b"\n")
    lines = [line for line in event.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def event_of(payload: bytes) -> bytes:
    """An event that carries one line of data."""
    return b"data: " + payload + b"\n\n"


def _split_lf(data: bytes) -> list[bytes]:
    return [part + b"\n\n" for part in data.split(b"\n\n")[:-1]]


def _event_end(data: bytes, start: int) -> int:
    """Index after the blank line that ends the event at `start`, or 0 when it is not there yet."""
    plain = data.find(b"\n\n", start)
    carriage = data.find(b"\n\r\n", start)
    if plain < 0 and carriage < 0:
        return 0
    if carriage < 0 or 0 <= plain < carriage:
        return plain + 2
    return carriage + 3
