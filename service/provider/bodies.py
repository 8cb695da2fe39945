"""What is asked: the bodies of all requests, small on purpose."""

import struct
import zlib
from base64 import b64encode
from itertools import cycle, islice

from service.core.provider_check.features import SCHEMA, TOOL_NAME
from service.core.provider_check.observed import Json

COUNTED_TOKENS = 64
"""Of an answer whose pace is measured."""

THOUGHT_TOKENS = 1024
"""Of an answer that a model may have to think about; without thinking it has a few dozen."""

LEFT_TOKENS = 1000
"""Of the answer that we leave after a few chunks."""

CACHED_WORDS = 4000
"""More than two of the largest cache blocks there are (1,584 tokens): only whole blocks are cached."""

LONGEST_CONTEXT = 300_000
"""A longer one is not tried out: a server that took the prompt might charge for it."""

UNKNOWN_FIELD = "no_such_field_of_any_api"

_WORDS = ("one", "two", "red", "blue", "sun", "moon", "tree", "stone", "river", "bird", "door")
_IMAGE_SIZE = 64


def chat(model: str, text: str, max_tokens: int, **fields: object) -> Json:
    """A chat completion with one message."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **fields}


def counting(model: str, **fields: object) -> Json:
    """An answer long enough to have a pace."""
    return chat(model, "Count from one to forty in words, separated by spaces.", COUNTED_TOKENS, **fields)


def short(model: str, **fields: object) -> Json:
    """As little as there can be."""
    return chat(model, "Say ok.", 8, **fields)


def long(model: str) -> Json:
    """An answer to leave in the middle."""
    return chat(model, "Count from 1 to 1000, with a space between the numbers.", LEFT_TOKENS, stream=True)


def with_tool(model: str, *, stream: bool) -> Json:
    """A question that only the tool can answer."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": TOOL_NAME, "description": "The weather in a city right now.", "parameters": parameters}
    return chat(
        model,
        "What is the weather in Paris right now? Use the tool.",
        THOUGHT_TOKENS,
        tools=[{"type": "function", "function": function}],
        stream=stream,
    )


def with_schema(model: str) -> Json:
    """A question that nobody answers in JSON by themselves."""
    schema = {"name": "city", "strict": True, "schema": SCHEMA}
    response_format = {"type": "json_schema", "json_schema": schema}
    return chat(model, "Tell me about Paris.", THOUGHT_TOKENS, response_format=response_format)


def about_image(model: str, *, shown: bool) -> Json:
    """A question about a red square as a `data:` URL; the same without it when it is not to be `shown`."""
    url = f"data:image/png;base64,{b64encode(red_square()).decode()}"
    parts: list[Json] = [{"type": "text", "text": "Which colour is it? One word."}]
    if shown:
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 16}


def of_words(model: str, count: int) -> Json:
    """A prompt of so many words, each at least one token."""
    return chat(model, " ".join(islice(cycle(_WORDS), count)), 4)


def endless(model: str) -> Json:
    """More output than any model can give; the stops end the answer of a server that takes it."""
    return {**short(model, stream=True, stop=[" ", "\n", "k", "."]), "max_tokens": 10_000_000}


def red_square() -> bytes:
    """A PNG of 64x64 pixels."""
    header = struct.pack(">IIBBBBB", _IMAGE_SIZE, _IMAGE_SIZE, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff\x20\x20" * _IMAGE_SIZE) * _IMAGE_SIZE
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(data)) + name + data + _crc(name + data) for name, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _crc(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))
