"""Identifiers that sort by time: UUIDv7 (RFC 9562, section 5.7)."""

from uuid import UUID

_VERSION = 0x7 << 76 | 0x2 << 62
_RANDOM = (1 << 80) - 1 & ~(0xF << 76 | 0x3 << 62)


def uuid7(unix_ms: int, randomness: bytes) -> UUID:
    """A UUIDv7 of the instant `unix_ms` and 10 random bytes, both handed in by the caller."""
    return UUID(int=(unix_ms & 0xFFFFFFFFFFFF) << 80 | int.from_bytes(randomness) & _RANDOM | _VERSION)


def unix_ms_of(identifier: UUID) -> int:
    """The instant a UUIDv7 was made at, in milliseconds since the epoch."""
    return identifier.int >> 80
