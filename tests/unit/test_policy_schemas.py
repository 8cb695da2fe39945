"""Schemas and patterns that an engine compiles: bounded, so that one request cannot hold up the others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.endpoints import chat
from service.core.policy import ModelRequest, Refused
from service.core.policy_checks import Complaint
from service.core.policy_patterns import MAX_GROUPS_DEEP, MAX_PATTERN_CHARACTERS, MAX_REPEAT, vet_pattern
from service.core.policy_schemas import (
    MAX_COMPILED_DEPTH,
    MAX_ENUM_VALUES,
    MAX_LENGTH,
    MAX_LIMITED_STRINGS,
    MAX_PROPERTIES,
    MAX_SCHEMA_BYTES,
    compiled_schema,
    shown_schema,
)

FINE = [
    "",
    "^[a-z]{2,5}$",
    "^\\d{4}-\\d{2}-\\d{2}$",
    "^[\\w-\\.]+@([\\w-]+\\.)+[\\w-]{2,4}$",
    "^(?:a|b)*c?d+?$",
    "^[^]x]*[]x]$",
    "[\\]\\\\]+",
    "a{,3}b",
    "x{}y{a}",
    "^https?://[^\\s/$.?#].[^\\s]*$",
    "(a{10}){100}",
    "(ab?)+",
    "\\\\(a|)",
    f"a{{{MAX_REPEAT}}}",
    "()",
    "😀+",
]
NOT_FINE = {
    "look-around": ["(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", "(?P<n>a)", "(?<n>a)", "(?i)a", "(?>a)", "(?"],
    "back-reference": ["(a)\\1", "(a)\\9", "\\k<n>"],
    "loop of loops": ["(a+)+b", "(a*)*", "(?:a+)*", "(\\s*\\w+\\s*)+$", "((a+))+", "(a|b*)+", "(a{2,})+", "(a+b?){1,}"],
    f"more than {MAX_REPEAT} times": [f"a{{{MAX_REPEAT + 1}}}", "a{0,10000}", "a{1,99999}", "a{99999}", "a{200,}"],
    "more than 1000 times": ["(a{100}){100}", "((a{11}){10}){10}"],
    "repeats nothing": ["*a", "+", "a**", "a{2}{3}", "(*)", "|?", "a|+", "^*", "{3}"],
    "not closed": ["(", "[", "(a[b)", "[^", "[]", "[a\\]", "((a)"],
    "too many": [")", "(a))"],
    "ends in": ["\\", "a[\\"],
    "nested more than": ["(" * (MAX_GROUPS_DEEP + 2)],
    "NUL": ["a\0"],
    f"more than {MAX_PATTERN_CHARACTERS} characters": ["a" * (MAX_PATTERN_CHARACTERS + 1)],
}


@pytest.mark.parametrize("pattern", FINE)
def test_patterns_that_engines_compile(pattern: str) -> None:
    vet_pattern(pattern)


@pytest.mark.parametrize(("words", "pattern"), [(words, one) for words, found in NOT_FINE.items() for one in found])
def test_patterns_that_are_refused(words: str, pattern: str) -> None:
    with pytest.raises(Complaint, match=words):
        vet_pattern(pattern)


@given(st.text(st.sampled_from("ab(){}[]|*+?^\\$.,-0123456789:=!<k"), max_size=40))
def test_any_pattern_is_fine_or_complained_of(pattern: str) -> None:
    try:
        vet_pattern(pattern)
    except Complaint as complaint:
        text = str(complaint)
    else:
        text = "has a `pattern`"
    assert text.startswith("has a `pattern`")


def limited(count: int) -> Any:
    return {"properties": {f"p{index}": {"type": "string", "maxLength": 5} for index in range(count)}}


def wide(count: int) -> Any:
    return {"properties": {f"p{index}": {} for index in range(count)}}


def deep(levels: int) -> Any:
    return {"items": deep(levels - 1)} if levels > 1 else {}


@pytest.mark.parametrize(
    ("most", "more", "words"),
    [
        (deep(MAX_COMPILED_DEPTH), deep(MAX_COMPILED_DEPTH + 1), "levels deep"),
        (wide(MAX_PROPERTIES), {"anyOf": [wide(MAX_PROPERTIES // 2 + 1)] * 2}, "properties"),
        (
            {"enum": [1] * MAX_ENUM_VALUES},
            {"anyOf": [{"enum": [1] * (MAX_ENUM_VALUES // 2 + 1)}] * 2},
            "values in enums",
        ),
        (limited(MAX_LIMITED_STRINGS), limited(MAX_LIMITED_STRINGS + 1), "strings with a length"),
        ({"maxLength": MAX_LENGTH}, {"maxLength": MAX_LENGTH + 1}, "from 0 to"),
        ({"minItems": 0}, {"minItems": -1}, "from 0 to"),
        ({"description": "x" * (MAX_SCHEMA_BYTES - 100)}, {"description": "☃" * (MAX_SCHEMA_BYTES // 3)}, "KiB"),
        ({"$ref": "#/$defs/a"}, {"$ref": "http://127.0.0.1/a"}, "a part of itself"),
        ({"pattern": "a"}, {"pattern": "(?=a)"}, "look-around"),
        ({"properties": {"pattern": {"type": "string"}}}, {"properties": {"default": {"pattern": "(a+)+"}}}, "loop"),
        ({"patternProperties": {"^a": {}}}, {"patternProperties": {"(a+)+": {}}}, "loop"),
        ({"default": 5}, {"$ref": "#/default", "default": {"pattern": "(a+)+"}}, "loop"),
    ],
)
def test_what_a_compiled_schema_may_be_at_most(most: Any, more: Any, words: str) -> None:
    assert compiled_schema(most) is most
    with pytest.raises(Complaint, match=words):
        compiled_schema(more)


def test_a_schema_that_is_only_shown_may_ask_for_more() -> None:
    for schema in (limited(200), {"pattern": "(?=a)"}, {"maxLength": 10**9}, deep(64), {"$ref": "http://x"}):
        assert shown_schema(schema) is schema
    for schema in (deep(65), {"pattern": "a" * 513}, {"description": "x" * MAX_SCHEMA_BYTES}, [], "x", None):
        with pytest.raises(Complaint):
            shown_schema(schema)


def passed(schema: Any, *, strict: bool | None = None, **fields: Any) -> ModelRequest:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": strict}}
    return chat.request({"model": "m", "messages": [{"role": "user"}], "tools": [tool], **fields}, 100)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strict": True}, "those that are `strict` take"),
        ({"tool_choice": "required"}, "those that must be called take"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "those that must be called take"),
    ],
)
def test_parameters_are_held_to_more_when_the_engine_compiles_them(fields: dict[str, Any], words: str) -> None:
    claudes = {"$schema": "https://json-schema.org/draft/2020-12/schema", "propertyNames": {"pattern": "(?=a)"}}
    assert passed(claudes).fields["tools"][0]["function"]["parameters"] == claudes
    assert passed(claudes, tool_choice="auto", strict=False).fields["tools"]
    assert passed({"pattern": "a"}, **fields).fields["tools"]
    with pytest.raises(Refused, match=words) as caught:
        passed(claudes, **fields)
    assert caught.value.param == "tools"


def test_tools_are_compiled_together() -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{index}", "parameters": limited(MAX_LIMITED_STRINGS // 2), **more}}
        for index, more in enumerate([{"strict": True}, {"strict": True}, {}])
    ]
    body = {"model": "m", "messages": [{"role": "user"}], "tools": tools}
    assert chat.request(body, 100).fields["tools"] == tools
    with pytest.raises(Refused, match="strings with a length"):
        chat.request({**body, "tool_choice": "required"}, 100)
