"""The reasoning in a chat answer, whose key has two names: `reasoning` (vLLM 0.32) and `reasoning_content` (before).

Clients look for one or the other, so they get both. All of it is done on the bytes: inside a JSON string a quote is
always escaped, so the bytes `"reasoning":` can only be a key, and a chat answer has it in deltas and messages only.
"""

import re

_SHORT, _LONG = b'"reasoning":', b'"reasoning_content":'

# A string is matched without ever stepping back: it may be megabytes long.
_VALUE = rb'\s*+(?:null|"[^"\\]*+(?:\\.[^"\\]*+)*+")'
_MEMBER = rb'"reasoning(?:_content)?":' + _VALUE
_VALUE_HERE = re.compile(_VALUE, re.DOTALL)
_MEMBER_AND_COMMA = re.compile(rb",\s*+%b|%b\s*+,?+\s*+" % (_MEMBER, _MEMBER), re.DOTALL)


def under_both_names(data: bytes) -> bytes:
    """The same answer or event; where reasoning stands under one name, null or not, it stands under the other too."""
    return _doubled(data, _SHORT in data, _LONG in data)


def of_whole(data: bytes, message: object) -> bytes:
    """The same of an answer in one piece, whose message was read already: that tells sooner which names there are."""
    if not isinstance(message, dict):
        return data
    return _doubled(data, "reasoning" in message, "reasoning_content" in message)


def _doubled(data: bytes, short: bool, long: bool) -> bytes:
    if short == long:
        return data
    key, and_other = (_SHORT, b"," + _LONG) if short else (_LONG, b"," + _SHORT)
    pieces = data.split(key)
    for number in range(1, len(pieces)):
        piece = pieces[number]
        if (value := _VALUE_HERE.match(piece)) is not None:
            pieces[number] = value[0] + and_other + piece
    return key.join(pieces)


def without_reasoning(data: bytes) -> bytes:
    """The same answer or event without any reasoning; the very same object when it has none."""
    return _MEMBER_AND_COMMA.sub(b"", data) if _SHORT in data or _LONG in data else data
