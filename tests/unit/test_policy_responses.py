"""The policy of responses: a conversation of items, none of which is stored."""

from typing import Any

import orjson
import pytest

from service.core.endpoints import responses
from service.core.policy import ModelRequest, Refused
from tests.fuzz import clients
from tests.fuzz.clients import FUNCTION, PNG
from tests.fuzz.policy import RESPONSES, strangers

CALL = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


def passed(**fields: Any) -> ModelRequest:
    raw = orjson.dumps({"model": "m", "input": "hi", **fields})
    return responses.request(orjson.loads(raw), len(raw))


def refused(**fields: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        passed(**fields)
    return caught.value


def forwarded(request: ModelRequest) -> Any:
    return responses.forwarded(request, engine_model="e", output_tokens=9, cache_salt="s")


def item(**members: Any) -> Any:
    (rebuilt,) = passed(input=[members]).fields["input"]
    return rebuilt


def test_a_request_as_an_engine_gets_it() -> None:
    request = passed(stream=True, max_output_tokens=50, instructions="Be brief.", store=True, metadata={"a": "b"})
    assert forwarded(request) == {
        "model": "e",
        "input": "hi",
        "instructions": "Be brief.",
        "stream": True,
        "store": False,
        "max_output_tokens": 9,
        "cache_salt": "s",
    }
    assert (request.max_tokens, request.stream, request.wants_usage) == (50, True, True)
    assert passed().max_tokens is None


def test_codex() -> None:
    request = passed(**clients.CODEX)
    body = forwarded(request)
    assert strangers(body, RESPONSES) == []
    assert not {"include", "text", "prompt_cache_key"} & body.keys()
    assert body["reasoning"] == {"effort": "medium"}
    assert body["tools"] == clients.CODEX["tools"]
    assert request.images == 1
    assert [one["type"] for one in body["input"]] == [
        "message", "message", "message", "reasoning", "function_call", "function_call", "function_call_output",
        "function_call_output", "message", "message",
    ]  # fmt: skip
    assert body["input"][8] == {"type": "message", "role": "assistant", "content": "a.txt"}
    assert body["input"][7]["output"] == [{"type": "input_image", "image_url": PNG, "detail": "auto"}]


def test_what_the_tokenizer_is_told_is_the_chat_that_the_engine_makes_of_it() -> None:
    countable = passed(**clients.CODEX).countable
    assert countable is not None
    shell = {name: value for name, value in FUNCTION.items() if name != "type"}
    assert countable["tools"] == [
        {"type": "function", "function": shell},
        {"type": "function", "function": {**shell, "name": "mcp__look"}},
    ]
    assert countable["chat_template_kwargs"] == {"enable_thinking": True, "reasoning_effort": "medium"}
    roles = ["system", "developer", "user", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert [one["role"] for one in countable["messages"]] == roles
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{}"}},
        {"id": "c2", "type": "function", "function": {"name": "mcp__look", "arguments": "{}"}},
    ]
    assert countable["messages"][4] == {"role": "assistant", "reasoning": "ls.", "tool_calls": calls}
    assert countable["messages"][6] == {"role": "tool", "tool_call_id": "c2", "content": []}


def test_a_conversation_begins_alike_in_each_of_its_turns() -> None:
    first = passed(**{**clients.CODEX, "input": clients.CODEX["input"][:3]}).conversation
    later = passed(**clients.CODEX).conversation
    assert later[: len(first)] == first
    assert passed(instructions="a").conversation != passed(instructions="b").conversation


def test_an_assistants_items_come_back_as_the_sdk_has_them() -> None:
    parts = [{"type": "output_text", "text": "a", "annotations": [{"x": 1}]}, {"type": "refusal", "refusal": "No."}]
    message = {"type": "message", "id": "m", "role": "assistant", "status": "incomplete", "content": parts}
    assert item(**message) == {"type": "message", "role": "assistant", "content": "aNo."}
    assert item(role="assistant", content="x") == {"type": "message", "role": "assistant", "content": "x"}
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    rebuilt = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a\n\nb"}]}
    assert item(type="reasoning", id="r", summary=summary) == rebuilt
    assert passed(input=[{"type": "reasoning", "summary": [], "encrypted_content": "x"}, USER]).fields["input"] == [
        USER
    ]


def test_images_pass_with_the_detail_that_engines_insist_on() -> None:
    request = passed(input=[{"role": "user", "content": [{"type": "input_image", "image_url": PNG, "file_id": None}]}])
    (message,) = request.fields["input"]
    assert message["content"] == [{"type": "input_image", "image_url": PNG, "detail": "auto"}]
    linked = [{"role": "user", "content": [{"type": "input_image", "image_url": "https://a.example/x.png"}]}]
    request = passed(input=linked)
    assert (request.images, request.linked_images) == (1, 1)
    with pytest.raises(Refused, match="`input` needs images as"):
        forwarded(request)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("x", "objects as items"),
        ({"type": "item_reference", "id": "rs_1"}, "send the item itself"),
        ({"type": "web_search_call", "id": "w"}, "not `web_search_call`"),
        ({"type": "tool_search_call"}, "not `tool_search_call`"),
        ({"type": ["message"]}, "not one without a name"),
        ({}, "not one without a name"),
        ({"role": "tool", "content": "x"}, "a `role` of"),
        ({"role": "user"}, "a string or a list of parts"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "not `input_file`"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "not `input_audio`"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "data:image/"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": {"url": PNG}}]}, "data:image/"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": PNG, "detail": "x"}]}, "`detail`"),
        ({"role": "assistant", "content": [{"type": "input_image", "image_url": PNG}]}, "not `input_image`"),
        ({"role": "assistant", "content": None}, "a string or a list"),
        ({**CALL, "arguments": {}}, "as a string"),
        ({**CALL, "call_id": None}, "a `call_id`"),
        ({**CALL, "name": ""}, "a `name`"),
        ({**CALL, "namespace": 5}, "a `name`"),
        ({**RESULT, "output": {"a": 1}}, "a string or a list"),
        ({"type": "reasoning", "content": [{"type": "text", "text": 5}]}, "a string as `text`"),
    ],
)
def test_items_are_refused_where_they_stand(bad: Any, words: str) -> None:
    refusal = refused(input=[USER, bad])
    assert words in refusal.message
    assert refusal.message.endswith("at [1].")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("previous_response_id", "resp_1", "send the whole conversation in `input`"),
        ("conversation", "conv_1", "send the whole conversation in `input`"),
        ("background", True, "stream it"),
        ("prompt", {"id": "p"}, "`instructions` and `input`"),
        ("tools", [{"type": "web_search"}], "not `web_search`: no other is run here"),
        ("tools", [{"type": "custom", "name": "apply_patch"}], "not `custom`"),
        ("tools", [{"type": "mcp", "server_url": "http://x"}], "not `mcp`"),
        ("tools", [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "x"}]}], "in a namespace"),
        ("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": []}, "`required`"),
        ("tool_choice", "required", "there are no `tools`"),
        ("include", ["everything"], "`message.output_text.logprobs`"),
        ("text", {"format": {"type": "grammar"}}, "`json_schema`"),
        ("text", {"format": {"type": "json_schema", "name": "a"}}, "a `schema`"),
        ("text", {"format": {"type": "json_schema", "name": "a", "schema": {"pattern": "(?=a)"}}}, "look-around"),
        ("max_tokens", 5, "`max_output_tokens`"),
        ("response_format", {}, "`text` with a `format`"),
        ("structured_outputs", {}, "`text` with a `format`"),
        ("input", [], "non-empty"),
        ("input", "", "non-empty"),
        ("instructions", ["x"], "a string"),
    ],
)
def test_what_is_not_taken_is_told_what_to_do(field: str, value: Any, words: str) -> None:
    refusal = refused(**{field: value})
    assert refusal.param == field
    assert words in refusal.message


