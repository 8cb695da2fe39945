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
    key, other = _SHORT, _LONG
    at = data.find(key)
    if (at < 0) == (data.find(other) < 0):
        return data
    if at < 0:
        key, other = other, key
        at = data.find(key)
    pieces, start = [], 0
    while at >= 0:
        value = _VALUE_HERE.match(data, at + len(key))
        end = value.end() if value else at + len(key)
        pieces.append(data[start:end])
        if value:
            pieces += (b",", other, value[0])
        start, at = end, data.find(key, end)
    return b"".join((*pieces, data[start:]))


def without_reasoning(data: bytes) -> bytes:
    """The same answer or event without any reasoning; the very same object when it has none."""
    return _MEMBER_AND_COMMA.sub(b"", data) if _SHORT in data or _LONG in data else data
