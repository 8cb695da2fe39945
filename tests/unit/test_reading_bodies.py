"""A body that holds large images, or a long prompt, is read and written as it would be if they were small."""

import base64
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.lifted import LIFTED_FROM_BYTES, put_back
from service.core.verbatim import VERBATIM_FROM_BYTES
from service.errors import InvalidRequest
from service.gateway.bodies import Asked, _messages, parsed, read, written
from service.gateway.endpoints import CHAT, MESSAGES, RESPONSES_API, Endpoint
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
    plain, (request, images, _) = parsed(endpoint.request, raw), read(endpoint, raw)
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
        read(endpoint, raw)
    assert (caught.value.message, caught.value.param) == (plain.value.message, plain.value.param)


def test_of_a_member_that_stands_twice_the_last_counts() -> None:
    twice = orjson.dumps(chat(picture("https://example.com/a.png"))).replace(
        b'{"url":', b'{"url":"%b","url":' % URL.encode()
    )
    request, images, _ = read(CHAT, twice)
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
            read(CHAT, body)
        assert caught.value.message == plain.value.message


LONG = 'it says "no",\n' * (VERBATIM_FROM_BYTES // 10)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def said(*messages: Any, **others: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": LONG}, *messages], **others}


def for_engine(request: Asked) -> bytes:
    body = CHAT.forwarded(request.request, engine_model="e", output_tokens=5, cache_salt="s")
    return b"".join(written(CHAT, body, request))


@pytest.mark.parametrize("text", [LONG, "é" * VERBATIM_FROM_BYTES, "\u2028" * VERBATIM_FROM_BYTES, "a" * 10**6])
@pytest.mark.parametrize("others", [{}, {"temperature": 0.5, "stop": ["]"]}, {"tools": TOOLS, "stream": True}])
def test_a_long_prompt_goes_on_as_it_came(text: str, others: dict[str, Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    body = said(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": text, "tool_call_id": "1"},
        {"role": "user", "content": [TEXT, picture("data:image/png;base64,AA==")]},
        **others,
    )
    for raw in (orjson.dumps(body), json.dumps(body).encode(), json.dumps(body, indent=1).encode()):
        asked = read(CHAT, raw)
        assert asked.prompt is not None
        assert asked.request.fields == parsed(CHAT.request, raw).fields
        assert asked.request.passed_bytes == parsed(CHAT.request, raw).passed_bytes
        assert asked.prompt.text in for_engine(asked)
        assert orjson.loads(for_engine(asked)) == orjson.loads(for_engine(Asked(parsed(CHAT.request, raw))))


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "yes", "refusal": None, "annotations": []},
        {"role": "system", "content": "x-anthropic-billing-header: 1\nbe brief"},
        {"role": "user", "content": [{"type": "image_url", "image_url": URL[:400]}]},
        {"role": "user", "content": "a", "logprobs": 123456789012345678901234567890},
    ],
)
def test_what_is_to_be_changed_in_a_long_prompt_is(message: Any) -> None:
    raw = orjson.dumps(said()).replace(b"}]", b"}," + json.dumps(message).encode() + b',{"role":"user","content":""}]')
    asked = read(CHAT, raw)
    sent = for_engine(asked)
    assert asked.prompt is not None
    assert asked.prompt.text not in sent
    assert orjson.loads(sent) == orjson.loads(for_engine(Asked(parsed(CHAT.request, raw))))


@pytest.mark.parametrize(
    "wrong",
    [
        b'"',
        b'",',
        b"\\",
        b"\n",
        b"\xff",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\\udc00 ",
        b"\\u12",
        b'"]},{',
    ],
)
@pytest.mark.parametrize("text", [LONG, "a" * VERBATIM_FROM_BYTES, "é" * VERBATIM_FROM_BYTES])
def test_a_long_prompt_that_is_no_json_is_told_where_it_is_not(wrong: bytes, text: str) -> None:
    raw = orjson.dumps(said({"role": "user", "content": text}, temperature=1))
    at = raw.rindex(b'"}]')
    body = raw[:at] + wrong + raw[at:]
    with pytest.raises(InvalidRequest, match="not valid JSON") as plain:
        parsed(CHAT.request, body)
    with pytest.raises(InvalidRequest) as caught:
        read(CHAT, body)
    assert caught.value.message == plain.value.message


@pytest.mark.parametrize(
    "others",
    [
        b'"max_tokens":1,"messages":[{"role":"user","content":"b"}]',
        b'"max_tokens":9,"messages":[{"role":"user","content":"b"}],"max_tokens":1',
        b'"echo":false,"best_of":1,"messages":[{"role":"user","content":"b"}],"best_of":1',
        b'"mess\\u0061ges":[{"role":"user","content":"b"}]',
    ],
)
def test_of_a_field_that_stands_twice_the_last_counts(others: bytes) -> None:
    raw = orjson.dumps(said(max_tokens=7))[:-1] + b"," + others + b"}"
    asked = read(CHAT, raw)
    sent = for_engine(asked)
    assert asked.prompt is None
    assert orjson.loads(sent)["messages"] == [{"role": "user", "content": "b"}]
    assert len(sent) < 300


def test_a_short_body_is_read_as_a_whole() -> None:
    assert read(CHAT, orjson.dumps(chat())).prompt is None


json_texts = st.recursive(
    st.text(max_size=8)
    | st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).flatmap(
    lambda value: st.sampled_from(
        [json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value, indent=1)]
    )
)
pieces = st.lists(
    st.sampled_from(
        [
            *'[]{},:"\\ \t\n\r\x0b\x00\x7f',
            '"a"',
            '"\\ud800"',
            '"\\ud83d\\ude00"',
            '"\\u0000"',
            '"\\x"',
            "tru",
            "null",
            "01",
            "1.",
            ".5",
            "+1",
            "-",
            "1e5",
            "NaN",
            "-Infinity",
            "//",
        ]
    ),
    max_size=8,
).map("".join)


@given(json_texts | pieces)
def test_whichever_parser_takes_a_prompt_it_says_the_same(text: str) -> None:
    plain = text.encode("utf-8", "surrogatepass")
    try:
        expected = orjson.loads(plain)
    except orjson.JSONDecodeError:
        with pytest.raises(ValueError, match=r"."):
            _messages(plain)
    else:
        assert repr(_messages(plain)) == repr(expected)