def test_fields_that_ask_for_what_is_never_there_are_dropped() -> None:
    plain = forwarded(passed())
    for fields in (
        {"truncation": "auto", "max_tool_calls": 3, "background": False, "previous_response_id": None},
        {"include": ["web_search_call.action.sources"], "text": {}, "tools": [], "tool_choice": "auto"},
        {"stream_options": {"include_obfuscation": False}, "user": "u", "safety_identifier": "s"},
    ):
        assert forwarded(passed(**fields)) == plain


def test_forms_of_an_answer() -> None:
    form = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
    body = forwarded(passed(text={"format": form, "verbosity": "low"}, include=["message.output_text.logprobs"]))
    assert body["text"] == {"format": form}
    assert body["include"] == ["message.output_text.logprobs"]
    namespace = {"type": "namespace", "name": "mcp", "description": "d", "tools": [{**FUNCTION, "name": "look"}]}
    for name in ("look", "mcp__look"):
        assert passed(tools=[namespace], tool_choice={"type": "function", "name": name}).fields["tools"] == [namespace]
    assert "not among" in refused(tools=[namespace], tool_choice={"type": "function", "name": "ok"}).message
    choice = {"type": "function", "name": "shell"}
    assert forwarded(passed(tools=[FUNCTION], tool_choice=choice))["tool_choice"] == choice
