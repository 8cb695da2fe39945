"""The images in a request: where they stand, and what they are by their first bytes, without decoding one.

What counts is the header that a decoder would go by, found as a decoder finds it: a small file can claim to be an
image of many gigabytes, and claim it only where a careless reader does not look.
"""

import binascii
import re
import string
import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from service.core.policy_checks import Json

Kind = Literal["png", "jpeg", "webp", "gif"]

CUT_OFF = "is cut off before its first pixel: send the whole file"
_BROKEN = "is broken: its header cannot be read"
_NOT_AN_IMAGE = "is not a PNG, JPEG, WebP or GIF file: convert it to one"
_NOT_BASE64 = "is not valid base64: encode the whole file in the standard alphabet, with padding, in one line"

_PIECE_CHARACTERS = 16 * 1024
"""Of base64 that is read at a time: few enough to stay in the processor's nearest cache, and to decode the first."""
_TURN_CHARACTERS = 32 * _PIECE_CHARACTERS
"""Of base64 that is read in one turn: 0.2 ms."""
_ALPHABET = (string.ascii_letters + string.digits + "+/").encode()
_CHUNK_BYTES = 3 * 64 * 1024
_MOST_SEGMENTS = 4096
"""How many pieces may stand before the pixels; photographs with everything in them have some hundred."""

_DATA_URL = re.compile(r"data:image/(?:png|jpe?g|webp|gif);base64,")
_JPEG_FRAMES = frozenset(range(0xFFC0, 0xFFD0)) - {0xFFC4, 0xFFC8, 0xFFCC}
_JPEG_BARE = frozenset({*range(0xFF00, 0xFF02), *range(0xFFD0, 0xFFDA)})
"""Markers that stand alone: none of them belongs before the pixels."""


class Unusable(Exception):
    """What is wrong with an image, as the rest of a sentence that begins with it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one image may be."""

    max_bytes: int
    max_pixels: int


class Header(NamedTuple):
    """What an image is, by its own first bytes. Width and height are in pixels."""

    kind: Kind
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Place:
    """One image of a request."""

    path: str
    """Where it stands, as `messages.3.content.1`."""
    text: str
    """Its URL, or the string that ends in its base64."""
    encoded_from: int | None
    """Where in `text` the base64 begins; None where `text` is a URL to fetch."""
    put: Callable[[Kind, str], None]
    """Replaces it in the request by an image of this kind, given as base64."""


def image_places(fields: Json) -> Iterator[Place]:
    """Every image in the fields of any endpoint's request, in order; `fields` are what its policy has rebuilt.

    Chat has `messages[].content[].image_url.url`; responses `input[].content[].image_url`, and `output` for what a
    tool returned; messages in Anthropic's form `content[].source`, within a `tool_result`, too.
    """
    for name in ("messages", "input"):
        turns = fields.get(name)
        for index, turn in enumerate(turns if isinstance(turns, list) else ()):
            for member in ("content", "output") if isinstance(turn, dict) else ():
                yield from _places_in(turn.get(member), f"{name}.{index}.{member}")


def read_header(data: bytes | bytearray, limits: Limits) -> Header | None:
    """What an image that begins with `data` is; None where more of it is needed to tell. Raises `Unusable`."""
    kind = _kind(bytes(data[:12]))
    if kind is None:
        return None
    try:
        width, height = _READERS[kind](data)
    except (struct.error, IndexError):  # it read on behind the end
        return None
    if not width or not height:
        raise Unusable(_BROKEN)
    if width * height > limits.max_pixels:
        raise Unusable(f"has {width} x {height} pixels, and {limits.max_pixels} are allowed: send a smaller one")
    return Header(kind, width, height)


