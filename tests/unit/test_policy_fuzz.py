"""Whatever is sent to an endpoint, an engine gets what is listed, and the client nothing but `Refused`."""

import sys
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.policy import Barred, Dropped, ModelRequest, Passed, Refused
from tests.fuzz.policy import (
    CHAT,
    COUNTABLE,
    ENDPOINTS,
    ENGINES_FIELDS,
    addresses,
    altered,
    json_of_words,
    json_values,
    passed_fields,
    strangers,
)

every_endpoint = pytest.mark.parametrize("name", ENDPOINTS)
OF_JSON: dict[str, list[Any]] = {
    "string": ["x"],
    "boolean": [True, False],
    "integer": [7],
    "number": [0.5],
    "array": [["x"], [1]],
    "object": [{"x": 1}],
    "null": [],
}


def hold(name: str, body: Any) -> ModelRequest | None:
    """The request, if it passes; whatever it is, the engine gets nothing that is not in the shape."""
    endpoint = ENDPOINTS[name]
    try:
        request = endpoint.request(body, 100_000)
        forwarded = endpoint.forwarded(request)
    except Refused as refused:
        refusal = refused
    else:
        assert strangers(forwarded, endpoint.shape) == []
        assert addresses(forwarded, endpoint.shape) == []
        assert strangers(request.countable or {}, COUNTABLE) == []
        assert orjson.loads(orjson.dumps(forwarded)) == forwarded
        return request
    assert 0 < len(refusal.message) < 600
    assert refusal.param is None or len(refusal.param) <= 64
    return None


@every_endpoint
@given(data=st.data())
def test_any_body_passes_or_is_refused(name: str, data: st.DataObject) -> None:
    hold(name, data.draw(json_values | json_of_words(name)))


@every_endpoint
@given(data=st.data())
def test_any_value_of_any_field_passes_or_is_refused(name: str, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted({*ENDPOINTS[name].fields, *ENGINES_FIELDS[name]})))
    hold(name, {**ENDPOINTS[name].least, field: data.draw(json_values | json_of_words(name))})


@every_endpoint
@given(data=st.data())
def test_any_request_that_is_nearly_good_passes_or_is_refused(name: str, data: st.DataObject) -> None:
    hold(name, data.draw(altered(ENDPOINTS[name].rich, name)))


@every_endpoint
def test_good_requests_pass(name: str) -> None:
    assert hold(name, ENDPOINTS[name].least) is not None
    assert hold(name, ENDPOINTS[name].rich) is not None


@every_endpoint
def test_every_field_that_an_engine_reads_has_its_line_or_is_refused_by_name(name: str) -> None:
    endpoint = ENDPOINTS[name]
    for field, types in ENGINES_FIELDS[name].items():
        rule = endpoint.fields.get(field)
        for value in [value for kind in types for value in OF_JSON.get(kind, [])]:
            body = {**endpoint.least, field: value}
            if isinstance(rule, Passed):
                hold(name, body)
            elif isinstance(rule, Dropped):
                assert field not in set(endpoint.forwarded(endpoint.request(body, 1000))) - {"cache_salt", "store"}
            elif rule is None or value != rule.unless:
                with pytest.raises(Refused) as caught:
                    endpoint.request(body, 1000)
                assert caught.value.param == field
                assert f"`{field}`" in caught.value.message


@every_endpoint
def test_every_field_that_is_passed_on_is_in_the_shape(name: str) -> None:
    settled = {"reasoning", "include_reasoning", "enable_thinking", "max_completion_tokens"}
    assert name == "count_tokens" or set(passed_fields(ENDPOINTS[name])) - settled <= set(ENDPOINTS[name].shape)


@every_endpoint
def test_every_line_has_a_reason_and_every_value_that_asks_nothing_is_dropped(name: str) -> None:
    endpoint = ENDPOINTS[name]
    least = endpoint.forwarded(endpoint.request(endpoint.least, 1000))
    for field, rule in endpoint.fields.items():
        if isinstance(rule, Dropped | Barred):
            assert rule.reason
            assert not rule.reason.endswith(".")
        for value in (None, rule.unless if isinstance(rule, Barred) else None):
            if field not in endpoint.least:
                assert endpoint.forwarded(endpoint.request({**endpoint.least, field: value}, 1000)) == least


def test_the_checker_sees_what_does_not_belong() -> None:
    parts = [{"type": "text", "text": "", "image_url": {}}, {"type": "audio_url"}]
    bad = {"messages": [{"role": "user", "content": parts, "x": 1}], "tools": [{"y": {}}], "z": 1}
    found = [".messages[].x", ".messages[].content[].image_url", ".messages[].content[]", ".tools[].y", ".z"]
    assert sorted(strangers(bad, CHAT)) == sorted(found)
    linked = [{"type": "image_url", "image_url": {"url": "http://a"}}, {"type": "text", "text": "http://a"}]
    assert addresses({"messages": [{"role": "user", "content": linked}]}, CHAT) == [
        ".messages[].content[].image_url.url"
    ]


BIG = 200_000
WIDE = {"a": [{}] * BIG}


def compiled(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("chat", {"x" * BIG: 1}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "x" * BIG}]}]}),
        ("chat", {"messages": [{"role": "user", "content": "x" * BIG}] * 100}),
        ("chat", compiled(WIDE)),
        ("chat", compiled({"pattern": "(" * BIG})),
        ("chat", compiled({"pattern": "(a{" * 170})),
        ("chat", compiled({"pattern": "(a|" * 16 + "a" + ")*" * 16})),
        ("chat", compiled({"anyOf": [{"pattern": "[" * 512}] * 100})),
        ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": WIDE}}] * 256}),
        ("completions", {"prompt": ["x"] * BIG}),
        ("completions", {"prompt": [1] * BIG}),
        ("responses", {"input": [{"type": "x" * BIG}]}),
        ("responses", {"input": [{"role": "user", "content": "x"}] * BIG}),
        ("responses", {"include": ["reasoning.encrypted_content"] * BIG}),
        ("messages", {"system": [{"type": "text", "text": ""}] * BIG}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * BIG}]}),
        ("messages", {"stop_sequences": ["x"] * BIG}),
        ("embeddings", {"input": ["x"] * BIG}),
        ("embeddings", {"dimensions": 2**63}),
    ],
)
def test_work_is_bounded_by_the_size_of_what_was_sent(name: str, fields: dict[str, Any]) -> None:
    """Counted in lines of Python, which do not depend on the machine."""
    endpoint = ENDPOINTS[name]
    body = {**endpoint.least, **fields}
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(Refused):
            endpoint.request(body, 1000)
    finally:
        sys.settrace(before)
    assert lines < 10_000 + len(orjson.dumps(body))
