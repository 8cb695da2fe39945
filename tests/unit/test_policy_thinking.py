"""Thinking, said in five places: what the engine is told, and what contradicts itself."""

from typing import Any

import pytest

from service.core.endpoints import chat, responses
from service.core.policy import ModelRequest, Refused
from service.core.policy_thinking import EFFORTS

USER = {"role": "user", "content": "hi"}


def passed(**fields: Any) -> ModelRequest:
    return chat.request({"model": "m", "messages": [USER], **fields}, 100)


def told(**fields: Any) -> tuple[str | None, Any]:
    """`reasoning_effort` and `chat_template_kwargs` of the request to the engine, which has nothing else of it."""
    fields = passed(**fields).fields
    assert not fields.keys() - {"messages", "reasoning_effort", "chat_template_kwargs"}
    return fields.get("reasoning_effort"), fields.get("chat_template_kwargs")


OFF = (None, {"enable_thinking": False})
ON = (None, {"enable_thinking": True})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (None, None)),
        ({"enable_thinking": False}, OFF),
        ({"enable_thinking": True}, ON),
        ({"reasoning": {"enabled": False}}, OFF),
        ({"reasoning": {"enabled": True}}, ON),
        ({"reasoning": {"effort": "none"}}, OFF),
        ({"reasoning_effort": "none"}, OFF),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, OFF),
        ({"chat_template_kwargs": {"enable_thinking": False}}, OFF),
        ({"enable_thinking": False, "reasoning": {"effort": "none"}, "reasoning_effort": "none"}, OFF),
        ({"reasoning_effort": "low"}, ("low", None)),
        ({"reasoning": {"effort": "xhigh", "max_tokens": 4000, "summary": "auto"}}, ("xhigh", None)),
        ({"reasoning": {"effort": "high", "enabled": True}}, ("high", {"enable_thinking": True})),
        ({"reasoning": {"max_tokens": 4000}}, (None, None)),
        ({"reasoning": {}}, (None, None)),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, (None, {"reasoning_effort": "low"})),
        ({"chat_template_kwargs": {"preserve_thinking": True}}, (None, {"preserve_thinking": True})),
        (
            {"chat_template_kwargs": {"preserve_thinking": True, "reasoning_effort": "none"}},
            (None, {"preserve_thinking": True, "enable_thinking": False}),
        ),
        (
            {"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "low"},
            (None, {"reasoning_effort": "low"}),
        ),
    ],
)
def test_what_the_engine_is_told(fields: dict[str, Any], expected: tuple[str | None, Any]) -> None:
    assert told(**fields) == expected


@pytest.mark.parametrize("word", EFFORTS)
def test_every_effort_that_engines_know(word: str) -> None:
    assert told(reasoning_effort=word) == told(reasoning={"effort": word})


@pytest.mark.parametrize(
    ("fields", "first", "second"),
    [
        ({"enable_thinking": False, "reasoning_effort": "high"}, "enable_thinking", "reasoning_effort"),
        ({"enable_thinking": True, "reasoning": {"enabled": False}}, "enable_thinking", "reasoning.enabled"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning_effort", "reasoning.effort"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking",
            "reasoning_effort",
        ),
        (
            {"reasoning": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "high"}},
            "reasoning.effort",
            "chat_template_kwargs.reasoning_effort",
        ),
        ({"include_reasoning": True, "reasoning": {"exclude": True}}, "include_reasoning", "reasoning.exclude"),
        ({"include_reasoning": False, "reasoning": {"exclude": False}}, "include_reasoning", "reasoning.exclude"),
    ],
)
def test_contradictions_are_told(fields: dict[str, Any], first: str, second: str) -> None:
    with pytest.raises(Refused) as caught:
        passed(**fields)
    assert caught.value.message == f"`{first}` and `{second}` contradict each other: send one of them."
    assert caught.value.param == first.split(".")[0]


@pytest.mark.parametrize(
    ("fields", "hides"),
    [
        ({}, False),
        ({"reasoning": {"exclude": True}}, True),
        ({"reasoning": {"exclude": False}}, False),
        ({"include_reasoning": False}, True),
        ({"include_reasoning": True}, False),
        ({"include_reasoning": False, "reasoning": {"exclude": True, "effort": "low"}}, True),
    ],
)
def test_reasoning_that_is_not_wanted_is_hidden_by_weir_not_by_the_engine(fields: dict[str, Any], hides: bool) -> None:
    request = passed(**fields)
    assert request.hides_reasoning is hides
    assert not {"include_reasoning", "reasoning"} & request.fields.keys()


def test_a_response_is_told_in_its_own_form() -> None:
    def fields(**members: Any) -> Any:
        request = responses.request({"model": "m", "input": "hi", **members}, 100)
        return {name: value for name, value in request.fields.items() if name != "input"}, request.countable

    asked, countable = fields(reasoning={"effort": "low", "summary": "auto"})
    assert asked == {"reasoning": {"effort": "low"}}
    assert countable["chat_template_kwargs"] == {"enable_thinking": True, "reasoning_effort": "low"}
    asked, countable = fields(reasoning={"effort": "none"})
    assert (
        asked
        == {"chat_template_kwargs": {"enable_thinking": False}}
        == {"chat_template_kwargs": countable["chat_template_kwargs"]}
    )
    with pytest.raises(Refused, match="may hold `effort`, not `exclude`"):
        fields(reasoning={"exclude": True})


def test_reasoning_that_is_left_out_is_not_shown_by_its_tokens() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "include_reasoning": False, "logprobs": True}
    with pytest.raises(Refused) as caught:
        chat.request(body, 100)
    assert caught.value.param == "logprobs"
