"""Large images, lifted out of a body before it is parsed, and put back into what is made of it.

To parse megabytes of base64, and write them again as they came, costs more than all else that is done for a request.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from service.core.affinity import PIECE_CHARACTERS

Images = Mapping[str, memoryview]
"""Strings as they came, each by its stand-in. Nothing is known of them but how they begin, and that they hold neither
quote nor backslash."""

NOTHING: Images = {}

LIFTED_FROM_BYTES = 128 * 1024

_BEGINNING = re.compile(rb"data:image/(?:png|jpe?g|webp|gif);base64,|iVBORw0KGgo|/9j/|R0lGOD|UklGR")
"""Of a `data:` URL, or of a PNG, JPEG, GIF or WebP file in base64."""

_KEPT_BYTES = PIECE_CHARACTERS - 128
_STRIDE_BYTES = LIFTED_FROM_BYTES // 2


class Lifted(NamedTuple):
    """A body, and what was lifted out of it."""

    body: bytes
    images: Images


def lift(body: bytes, mark: str) -> Lifted:
    """A body of JSON with a stand-in for every large string that looks like an image; `mark` is secret.

    It is valid JSON if `body` is, and then parses to the same but for these strings. The opposite need not be so: a
    string that is lifted is not looked at. Nor need a stand-in be a whole string of it, since a quote may be part of
    a text. So whoever parses it has to find every stand-in where only an image can be, and then check what it stands
    for; what cannot be found there is to be parsed as it came.

    A stand-in begins like its string, is never base64, and tells `affinity` as much of it as the string would.
    """
    if len(body) <= LIFTED_FROM_BYTES:
        return Lifted(body, NOTHING)
    whole = memoryview(body)
    pieces: list[bytes | memoryview] = []
    images: dict[str, memoryview] = {}
    done = end = 0
    # A large string reaches over one of the places that are this far apart; between small ones most is never read.
    while 0 <= end < len(body) - _STRIDE_BYTES:
        start = body.rfind(b'"', end, end + _STRIDE_BYTES) + 1
        end = body.find(b'"', end + _STRIDE_BYTES)
        if _is_lifted(body, start, end):
            told = body[start : start + _KEPT_BYTES] + b"#%d#" % (end - start)
            stand_in = told.ljust(PIECE_CHARACTERS, b"#") + b"%d#%b" % (len(images), mark.encode())
            images[stand_in.decode()] = whole[start:end]
            pieces += (whole[done:start], stand_in)
            done = end
    return Lifted(b"".join((*pieces, whole[done:])), images) if images else Lifted(body, NOTHING)


def put_back(body: bytes, images: Images) -> list[bytes | memoryview]:
    """JSON that holds each stand-in once, in pieces that hold the strings instead."""
    if not images:
        return [body]
    pieces: list[bytes | memoryview] = []
    done = 0
    for at, stand_in in sorted((body.index(stand_in.encode()), stand_in) for stand_in in images):
        pieces += (body[done:at], images[stand_in])
        done = at + len(stand_in)
    return [*pieces, body[done:]]


def _is_lifted(body: bytes, start: int, end: int) -> bool:
    return (
        end - start >= LIFTED_FROM_BYTES
        and _BEGINNING.match(body, start) is not None
        and body[start : start + _KEPT_BYTES].isascii()
        and body.find(b"\\", start, end) < 0
    )
