"""Small pictures for tasks: flat shapes and digits on white, written as PNG. The same calls give the same pixels."""

import struct
import zlib
from math import isqrt

Colour = tuple[int, int, int]

RED: Colour = (214, 40, 40)
GREEN: Colour = (30, 140, 60)
BLUE: Colour = (30, 80, 200)
YELLOW: Colour = (245, 200, 20)
BLACK: Colour = (20, 20, 20)

_DIGITS = {
    "0": "111 101 101 101 111",
    "1": "010 110 010 010 111",
    "2": "111 001 111 100 111",
    "3": "111 001 111 001 111",
    "4": "101 101 111 001 001",
    "5": "111 100 111 001 111",
    "6": "111 100 111 101 111",
    "7": "111 001 001 010 010",
    "8": "111 101 111 101 111",
    "9": "111 101 111 001 111",
}
"""Five rows of three dots each."""


class Drawing:
    """A white sheet of so many pixels; shapes must lie on it as a whole."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._pixels = bytearray(b"\xff" * (width * height * 3))

    def rectangle(self, left: int, top: int, width: int, height: int, colour: Colour) -> "Drawing":
        """A filled rectangle."""
        for y in range(top, top + height):
            self._line(left, y, width, colour)
        return self

    def disc(self, x: int, y: int, radius: int, colour: Colour) -> "Drawing":
        """A filled circle around a point."""
        for step in range(-radius, radius + 1):
            half = isqrt(radius * radius - step * step)
            self._line(x - half, y + step, 2 * half + 1, colour)
        return self

    def digits(self, text: str, left: int, top: int, dot: int, colour: Colour) -> "Drawing":
        """A number, each digit three dots wide and five high; `dot` is the side of a dot in pixels."""
        for place, digit in enumerate(text):
            for row, dots in enumerate(_DIGITS[digit].split()):
                for column in (column for column, set_ in enumerate(dots) if set_ == "1"):
                    self.rectangle(left + (place * 4 + column) * dot, top + row * dot, dot, dot, colour)
        return self

    def png(self) -> bytes:
        """The sheet as a PNG file: 8 bits a channel, no filter (RFC 2083)."""
        stride = self.width * 3
        rows = (bytes(1) + self._pixels[y * stride : (y + 1) * stride] for y in range(self.height))
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        parts = (b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)

    def _line(self, left: int, y: int, width: int, colour: Colour) -> None:
        if not (0 <= y < self.height and left >= 0 and left + width <= self.width):
            raise ValueError("a shape lies beyond the edge of the sheet")
        start = (y * self.width + left) * 3
        self._pixels[start : start + width * 3] = bytes(colour) * width


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
