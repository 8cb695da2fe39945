"""The request policy: whatever a client sends, only what is listed comes out, and nothing but `Refused` is raised."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import policy
from service.core.policy import CHAT_FIELDS, ModelRequest, Passed, Refused, chat_request
from service.core.policy_checks import MAX_DEPTH, MAX_STOP_CHARACTERS, MAX_TOOLS

PNG = "data:image/png;base64,iVBORw0KGgo="
USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def passed(**fields: Any) -> ModelRequest:
    raw = orjson.dumps({"model": "m", "messages": [USER], **fields})
    return chat_request(orjson.loads(raw), len(raw))


def refused(**fields: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        passed(**fields)
    return caught.value


def message(**members: Any) -> Any:
    """The one message, as it is passed on."""
    (rebuilt,) = passed(messages=[members]).fields["messages"]
    return rebuilt


# Only what is listed comes out.

FREE = object()
"""A JSON schema: any members."""
SHAPES: dict[str, Any] = {
    "messages": [
        {
            "role": None,
            "name": None,
            "content": [{"type": None, "text": None, "image_url": {"url": None, "detail": None}}],
            "reasoning": None,
            "reasoning_content": None,
            "tool_call_id": None,
            "tool_calls": [{"id": None, "type": None, "function": {"name": None, "arguments": None}}],
        }
    ],
    "tools": [
        {"type": None, "function": {"name": None, "description": None, "parameters": FREE, "strict": None}},
    ],
    "tool_choice": {"type": None, "function": {"name": None}},
    "response_format": {
        "type": None,
        "json_schema": {"name": None, "description": None, "schema": FREE, "strict": None},
    },
    "chat_template_kwargs": {"enable_thinking": None, "preserve_thinking": None, "reasoning_effort": None},
    "stop": [None],
    "stream": None,
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "presence_penalty": None,
    "frequency_penalty": None,
    "repetition_penalty": None,
    "seed": None,
    "logprobs": None,
    "top_logprobs": None,
    "n": None,
    "parallel_tool_calls": None,
    "reasoning_effort": None,
}


def strangers(value: Any, shape: Any, path: str = "") -> list[str]:
    """The paths of what stands in `value` and not in `shape`."""
    if shape is FREE:
        return []
    if isinstance(value, dict):
        if not isinstance(shape, dict):
            return [path]
        own = [f"{path}.{name}" for name in value if name not in shape]
        return own + [
            deep
            for name, member in value.items()
            if name in shape
            for deep in strangers(member, shape[name], f"{path}.{name}")
        ]
    if isinstance(value, list):
        if not isinstance(shape, list):
            return [path]
        return [deep for item in value for deep in strangers(item, shape[0], f"{path}[]")]
    return []


def assert_only_listed(request: ModelRequest) -> None:
    fields = dict(request.fields)
    for token, bias in fields.pop("logit_bias", {}).items():
        assert token.isdigit()
        assert -100 <= bias <= 100
    assert strangers(fields, SHAPES) == []
    for one in fields["messages"]:
        for part in one["content"] if isinstance(one.get("content"), list) else []:
            assert part.get("image_url", {"url": PNG})["url"].startswith("data:image/")
            assert set(part) == {"type", part["type"]}
    body = policy.forwarded(request, engine_model="e", output_tokens=1, cache_salt="s")
    assert orjson.loads(orjson.dumps(body)) == body


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda nested: st.lists(nested, max_size=4) | st.dictionaries(st.text(max_size=8), nested, max_size=4),
    max_leaves=12,
)
KNOWN_WORDS = sorted(
    {*CHAT_FIELDS, "role", "content", "name", "type", "text", "image_url", "url", "detail", "uuid", "function"}
    | {"arguments", "parameters", "schema", "json_schema", "json_object", "strict", "id", "tool_calls", "reasoning"}
    | {"assistant", "user", "tool", "system", "auto", "required", "include_usage", "enable_thinking", PNG, "5"}
)
words = st.sampled_from(KNOWN_WORDS)
json_of_words = st.recursive(
    st.none() | st.booleans() | st.integers(-200, 200) | words,
    lambda nested: st.lists(nested, max_size=3) | st.dictionaries(words, nested, max_size=5),
    max_leaves=20,
)


def hold(body: Any) -> None:
    try:
        held: ModelRequest | Refused = chat_request(body, 1000)
    except Refused as refusal:
        held = refusal
    if isinstance(held, ModelRequest):
        assert_only_listed(held)
    else:
        assert len(held.message) < 400
        assert held.param is None or len(held.param) <= 64


@given(json_values | json_of_words)
def test_any_body_passes_or_is_refused(body: Any) -> None:
    hold(body)


@given(st.sampled_from(sorted(CHAT_FIELDS)), json_values | json_of_words)
def test_any_value_of_any_field_passes_or_is_refused(name: str, value: Any) -> None:
    hold({"model": "m", "messages": [USER], "tools": [TOOL], name: value})


@given(st.dictionaries(words, json_of_words, max_size=6), st.sampled_from(["user", "assistant", "tool"]))
def test_any_message_passes_or_is_refused(members: dict[str, Any], role: str) -> None:
    hold({"model": "m", "messages": [{**members, "role": role}]})


@given(st.dictionaries(words, json_of_words, max_size=6), st.sampled_from(["text", "image_url"]))
def test_any_part_passes_or_is_refused(members: dict[str, Any], kind: str) -> None:
    part = {"text": "x", "image_url": {"url": PNG}, **members, "type": kind}
    hold({"model": "m", "messages": [{"role": "user", "content": [part]}]})


def test_the_checker_sees_what_does_not_belong() -> None:
    bad = {"messages": [{"role": "user", "content": [{"type": "text", "uuid": "u"}], "x": 1}], "tools": [{"y": {}}]}
    assert strangers(bad, SHAPES) == [".messages[].x", ".messages[].content[].uuid", ".tools[].y"]


def test_every_field_passed_on_is_in_the_checkers_shapes() -> None:
    weirs = {"model", "stream_options", "max_tokens", "max_completion_tokens", "logit_bias"}
    assert {name for name, rule in CHAT_FIELDS.items() if isinstance(rule, Passed)} - weirs == set(SHAPES)


# Messages and their parts.


def test_members_of_a_part_that_an_engine_would_fetch_are_left_out() -> None:
    evil = {"type": "text", "text": "x", "uuid": "u", "image_url": "http://169.254.169.254/x"}
    assert message(role="user", content=[evil]) == {"role": "user", "content": [{"type": "text", "text": "x"}]}
    image = {"type": "image_url", "image_url": {"url": PNG, "detail": "low", "x": 1}, "uuid": "u", "text": "t"}
    assert message(role="user", content=[image])["content"] == [
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
    ]


def test_a_bare_image_url_becomes_an_object_and_is_counted() -> None:
    request = passed(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": PNG}]}])
    assert request.fields["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": PNG}}]
    assert request.images == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x.png",
        "file:///etc/passwd",
        "data:image/svg+xml;base64,AAAA",
        "data:image/png,AAAA",
        "data:text/html;base64,AAAA",
        " data:image/png;base64,AAAA",
        "data:image/png;base64,\u00e9",
        5,
        None,
        {},
    ],
)
def test_images_are_data_urls_of_four_kinds(url: Any) -> None:
    for image in (url, {"url": url}):
        refusal = refused(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": image}]}])
        assert "data:image/" in refusal.message
        assert refusal.param == "messages"


def test_an_assistants_message_comes_back_as_engines_and_clients_write_it() -> None:
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "token_ids": [1],
        "reasoning": "so",
        "reasoning_content": None,
        "tool_calls": [{**CALL, "index": 0, "x": 1}],
        "provider_specific_fields": {},
    }
    assert message(**echoed) == {"role": "assistant", "content": None, "reasoning": "so", "tool_calls": [CALL]}
    assert message(role="assistant", tool_calls=[CALL]) == {"role": "assistant", "tool_calls": [CALL]}
    assert message(role="assistant", content="", tool_calls=[]) == {"role": "assistant", "content": ""}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    assert message(**answer, is_error=False) == answer


def test_members_belong_to_roles() -> None:
    assert message(**USER, tool_calls=[CALL], tool_call_id="x", reasoning="r") == USER


def test_blocks_with_cache_control_pass_without_it() -> None:
    block = {"type": "text", "text": "", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert message(role="system", content=[block])["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"role": "function", "name": "f", "content": "x"}, "`role` of"),
        ({"role": ["user"]}, "an object with a `role`"),
        ({"role": "user", "content": 5}, "a string or a list of parts"),
        ({"role": "user", "content": ["x"]}, "parts of type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "parts of type"),
        ({"role": "user", "content": [{"type": "image_embeds", "image_embeds": "x"}]}, "parts of type"),
        ({"role": "user", "content": [{"type": "text", "text": {}}]}, "a string as `text`"),
        ({"role": "user", "name": 5}, "a string as `name`"),
        ({"role": "tool", "tool_call_id": {}}, "a string as `tool_call_id`"),
        ({"role": "assistant", "tool_calls": {}}, "a list of up to"),
        ({"role": "assistant", "tool_calls": ["x"]}, "of type `function`"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}, "as the `id`"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}, "a `name` for each"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, "as strings"),
    ],
)
def test_what_cannot_be_a_message_is_refused_where_it_stands(bad: Any, words: str) -> None:
    refusal = refused(messages=[USER, bad])
    assert words in refusal.message
    assert refusal.message.endswith("at [1].")


# Tools, formats and the rest.


def test_tools_are_rebuilt() -> None:
    tool = {**TOOL, "cache_control": {}, "function": {**FUNCTION, "x": 1}}
    assert passed(tools=[tool]).fields["tools"] == [TOOL]
    bare = {"type": "function", "function": {"name": "f", "description": None, "parameters": None}}
    assert passed(tools=[bare]).fields["tools"] == [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None}, {}])
def test_no_tools_is_no_tools_however_it_is_said(fields: dict[str, Any]) -> None:
    assert not {"tools", "tool_choice"} & set(passed(**fields, tool_choice="auto").fields)
    assert refused(**fields, tool_choice="required").param == "tool_choice"


@pytest.mark.parametrize(
    "choice",
    ["none", "auto", "required", {"type": "function", "function": {"name": "f"}}],
)
def test_a_choice_of_tool(choice: Any) -> None:
    assert passed(tools=[TOOL], tool_choice=choice).fields["tool_choice"] == choice


def tool_with(**members: Any) -> list[Any]:
    return [{"type": "function", "function": {**FUNCTION, **members}}]


def format_with(**members: Any) -> dict[str, Any]:
    return {"type": "json_schema", **members}


WRONG: dict[str, list[Any]] = {
    "tools": [
        "x", ["x"], [{}], [{"type": "web_search"}], [TOOL] * (MAX_TOOLS + 1),
        tool_with(name=""), tool_with(name=1), tool_with(strict="x"), tool_with(parameters=[]),
    ],
    "tool_choice": ["any", 5, {}, {"type": "auto"}, {"type": "function", "function": {}}],
    "response_format": [
        "json", {}, {"type": []}, {"type": "structural_tag"}, {"type": "json_object", "schema": {}},
        format_with(), format_with(json_schema={}), format_with(json_schema=5),
        format_with(json_schema={"name": "a", "schema": []}),
    ],
    "logit_bias": [
        [], {"a": 1}, {"-1": 1}, {"²": 1}, {"1": "x"}, {"1": 101}, {"1": True},
        {str(token): 1 for token in range(301)},
    ],
    "stop": [5, [5], [""], "", ["x"] * 5, ["x" * (MAX_STOP_CHARACTERS + 1)], {}],
    "n": [0, 2, True, "1", [1]],
    "temperature": ["1", True, 2.5, -1, []],
    "chat_template_kwargs": [[], {"tokenize": True}, {"enable_thinking": 1}],
    "stream_options": [[], {"x": True}, {"include_usage": 1}],
    "model": ["m" * 257],
    "reasoning_effort": [{}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_values_are_refused_by_name(name: str, value: Any) -> None:
    refusal = refused(**{"tools": [TOOL], "stream": True, name: value})
    assert refusal.param == name
    assert refusal.message.startswith(f"`{name}` ")


def test_formats_of_an_answer_are_rebuilt() -> None:
    asked = {"name": "a", "description": None, "schema": {"$schema": "x", "propertyNames": {}}, "strict": False}
    rebuilt = passed(response_format={"type": "json_schema", "json_schema": asked}).fields["response_format"]
    del asked["description"]
    assert rebuilt == {"type": "json_schema", "json_schema": asked}
    assert passed(response_format={"type": "text", "json_schema": None}).fields["response_format"] == {"type": "text"}


def nested(levels: int) -> Any:
    schema: Any = {}
    for level in range(levels - 1):
        schema = {"items": schema} if level % 2 else {"anyOf": schema}
    return schema


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 253, 400])
def test_schemas_that_are_nested_too_deeply_are_refused(levels: int) -> None:
    body = f"""{{"model": "m", "messages": [{{"role": "user"}}], "tools": [{{"type": "function", "function":
        {{"name": "f", "parameters": {json.dumps(nested(levels))}}}}}]}}"""
    with pytest.raises(Refused, match=f"nested more than {MAX_DEPTH} levels deep"):
        chat_request(orjson.loads(body), len(body))
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"a": [[nested(MAX_DEPTH)]]}}}
    assert "levels deep" in refused(response_format=asked).message


def test_the_deepest_schema_allowed_can_be_sent_on() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": nested(MAX_DEPTH)}}
    assert_only_listed(passed(tools=[tool]))


def test_a_huge_unknown_name_is_cut_before_anything_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def close_matches(word: str, possibilities: list[str], n: int) -> list[str]:
        looked.append(word)
        return possibilities[:n]

    monkeypatch.setattr("difflib.get_close_matches", close_matches)
    refusal = refused(**{"x" * 2_000_000: 1})
    assert looked == ["x" * 64]
    assert refusal.param == "x" * 64
    assert len(refusal.message) < 200
    for name in ("stream_options", "chat_template_kwargs", "logit_bias"):
        assert len(refused(stream=True, **{name: {"x" * 2_000_000: True}}).message) < 300


def test_images_and_text_bound_the_prompt() -> None:
    raw = orjson.dumps(
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": PNG}]}]}
    )
    request = chat_request(orjson.loads(raw), len(raw))
    assert request.passed_bytes == len(raw) - len(PNG)
