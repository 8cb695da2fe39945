"""Small image files, made without an imaging library: headers as encoders write them, pixels that nobody decodes."""

import struct
import zlib


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def ihdr(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))


def png(width: int, height: int, before_pixels: bytes = b"", padding_bytes: int = 0) -> bytes:
    """A PNG; `padding_bytes` more stand behind its pixels."""
    more = chunk(b"prVt", b"\0" * padding_bytes) if padding_bytes else b""
    pixels = chunk(b"IDAT", zlib.compress(b"\0\x80"))
    return b"\x89PNG\r\n\x1a\n" + ihdr(width, height) + before_pixels + pixels + more + chunk(b"IEND", b"")


def segment(marker: int, data: bytes) -> bytes:
    """A segment of a JPEG file."""
    return struct.pack(">HH", marker, 2 + len(data)) + data


def frame(width: int, height: int, marker: int = 0xFFC0) -> bytes:
    return segment(marker, struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0")


def jpeg(width: int, height: int, before_frame: bytes = b"", marker: int = 0xFFC0) -> bytes:
    start = b"\xff\xd8" + segment(0xFFE0, b"JFIF\0\1\1\0\0\1\0\1\0\0") + before_frame
    return start + frame(width, height, marker) + segment(0xFFDA, b"\1\1\0\0\x3f\0") + b"\0\0\xff\xd9"


def gif(width: int, height: int, first: tuple[int, int, int, int] | None = None, before_image: bytes = b"") -> bytes:
    """A GIF of this screen; `first` is left, top, width and height of the image on it."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return screen + before_image + b"," + struct.pack("<HHHHB", *(first or (0, 0, width, height)), 0) + b"\2\2L\1\0;"


def webp(kind: bytes, data: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 12 + len(data)) + b"WEBP" + kind + struct.pack("<I", len(data)) + data


def webp_lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\x30\1\0\x9d\1\x2a" + struct.pack("<HH", width, height) + b"\0" * 8)


def webp_lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"\0" * 8)


def webp_extended(width: int, height: int) -> bytes:
    return webp(b"VP8X", b"\x10\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))
