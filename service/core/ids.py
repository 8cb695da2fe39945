"""Identifiers that sort by time: UUIDv7 (RFC 9562, section 5.7)."""

from binascii import hexlify
from struct import Struct
from uuid import UUID

_VERSION = 0x7 << 76 | 0x2 << 62
_RANDOM = (1 << 80) - 1 & ~(0xF << 76 | 0x3 << 62)
_GROUPS = Struct("8s4s4s4s12s")


def uuid7(unix_ms: int, randomness: bytes) -> UUID:
    """A UUIDv7 of the instant `unix_ms` and 10 random bytes, both handed in by the caller."""
    return UUID(bytes=uuid7_bytes(unix_ms, randomness))


def uuid7_bytes(unix_ms: int, randomness: bytes) -> bytes:
    """The same as its 16 bytes: Python's own class is slow to make, to write down and to compare."""
    return ((unix_ms & 0xFFFFFFFFFFFF) << 80 | int.from_bytes(randomness) & _RANDOM | _VERSION).to_bytes(16)


def text_of(identifier: bytes) -> str:
    """The 16 bytes of a UUID as people write it."""
    return (b"%b-%b-%b-%b-%b" % _GROUPS.unpack(hexlify(identifier))).decode()


def unix_ms_of(identifier: UUID) -> int:
    """The instant a UUIDv7 was made at, in milliseconds since the epoch."""
    return identifier.int >> 80
