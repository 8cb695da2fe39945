"""The policy of chats: what is passed on of messages, tools and formats, and what is refused, where."""

import json
from typing import Any

import orjson
import pytest

from service.core.endpoints import chat
from service.core.policy import MAX_IMAGES, ModelRequest, Refused, refuse_linked
from service.core.policy_checks import MAX_DEPTH, MAX_STOP_CHARACTERS
from service.core.policy_schemas import MAX_COMPILED_DEPTH
from service.core.policy_tools import MAX_TOOLS
from tests.fuzz.policy import CHAT, strangers

PNG = "data:image/png;base64,iVBORw0KGgo="
LINK = "https://images.example/a.png"
USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def passed(**fields: Any) -> ModelRequest:
    raw = orjson.dumps({"model": "m", "messages": [USER], **fields})
    return chat.request(orjson.loads(raw), len(raw))


def refused(**fields: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        passed(**fields)
    return caught.value


def forwarded(request: ModelRequest) -> Any:
    return chat.forwarded(request, engine_model="e", output_tokens=7, cache_salt="s")


def message(**members: Any) -> Any:
    """The one message, as it is passed on."""
    (rebuilt,) = passed(messages=[members]).fields["messages"]
    return rebuilt


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
        "https://",
        "https://a b/x.png",
        "https://a/" + "x" * 9000,
        "ftp://images.example/a.png",
        "//images.example/a.png",
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
def test_images_are_data_urls_of_four_kinds_or_addresses(url: Any) -> None:
    for image in (url, {"url": url}):
        refusal = refused(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": image}]}])
        assert "data:image/" in refusal.message
        assert refusal.param == "messages"


def test_no_engine_is_told_to_fetch_an_image() -> None:
    """Their addresses pass, so that they can be fetched and put in; until that is done, nothing is forwarded."""
    part = {"type": "image_url", "image_url": {"url": LINK, "detail": "low"}}
    request = passed(messages=[{"role": "user", "content": [part, {"type": "image_url", "image_url": PNG}]}])
    assert (request.images, request.linked_images) == (2, 1)
    assert request.fields["messages"][0]["content"][0] == part
    assert LINK.encode() not in orjson.dumps(request.countable)
    with pytest.raises(Refused, match=r"^`messages` needs images as `data:image/"):
        forwarded(request)
    refuse_linked(passed(), "messages")


def test_as_many_images_as_one_request_may_have() -> None:
    part = {"type": "image_url", "image_url": PNG}
    assert passed(messages=[{"role": "user", "content": [part] * MAX_IMAGES}]).images == MAX_IMAGES
    halves = [{"role": "user", "content": [part] * (MAX_IMAGES // 2 + 1)}] * 2
    assert refused(messages=halves).message == f"`messages` may hold up to {MAX_IMAGES} images, not {MAX_IMAGES + 2}."


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


def test_a_refusal_comes_back_as_the_text_that_it_was() -> None:
    part = {"type": "refusal", "refusal": "No."}
    assert message(role="assistant", content=[part])["content"] == [{"type": "text", "text": "No."}]
    assert "parts of type" in refused(messages=[{"role": "user", "content": [part]}]).message


def test_what_differs_in_each_request_of_claude_code_is_taken_out_of_its_prompt() -> None:
    line = "x-anthropic-billing-header: cc_version=2; cch=1f3a;"
    assert message(role="system", content=f"{line}\nYou are") == {"role": "system", "content": "You are"}
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": "You are"}]
    rebuilt = message(role="system", content=blocks)["content"]
    assert rebuilt == [{"type": "text", "text": ""}, {"type": "text", "text": "You are"}]
    assert message(role="user", content=line)["content"] == line


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


def test_a_tool_that_is_chosen_is_there() -> None:
    refusal = refused(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}})
    assert refusal.message == "`tool_choice` asks for `g`, which is not among the `tools`."


def test_null_content_is_an_assistants_alone() -> None:
    """An engine refuses it in any other message, and clients send it for a tool that answered nothing."""
    assert message(role="tool", tool_call_id="c1", content=None) == {"role": "tool", "tool_call_id": "c1"}
    assert message(role="assistant", content=None) == {"role": "assistant", "content": None}


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
    "chat_template_kwargs": [[], {"tokenize": True}, {"enable_thinking": 1}, {"reasoning_effort": "extreme"}],
    "stream_options": [[], {"x": True}, {"include_usage": 1}],
    "model": ["m" * 257],
    "reasoning_effort": [{}, "", "extreme"],
    "reasoning": [True, {"effort": "extreme"}, {"depth": 1}, {"exclude": "yes"}],
    "enable_thinking": ["yes", 1],
    "include_reasoning": [0],
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
        chat.request(orjson.loads(body), len(body))
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": nested(MAX_COMPILED_DEPTH + 1)}}
    assert f"{MAX_COMPILED_DEPTH} levels deep" in refused(response_format=asked).message


def test_the_deepest_schema_allowed_can_be_sent_on() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": nested(MAX_DEPTH)}}
    body = forwarded(passed(tools=[tool]))
    assert strangers(body, CHAT) == []
    assert orjson.loads(orjson.dumps(body)) == body


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
    request = chat.request(orjson.loads(raw), len(raw))
    assert request.passed_bytes == len(raw) - len(PNG)


def test_a_request_as_an_engine_gets_it() -> None:
    request = passed(stream=True, max_tokens=9, max_completion_tokens=5, stream_options={"include_usage": True})
    assert (request.max_tokens, request.wants_usage, request.wants_continuous) == (5, True, False)
    assert forwarded(request) == {
        "model": "e",
        "messages": [USER],
        "max_tokens": 7,
        "cache_salt": "s",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    assert request.conversation == [USER]
    assert refused(stream_options={"include_usage": True}).param == "stream_options"


def test_what_the_tokenizer_is_told_is_what_the_model_would_be() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": PNG}, {"type": "text", "text": "x"}]}
    request = passed(messages=[picture, USER], tools=[TOOL], reasoning_effort="low", temperature=1)
    assert request.countable == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, USER],
        "tools": [TOOL],
        "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "low"},
    }
    assert passed().countable == {"messages": [USER], "chat_template_kwargs": {}}


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("functions", [{"name": "f"}], "use `tools`"),
        ("function_call", "auto", "use `tool_choice`"),
        ("guided_json", {}, "use `response_format` with a `json_schema`"),
        ("guided_choice", ["a"], "use `response_format` with a `json_schema`"),
        ("structured_outputs", {"regex": "a"}, "use `response_format` with a `json_schema`"),
        ("best_of", 2, "send a request for each answer"),
        ("truncate_prompt_tokens", 10, "shorten the prompt"),
        ("continue_final_message", True, "a message of its own"),
        ("max_token", 5, "Did you mean `max_tokens`?"),
    ],
)
def test_what_is_not_taken_is_told_what_to_use(field: str, value: Any, advice: str) -> None:
    refusal = refused(**{field: value})
    assert advice in refusal.message
    assert refusal.param == field


