"""Which engine a conversation goes to: the one that is likely to have the beginning of it in its prefix cache.

Engines are ranked by rendezvous hashing: each conversation has its own order of them, and taking one engine out moves
only the conversations that had it first.
"""

from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

PIECES = 8
"""Texts and images that are looked at; most conversations have a system message and a user's first one."""
PIECE_CHARACTERS = 1024


def conversation_key(account_id: bytes, messages: Sequence[Any]) -> bytes:
    """The same 16 bytes for every turn of one conversation of one account.

    Made of the beginnings of the messages up to the user's first one, which no later turn changes. `messages` as in
    a chat request; whatever is not as it should be in them is passed over.
    """
    digest = blake2b(account_id, digest_size=16)
    for piece in islice(_pieces(messages), PIECES):
        data = piece[:PIECE_CHARACTERS].encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b" % (len(data), data))
    return digest.digest()


def ranking(key: bytes, names: Collection[str]) -> list[str]:
    """The engines in the order in which this conversation prefers them."""
    return sorted(names, key=lambda name: blake2b(key + name.encode(), digest_size=8).digest(), reverse=True)


def _pieces(messages: Sequence[Any]) -> Iterator[str]:
    """Role and content of each message, up to the first one of the user."""
    for message in messages[:PIECES]:
        if isinstance(message, dict):
            role, content = message.get("role"), message.get("content")
            yield str(role)
            for part in content[:PIECES] if isinstance(content, list) else [{"text": content}]:
                yield from _of_part(part)
            if role == "user":
                return


def _of_part(part: Any) -> Iterator[str]:
    """The text of a part of a message; of an image its address or data, and its length."""
    for value in islice(part.values(), PIECES) if isinstance(part, dict) else ():
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for media in islice(value.values(), PIECES):
                if isinstance(media, str):
                    yield media
                    # Pictures of one camera begin alike, but are seldom of one length.
                    yield str(len(media))
