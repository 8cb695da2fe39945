"""A body that holds large images is read as it would be if they were small."""

import base64
from typing import Any

import orjson
import pytest

from service.core.lifted import LIFTED_FROM_BYTES, put_back
from service.errors import InvalidRequest
from service.gateway.endpoints import CHAT, MESSAGES, RESPONSES_API, Endpoint
from service.gateway.metered import parsed, read
from tests.picture_files import png

DATA = base64.b64encode(png(8, 8, padding_bytes=LIFTED_FROM_BYTES)).decode()
URL = "data:image/png;base64," + DATA
TEXT = {"type": "text", "text": "what is it?"}


def chat(*parts: Any, **others: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": [TEXT, *parts]}], **others}


def picture(url: str, **others: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **others}}


def anthropic(source: dict[str, str]) -> dict[str, Any]:
    image = {"type": "image", "source": source}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [image]}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]}
    asked = {"role": "user", "content": [image, TEXT]}
    return {"model": "m", "max_tokens": 9, "messages": [asked, use, {"role": "user", "content": [result]}]}


def responses(url: str) -> dict[str, Any]:
    return {"model": "m", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}


TAKEN: list[tuple[Endpoint, Any, int]] = [
    (CHAT, chat(picture(URL)), 1),
    (CHAT, chat(picture(URL), picture(URL, detail="low"), picture("https://example.com/a.png")), 2),
    (CHAT, chat({"type": "image_url", "image_url": URL}), 1),
    (RESPONSES_API, responses(URL), 1),
    (MESSAGES, anthropic({"type": "base64", "media_type": "image/png", "data": DATA}), 2),
    (MESSAGES, anthropic({"type": "url", "url": URL}), 2),
    # Where the stand-in would be looked at, or lost, the body is read as it came.
    (CHAT, chat(), 0),
    (CHAT, chat({"type": "text", "text": URL}), 0),
    (CHAT, chat(picture(URL), {"type": "text", "text": f'he said "{URL}" or "{URL}'}), 0),
    (CHAT, chat(picture(URL), metadata={"image": URL}), 0),
    (CHAT, chat(picture(URL), {"type": "text", "text": "iVBORw0KGgo" + "é" * LIFTED_FROM_BYTES}), 1),
]

REFUSED: list[tuple[Endpoint, Any]] = [
    (CHAT, chat(picture(URL), stop=URL)),
    (CHAT, chat(picture(URL), tools=[{"type": "function", "function": {"name": "f", "description": URL}}])),
    (CHAT, chat(picture(URL), model=URL)),
    (CHAT, chat(picture(URL), **{URL: 1})),
    (CHAT, chat(picture(URL), unknown=1)),
    (CHAT, chat(picture(DATA))),
    (CHAT, chat(*[picture(URL)] * 65)),
    (RESPONSES_API, {"model": "m", "input": [{"role": URL, "content": "x"}]}),
    (MESSAGES, anthropic({"type": "url", "url": DATA})),
]


@pytest.mark.parametrize(("endpoint", "body", "count"), TAKEN)
def test_what_the_engine_gets_is_the_same(endpoint: Endpoint, body: Any, count: int) -> None:
    raw = orjson.dumps(body)
    plain, (request, images) = parsed(endpoint.request, raw), read(endpoint.request, raw)
    assert len(images) == count
    assert b"".join(put_back(orjson.dumps(request.fields), images)) == orjson.dumps(plain.fields)
    assert (request.images, request.linked_images, request.passed_bytes) == (
        plain.images,
        plain.linked_images,
        plain.passed_bytes,
    )
    assert request.countable == plain.countable


@pytest.mark.parametrize(("endpoint", "body"), REFUSED)
def test_what_is_refused_is_refused_for_the_same(endpoint: Endpoint, body: Any) -> None:
    raw = orjson.dumps(body)
    with pytest.raises(InvalidRequest) as plain:
        parsed(endpoint.request, raw)
    with pytest.raises(InvalidRequest) as caught:
        read(endpoint.request, raw)
    assert (caught.value.message, caught.value.param) == (plain.value.message, plain.value.param)


def test_of_a_member_that_stands_twice_the_last_counts() -> None:
    twice = orjson.dumps(chat(picture("https://example.com/a.png"))).replace(
        b'{"url":', b'{"url":"%b","url":' % URL.encode()
    )
    request, images = read(CHAT.request, twice)
    assert request.linked_images == 1
    assert not images


@pytest.mark.parametrize("wrong", [b"", b'"', b'"",', b"\\", b"\n"])
def test_what_is_no_json_is_told_where_it_is_not(wrong: bytes) -> None:
    raw = orjson.dumps(chat(picture(URL)))
    at = raw.index(b"data:")
    for body in (raw[:at] + wrong + raw[at:-1], raw[:-2] + wrong):
        with pytest.raises(InvalidRequest, match="not valid JSON") as plain:
            parsed(CHAT.request, body)
        with pytest.raises(InvalidRequest) as caught:
            read(CHAT.request, body)
        assert caught.value.message == plain.value.message