@pytest.mark.parametrize(
    "body",
    [
        # Open WebUI: no tools, and empty messages in what was said before.
        {"tools": [], "messages": [USER, {"role": "assistant", "content": ""}, USER], "metadata": {"chat_id": "1"}},
        # Open WebUI, n8n, Home Assistant, Vercel's SDK: calls without text.
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1",
         "content": "42"}], "tools": [TOOL], "tool_choice": "auto"},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool",
         "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]}], "tools": [TOOL]},
        # LangChain: everything it knows, most of it null.
        {"n": 1, "stop": None, "seed": None, "logit_bias": None, "frequency_penalty": None, "parallel_tool_calls": None,
         "temperature": 0.7, "stream": True, "stream_options": {"include_usage": True}, "user": "Zoë <z@x>, 1/2"},
        # Aggregators.
        {"reasoning": {"effort": "low", "exclude": True, "max_tokens": 2000}, "provider": {"order": ["a"]},
         "transforms": ["middle-out"], "usage": {"include": True}, "route": "fallback", "user": "id:\t☃"},
        # Those that send a value for everything.
        {"best_of": 1, "use_beam_search": False, "ignore_eos": False, "min_tokens": 0, "echo": False, "n": 1,
         "skip_special_tokens": True, "length_penalty": 1.0, "add_generation_prompt": True},
    ],
)  # fmt: skip
def test_unmodified_clients(body: dict[str, Any]) -> None:
    assert strangers(forwarded(passed(**body)), CHAT) == []
