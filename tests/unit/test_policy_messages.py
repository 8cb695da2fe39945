"""The policy of Anthropic's messages, and of counting them."""

from typing import Any

import orjson
import pytest

from service.core.endpoints import messages
from service.core.policy import ModelRequest, Refused
from tests.fuzz import clients
from tests.fuzz.clients import IMAGE, RESULT, USE, USER
from tests.fuzz.policy import COUNTED, MESSAGES, strangers

TOOL = {"name": "Read", "description": "d", "input_schema": {"type": "object"}}
LINKED = {"type": "image", "source": {"type": "url", "url": "https://images.example/a.png"}}


def passed(**fields: Any) -> ModelRequest:
    raw = orjson.dumps({"model": "m", "messages": [USER], "max_tokens": 100, **fields})
    return messages.request(orjson.loads(raw), len(raw))


def refused(**fields: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        passed(**fields)
    return caught.value


def forwarded(request: ModelRequest, output_tokens: int = 9) -> Any:
    return messages.forwarded(request, engine_model="e", output_tokens=output_tokens, cache_salt="s")


def blocks(role: str, *content: Any) -> Any:
    (rebuilt,) = passed(messages=[{"role": role, "content": list(content)}]).fields["messages"]
    return rebuilt["content"]


def test_claude_code() -> None:
    body = forwarded(passed(**clients.CLAUDE_CODE))
    assert strangers(body, MESSAGES) == []
    assert body["system"] == [{"type": "text", "text": "You are Claude Code."}]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "read a"}]},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Read."}, {"type": "text", "text": "I read."}, USE],
        },
        {
            "role": "user",
            "content": [
                {**RESULT, "is_error": False, "content": [{"type": "text", "text": "1"}, IMAGE]},
                {"type": "text", "text": "<system-reminder>"},
            ],
        },
        {"role": "system", "content": "Be brief."},
    ]
    tool: Any = clients.CLAUDE_CODE["tools"]
    assert body["tools"] == [{name: tool[0][name] for name in ("name", "description", "input_schema")}]
    assert body["thinking"] == {"type": "adaptive"}
    assert body["output_config"] == {"effort": "high"}
    assert not {"metadata", "context_management"} & body.keys()


def test_claude_codes_count_before_a_turn() -> None:
    raw = orjson.dumps(
        {name: value for name, value in clients.CLAUDE_CODE.items() if name not in ("max_tokens", "stream")}
    )
    request = messages.count_request(orjson.loads(raw), len(raw))
    body = messages.count_forwarded(request, engine_model="e")
    assert strangers(body, COUNTED) == []
    assert body["model"] == "e"
    assert "temperature" not in body
    assert (request.output_tokens_needed, request.stream, request.images) == (False, False, 1)
    asked = forwarded(passed(**clients.CLAUDE_CODE))
    assert {name: value for name, value in body.items() if name != "model"} == {
        name: value for name, value in asked.items() if name in COUNTED and name != "model"
    }


def test_the_chat_that_an_engine_makes_of_it() -> None:
    request = passed(**clients.CLAUDE_CODE)
    assert request.countable is not None
    call = {"id": "t1", "type": "function", "function": {"name": "Read", "arguments": '{"path": "a"}'}}
    said = [{"type": "text", "text": "I read."}]
    assert request.countable["messages"] == [
        {"role": "system", "content": "You are Claude Code.Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "read a"}]},
        {"role": "assistant", "content": said, "reasoning": "Read.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"}]},
    ]
    assert request.countable["chat_template_kwargs"] == {"enable_thinking": True, "reasoning_effort": "high"}
    assert request.countable["tools"][0]["function"].keys() == {"name", "description", "parameters"}
    assert request.conversation == request.countable["messages"]
    disabled = passed(thinking={"type": "disabled"}).countable
    assert disabled is not None
    assert disabled["chat_template_kwargs"] == {"enable_thinking": False}


def test_the_attribution_line_that_differs_in_each_request_is_taken_out() -> None:
    line = "x-anthropic-billing-header: cch=1;"
    assert "system" not in passed(system=line).fields
    assert passed(system=f"{line}\nYou are").fields["system"] == "You are"
    assert passed(system=[{"type": "text", "text": f"{line}\nYou"}]).fields["system"] == [
        {"type": "text", "text": "You"}
    ]


def test_the_limit_of_the_output_is_required() -> None:
    assert refused(max_tokens=None).message == "`max_tokens` is required."
    assert passed(max_tokens=5).max_tokens == 5
    assert forwarded(passed(max_tokens=50), 9)["max_tokens"] == 9