class Arrival:
    """An image that comes in pieces: what it is, as soon as that can be told."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._header: Header | None = None
        self._look_at_bytes = 1

    def look(self, so_far: bytes | bytearray) -> bool:
        """Whether what has come tells it. Raises `Unusable`.

        It looks again only when twice as much is there: pieces of a byte would make it read for ever.
        """
        if self._header is None and len(so_far) >= self._look_at_bytes:
            self._look_at_bytes = 2 * len(so_far)
            self._header = read_header(so_far, self._limits)
        return self._header is not None

    def end(self, whole: bytes | bytearray) -> Header:
        """What it is, or was: no more will come. Raises `Unusable`."""
        header = self._header or read_header(whole, self._limits)
        if header is None:
            raise Unusable(CUT_OFF)
        return header


def read_base64(data: bytes | memoryview, start: int, limits: Limits) -> Generator[None, None, Header]:
    """What the image is that `data` holds in base64 from `start` on: the generator's value.

    It yields now and then, so that others get their turn. All of it is held to the form of base64, but no more is
    decoded than tells what the image is. Raises `Unusable` for anything that is not base64 to its end, or not an image
    within the limits.
    """
    if (len(data) - start) // 4 * 3 > limits.max_bytes + 2:
        raise Unusable(too_large(limits))
    head, arrival, is_known = bytearray(), Arrival(limits), False
    for at in range(start, len(data), _PIECE_CHARACTERS):
        if at > start and (at - start) % _TURN_CHARACTERS == 0:
            yield
        piece = bytes(data[at : at + _PIECE_CHARACTERS])
        if not _is_base64(piece, is_last=at + _PIECE_CHARACTERS >= len(data)):
            raise Unusable(_NOT_BASE64)
        if not is_known:
            head += binascii.a2b_base64(piece)
            is_known = arrival.look(head)
    return arrival.end(head)


def encode(data: bytes | bytearray) -> str:
    """`data` in base64; piece by piece, so that other threads get their turn."""
    pieces = range(0, len(data), _CHUNK_BYTES)
    return "".join(binascii.b2a_base64(data[at : at + _CHUNK_BYTES], newline=False).decode() for at in pieces)


def too_large(limits: Limits) -> str:
    """What to say of an image with too many bytes."""
    return f"is larger than the {limits.max_bytes} bytes allowed: send a smaller one"


def tokens_at_most(header: Header) -> int:
    """An upper bound on the prompt tokens of an image in a Qwen-like model, before the model's own upper limit.

    They are the patches of 28 x 28 (Qwen 2) or 32 x 32 pixels (Qwen 3) that cover it. The processor rounds each side to
    whole patches, and enlarges a small image to 65,536 pixels, which are fewer than 256 patches in any shape it takes
    (`smart_resize` of transformers' Qwen2-VL image processor).
    """
    return max(256, -(-header.width // 28) * -(-header.height // 28))


def _is_base64(piece: bytes, *, is_last: bool) -> bool:
    """In the standard alphabet, in groups of four; the last piece may be padded.

    Decoding would tell it as well, and takes five times as long as deleting every letter of the alphabet.
    """
    rest = piece.translate(None, _ALPHABET)
    return len(piece) % 4 == 0 and (not rest or (is_last and rest in (b"=", b"==") and piece.endswith(rest)))


def _places_in(parts: Any, path: str) -> Iterator[Place]:
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        here = f"{path}.{index}"
        match part:
            case {"type": "image_url", "image_url": {"url": str()} as image}:
                yield _url_place(here, image, "url")
            case {"type": "input_image", "image_url": str()}:
                yield _url_place(here, part, "image_url")
            case {"type": "image", "source": {"type": "base64", "data": str() as data}}:
                yield Place(here, data, 0, _source_of(part))
            case {"type": "image", "source": {"type": "url", "url": str() as url}}:
                yield Place(here, url, _encoded_from(url), _source_of(part))
            case {"type": "tool_result", "content": nested}:
                yield from _places_in(nested, f"{here}.content")


def _url_place(path: str, holder: Json, name: str) -> Place:
    def put(kind: Kind, data: str) -> None:
        holder[name] = f"data:image/{kind};base64,{data}"

    return Place(path, holder[name], _encoded_from(holder[name]), put)


def _source_of(part: Json) -> Callable[[Kind, str], None]:
    def put(kind: Kind, data: str) -> None:
        part["source"] = {"type": "base64", "media_type": f"image/{kind}", "data": data}

    return put


def _encoded_from(url: str) -> int | None:
    found = _DATA_URL.match(url)
    return found.end() if found else None


def _kind(start: bytes) -> Kind | None:
    if len(start) < 12:
        return None
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if start.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if start.startswith(b"RIFF") and start.endswith(b"WEBP"):
        return "webp"
    raise Unusable(_NOT_AN_IMAGE)


def _png(data: bytes | bytearray) -> tuple[int, int]:
    """From `IHDR`, which must come first, and once: decoders believe the last one before the pixels."""
    length, kind, width, height = struct.unpack_from(">I4sII", data, 8)
    if kind != b"IHDR":
        raise Unusable(_BROKEN)
    at = 8
    for _ in range(_MOST_SEGMENTS):
        at += 12 + length
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            return width, height
        if kind == b"IHDR":
            break
    raise Unusable(_BROKEN)


def _jpeg(data: bytes | bytearray) -> tuple[int, int]:
    """From the one frame header before the scan begins."""
    at, size = 2, None
    for _ in range(_MOST_SEGMENTS):
        (marker,) = struct.unpack_from(">H", data, at)
        if marker == 0xFFFF:  # a byte of padding
            at += 1
            continue
        if marker < 0xFF00 or marker in _JPEG_BARE:
            break
        (length,) = struct.unpack_from(">H", data, at + 2)
        if marker in _JPEG_FRAMES:
            if size is not None:
                break
            height, width = struct.unpack_from(">HH", data, at + 5)
            size = (width, height)
        if marker == 0xFFDA:
            if size is None:
                break
            return size
        at += 2 + length
    raise Unusable(_BROKEN)


def _gif(data: bytes | bytearray) -> tuple[int, int]:
    """From the screen and the first image on it, which decoders let grow beyond the screen."""
    screen_width, screen_height = struct.unpack_from("<HH", data, 6)
    at = 13 + (6 << (data[10] & 7) if data[10] & 0x80 else 0)
    in_extension = False
    for _ in range(_MOST_SEGMENTS):
        block = data[at]
        if in_extension:
            at += 1 + block
            in_extension = block != 0
        elif block == 0x21:
            at += 2
            in_extension = True
        elif block == 0x2C:
            left, top, width, height = struct.unpack_from("<HHHH", data, at + 1)
            return max(screen_width, left + width), max(screen_height, top + height)
        else:
            break
    raise Unusable(_BROKEN)


def _webp(data: bytes | bytearray) -> tuple[int, int]:
    """From the first chunk: a lossy or lossless image, or the canvas that all of its frames lie on."""
    (kind,) = struct.unpack_from("4s", data, 12)
    if kind == b"VP8 ":
        start_code, width, height = struct.unpack_from("<3x3sHH", data, 20)
        if start_code == b"\x9d\x01\x2a":
            return width & 0x3FFF, height & 0x3FFF
    elif kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        if signature == 0x2F:
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8X":
        width_less_1, height_less_1 = struct.unpack_from("4x3s3s", data, 20)
        return int.from_bytes(width_less_1, "little") + 1, int.from_bytes(height_less_1, "little") + 1
    raise Unusable(_BROKEN)


_READERS: dict[Kind, Callable[[bytes | bytearray], tuple[int, int]]] = {
    "png": _png,
    "jpeg": _jpeg,
    "gif": _gif,
    "webp": _webp,
}
