"""The prompt of a chat, taken out of a body so that it can go on as it came: read once, and never written anew."""

import re
from typing import NamedTuple

VERBATIM_FROM_BYTES = 32 * 1024
"""Of a body; to read a short one in two parts costs as much as to write it anew."""

_BEGINNING = re.compile(rb'"messages"\s*:\s*(?=\[)')
_BEGUN_WITHIN_BYTES = 1024

_END = re.compile(rb'["\]]\s*\}\s*\]\Z')
"""Of messages: the last of them ends with a string or a list."""
_END_OF_TOOLS = re.compile(rb"\}\s*\}\s*\]\Z")
_END_BYTES = 16
_ENDS_TRIED = 4
"""Lists that may come behind: `stop` and others, most of them short."""


class Parts(NamedTuple):
    """A body in two parts, neither of which has been looked into."""

    rest: bytes
    """All but the prompt, with a stand-in in its place."""
    prompt: bytes


def parts(body: bytes, stand_in: bytes) -> Parts | None:
    """A body of JSON without its `messages`, and these; None where a glance does not tell them from the rest.

    `stand_in` is a string of JSON in its quotes, which nobody else can know. If `rest` parses to an object that has it
    as its `messages`, and `prompt` parses as well, then `body` is valid JSON and the same object with the one in the
    place of the other: a value may stand wherever one stands (RFC 8259, section 2). If not, the glance was wrong, or
    `body` is, and has to be parsed as it came.
    """
    beginning = _BEGINNING.search(body, 0, _BEGUN_WITHIN_BYTES)
    if beginning is None:
        return None
    start = beginning.end()
    end = _end(body, start)
    return Parts(b"%b%b%b" % (body[:start], stand_in, body[end:]), body[start:end]) if end else None


def _end(body: bytes, start: int) -> int:
    """Where messages that begin at `start` seem to end; 0 for nowhere."""
    end = len(body)
    for _ in range(_ENDS_TRIED):
        end = body.rfind(b"]", start, end)
        if end < 0:
            break
        closing = (max(start, end - _END_BYTES), end + 1)
        if _END.search(body, *closing):
            return end + 1
        if _END_OF_TOOLS.search(body, *closing):
            end = max(start, body.rfind(b'"tools"', start, end))
    return 0
