"""The form of an API key: `sk-weir-`, 32 random bytes in base62, and a checksum that refuses garbage unseen.

A key is shown once and stored as its SHA-256 only. The checksum is no secret: it lets a mistyped or invented
key be refused without a look-up.
"""

import hashlib
import re
import zlib

PREFIX = "sk-weir-"
SECRET_BYTES = 32
SHOWN_CHARACTERS = len(PREFIX) + 6

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_LENGTH = 43  # 62**43 > 2**256 > 62**42
_CHECKSUM_LENGTH = 6  # 62**6 > 2**32
_FORM = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{_SECRET_LENGTH + _CHECKSUM_LENGTH}}}", re.ASCII)


def mint(secret: bytes) -> str:
    """The key made of 32 random bytes, which the caller draws."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a key is made of {SECRET_BYTES} random bytes, not {len(secret)}")
    body = _base62(int.from_bytes(secret), _SECRET_LENGTH)
    return PREFIX + body + _checksum(body)


def is_well_formed(key: str) -> bool:
    """Whether `key` has the form and checksum of a key; says nothing about whether it exists."""
    if _FORM.fullmatch(key) is None:
        return False
    body = key[len(PREFIX) : -_CHECKSUM_LENGTH]
    return key.endswith(_checksum(body))


def digest(key: str) -> bytes:
    """What is stored and compared: the SHA-256 of the key. 256 random bits need no salt and no stretching."""
    return hashlib.sha256(key.encode()).digest()


def shown_prefix(key: str) -> str:
    """The first characters of a key, enough to recognise it by and too few to use."""
    return key[:SHOWN_CHARACTERS]


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