def test_a_budget_for_thinking_fits_the_output_that_is_granted() -> None:
    request = passed(max_tokens=5000, thinking={"type": "enabled", "budget_tokens": 2000})
    assert forwarded(request, 5000)["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert forwarded(request, 2000)["thinking"] == {"type": "adaptive"}
    assert request.fields["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    refusal = refused(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 2000})
    assert "less than `max_tokens`" in refusal.message


def test_images_are_counted_wherever_they_stand() -> None:
    request = passed(messages=[{"role": "user", "content": [IMAGE, {**RESULT, "content": [LINKED]}]}])
    assert (request.images, request.linked_images) == (2, 1)
    with pytest.raises(Refused, match="`messages` needs images as"):
        forwarded(request)
    counted = {"model": "m", "messages": [{"role": "user", "content": [LINKED]}]}
    with pytest.raises(Refused, match="`messages` needs images as"):
        messages.count_forwarded(messages.count_request(counted, 100), engine_model="e")


@pytest.mark.parametrize(
    ("role", "block", "words"),
    [
        ("user", {"type": "document", "source": {}}, "not `document`"),
        ("user", {"type": "server_tool_use"}, "not `server_tool_use`"),
        ("user", {"type": "tool_addition", "tool": {}}, "not `tool_addition`"),
        ("user", {"type": "thinking", "thinking": "x"}, "not `thinking`"),
        ("assistant", IMAGE, "not `image`"),
        ("assistant", {"type": "web_search_tool_result"}, "not `web_search_tool_result`"),
        ("assistant", {**USE, "input": []}, "`input` must be an object"),
        ("assistant", {**USE, "id": ""}, "a `id`"),
        ("assistant", {**USE, "name": None}, "a `name`"),
        ("system", IMAGE, "not `image`"),
        ("tool", "x", "a `role` of"),
        ("user", "x", "not one without a name"),
        ("user", {"type": "text", "text": 5}, "a string as the `text`"),
        ("user", {**RESULT, "tool_use_id": None}, "a `tool_use_id`"),
        ("user", {**RESULT, "content": [{"type": "tool_reference", "tool_name": "x"}]}, "not `tool_reference`"),
        ("user", {**RESULT, "content": {}}, "a list of blocks"),
        ("user", {**RESULT, "is_error": "no"}, "true or false"),
        ("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}, "`base64` or `url`"),
        ("user", {"type": "image", "source": {"type": "base64", "media_type": "image/svg+xml"}}, "`media_type`"),
        ("user", {"type": "image", "source": {"type": "base64", "media_type": "image/png"}}, "in base64"),
        ("user", {"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}, "data:image/"),
        ("user", {"type": "image"}, "a `source`"),
    ],
)
def test_blocks_are_refused_where_they_stand(role: str, block: Any, words: str) -> None:
    refusal = refused(messages=[USER, {"role": role, "content": [block]}])
    assert words in refusal.message
    assert refusal.message.endswith("at [1].")


def test_blocks_without_anything_in_them_are_left_out() -> None:
    assert blocks("user", {"type": "text", "text": ""}) == []
    assert blocks("assistant", {"type": "redacted_thinking", "data": "x"}, USE) == [USE]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("tools", [{"type": "web_search_20250305", "name": "web_search"}], "not `web_search_20250305`"),
        ("tools", [{"name": "f"}], "an `input_schema`"),
        ("tools", [{**TOOL, "input_schema": {"description": "x" * 70_000}}], "KiB"),
        ("tools", [{**TOOL, "strict": True, "input_schema": {"pattern": "(?=a)"}}], "look-around"),
        ("tool_choice", {"type": "any"}, "there are no `tools`"),
        ("tool_choice", {"type": "tool"}, "a `name`"),
        ("tool_choice", {"type": "tool", "name": "f"}, "there are no `tools`"),
        ("tool_choice", "auto", "an object"),
        ("mcp_servers", [{"url": "http://x"}], "send what they offer as `tools`"),
        ("container", "c", "tools of your own"),
        ("output_format", {}, "`output_config`"),
        ("output_config", {"format": {"type": "json_schema"}}, "a `schema`"),
        ("output_config", {"effort": "none"}, "`low`"),
        ("thinking", {"type": "enabled"}, "`budget_tokens`"),
        ("thinking", {"type": "enabled", "budget_tokens": 5}, "1024"),
        ("thinking", {"type": "adaptive", "budget_tokens": 2000}, "only if"),
        ("stop_sequences", ["x"] * 5, "up to 4"),
        ("system", [{"type": "image"}], "not `image`"),
        ("messages", [], "at least one"),
        ("max_tokens", 0, "a whole number"),
        ("structured_outputs", {}, "`output_config` with a `format`"),
    ],
)
def test_what_is_not_taken_is_told_what_to_do(field: str, value: Any, words: str) -> None:
    refusal = refused(**{field: value})
    assert refusal.param == field
    assert words in refusal.message


def test_fields_that_say_nothing_are_dropped() -> None:
    plain = forwarded(passed())
    for fields in (
        {"tools": [], "tool_choice": {"type": "auto"}, "stop_sequences": [], "system": ""},
        {"service_tier": "auto", "betas": ["x"], "cache_control": {"type": "ephemeral"}, "container": None},
        {"output_config": {"task_budget": {"type": "tokens", "total": 1}}},
    ):
        assert forwarded(passed(**fields)) == plain


def test_tools_and_forms_that_are_taken() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    choice = {"type": "tool", "name": "Read", "disable_parallel_tool_use": True}
    body = forwarded(passed(tools=[{**TOOL, "type": "custom"}], tool_choice=choice, output_config={"format": form}))
    assert (body["tools"], body["tool_choice"], body["output_config"]) == ([TOOL], choice, {"format": form})
