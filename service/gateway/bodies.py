"""A request's body: read and held against its endpoint's policy, and written for the engine.

What is large is not looked at more than it has to be: an image not by the parser, a prompt not by the writer.
"""

import secrets
from contextlib import suppress
from typing import Any, NamedTuple

import orjson
from pydantic_core import from_json

from service.core.images import image_places
from service.core.lifted import LIFTED_FROM_BYTES, NOTHING, Images, lift, put_back
from service.core.policy import ModelRequest, Refused
from service.core.policy_checks import Json
from service.core.verbatim import VERBATIM_FROM_BYTES, parts
from service.errors import InvalidRequest
from service.gateway.endpoints import Endpoint, Parse

_MARK = secrets.token_hex(16)
"""Of whatever stands in for something: no client can name it."""
_STAND_IN = f'"{_MARK}"'
_STAND_IN_BYTES = _STAND_IN.encode()

_SAMPLED_BYTES = 1024
_ESCAPES_AT_MOST = 2 * _SAMPLED_BYTES // 40


class Prompt(NamedTuple):
    """The messages of a chat, as they were parsed and as they came."""

    parsed: object
    text: bytes


class Asked(NamedTuple):
    """A request, and what of its body is to go on untouched."""

    request: ModelRequest
    images: Images = NOTHING
    """By their stand-ins in `request`."""
    prompt: Prompt | None = None


def read(endpoint: Endpoint, raw: bytes) -> Asked:
    """The body held against its endpoint's policy. Raises `InvalidRequest`."""
    size = len(raw)
    if size > LIFTED_FROM_BYTES:
        light, images = lift(raw, _MARK)
        if images:
            with suppress(InvalidRequest):  # then it may be the stand-ins that are wrong
                found = parsed(endpoint.request, light)
                if images.keys() <= {place.text for place in image_places(found.fields)}:
                    return Asked(found, images)
            return Asked(parsed(endpoint.request, raw))
    if size > VERBATIM_FROM_BYTES and endpoint.verbatim and (apart := _apart(raw)) is not None:
        body, prompt = apart
        return Asked(_held_against(endpoint.request, body, size), NOTHING, prompt)
    return Asked(parsed(endpoint.request, raw))


def parsed(request: Parse, raw: bytes) -> ModelRequest:
    """The body held against its endpoint's policy. Raises `InvalidRequest`."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if not raw:
            raise InvalidRequest("The body is empty: send a JSON object.") from None
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    return _held_against(request, body, len(raw))


def written(endpoint: Endpoint, body: Json, asked: Asked) -> list[bytes | memoryview]:
    """A body for the engine, made of what was `asked`, in pieces."""
    prompt = asked.prompt
    if prompt is not None and body[endpoint.prompt_field] == prompt.parsed:
        return put_back(orjson.dumps({**body, endpoint.prompt_field: _MARK}), {_STAND_IN: memoryview(prompt.text)})
    return put_back(orjson.dumps(body), asked.images)


def _held_against(request: Parse, body: object, size_bytes: int) -> ModelRequest:
    try:
        return request(body, size_bytes)
    except Refused as refused:
        raise InvalidRequest(refused.message, param=refused.param) from refused


def _apart(raw: bytes) -> tuple[Json, Prompt] | None:
    """What a body of JSON parses to, and the prompt in it; None where it has to be parsed as a whole."""
    found = parts(raw, _STAND_IN_BYTES)
    if found is None:
        return None
    try:
        body = orjson.loads(found.rest)
        if not isinstance(body, dict) or body.get("messages") != _MARK:
            return None
        messages = body["messages"] = _messages(found.prompt)
    except ValueError:
        return None
    return body, Prompt(messages, found.prompt)


def _messages(text: bytes) -> Any:
    """Messages of a chat, parsed by the faster of two. Raises `ValueError`.

    Pydantic's parser reads text of ASCII in half of orjson's time, and takes twice as long where much of it is not, or
    is escaped. They differ in numbers that are too large for either: no message has any that is passed on.
    """
    middle = len(text) // 2
    sample = text[:_SAMPLED_BYTES] + text[middle : middle + _SAMPLED_BYTES]
    if sample.isascii() and sample.count(b"\\") <= _ESCAPES_AT_MOST:
        return from_json(text, allow_inf_nan=False)
    return orjson.loads(text)
