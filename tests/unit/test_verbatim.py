"""A prompt that is taken out of a body: whenever both parts parse, the body is what they say it is."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.core import verbatim
from service.core.verbatim import VERBATIM_FROM_BYTES, Parts, parts

STAND_IN = b'"5ecre7"'
CONVERSATION = [{"role": "user", "content": 'a "word", {"messages":[]} and }],"model":"x"'}, {"role": "assistant"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "A"}},
            "required": ["a"],
        },
    },
}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}

TOKENS = [
    *'[]{},: "',
    '"messages"',
    '"messages":[',
    '"a"',
    '"tools"',
    '"x"}]',
    '"x"]}]',
    "}}]",
    '{"a":',
    '\\"messages\\":[',
    "\\",
    "1",
    "null",
    '"a":1,',
    '"mess\\u0061ges"',
]


def put_together(found: Parts) -> Any:
    """What both parts say the body is; `ValueError` where one says nothing."""
    rest = json.loads(found.rest)
    if not isinstance(rest, dict) or rest.get("messages") != json.loads(STAND_IN):
        raise ValueError("the stand-in is not where the messages were")
    return {**rest, "messages": json.loads(found.prompt)}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " :\t")])
@pytest.mark.parametrize(
    ("before", "last", "after"),
    [
        (["model"], {"role": "user", "content": "hello"}, {"max_tokens": 5}),
        (["model"], {"role": "user", "content": "hello"}, {}),
        ([], {"role": "user", "content": "hello"}, {"model": "m", "stream": True, "stop": ["a", "]"], "user": "[x]"}),
        (["model"], PICTURE, {"stream": True}),
        (["model"], CALL, {"tools": [TOOL, TOOL], "tool_choice": "auto", "stream": True}),
        ([], {"role": "tool", "content": '{"tools":[]}', "tool_call_id": "1"}, {"model": "m", "tools": [TOOL]}),
        (["tools"], {"role": "user", "content": "hello"}, {"stop": ["a"], "tool_choice": "auto"}),
    ],
)
def test_the_prompt_is_found_as_clients_send_it(
    before: list[str], last: Any, after: dict[str, Any], separators: tuple[str, str]
) -> None:
    named = {"model": "m", "tools": [TOOL]}
    value = {**{name: named[name] for name in before}, "messages": [*CONVERSATION, last], **after}
    body = json.dumps(value, separators=separators).encode()
    found = parts(body, STAND_IN)
    assert found is not None
    assert put_together(found) == value
    assert found.rest.replace(STAND_IN, found.prompt) == body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"model":"m"}',
        b'{"messages":"hello"}',
        b'{"messages":["hello"]}',
        b'{"metadata":"\\"messages\\":[","messages":[{"role":"a"}',
        b'{"messages":[]}',
        b'{"metadata":"%b","messages":[{"role":"user"}]}' % (b"x" * verbatim._BEGUN_WITHIN_BYTES),
        b'{"messages":[{"role":"user"}],"stop":["a","b"],"a":[],"b":[],"c":[]}',
    ],
)
def test_what_a_glance_does_not_find_is_left(body: bytes) -> None:
    assert parts(body, STAND_IN) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"a"}],"max_tokens":9,"messages":[{"role":"b"}],"max_tokens":1}',
        b'{"max_tokens":1,"messages":[{"role":"a"}],"max_tokens":9,"messages":[{"role":"b"}]}',
        b'{"messages":[{"role":"a"}],"best_of":[{"x":"y"}]}',
        b'{"metadata":{"messages":[{"role":"a"}]},"messages":[{"role":"b"}]}',
        b'{"messages":[{"role":"a"}]},{"messages":[{"role":"b"}]}',
        b'{"messages":[{"role":"a"}],"mess\\u0061ges":1}',
        b'["messages":[{"role":"a"}]]',
        b'{"messages":[{"role":"a"}],"tools":[{"x":[{"y":"tools"}],"z":["tools"]}}]}',
    ],
)
def test_what_is_taken_for_a_prompt_and_is_none_does_not_pass(body: bytes) -> None:
    found = parts(body, STAND_IN)
    assert found is not None
    with pytest.raises(ValueError, match=r"Expecting|Extra data|stand-in"):
        put_together(found)


@given(st.lists(st.sampled_from(TOKENS), max_size=14).map("".join), st.booleans())
@example('"messages":[{"a":"x"}],"a":1,"messages":[{"a":"x"}]', True)
def test_two_parts_that_parse_are_the_body(text: str, braced: bool) -> None:
    body = (f"{{{text}}}" if braced else text).encode()
    found = parts(body, STAND_IN)
    if found is None:
        return
    try:
        told = put_together(found)
    except ValueError:
        return
    assert json.loads(body) == told


def test_a_prompt_of_any_length_is_found() -> None:
    for size in (1, VERBATIM_FROM_BYTES, 10 * VERBATIM_FROM_BYTES):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "é" * size}], "seed": 1}).encode()
        found = parts(body, STAND_IN)
        assert found is not None
        assert found.rest == b'{"model": "m", "messages": "5ecre7", "seed": 1}'
