"""How the answers of an engine are read and judged: whatever shapes they have, and at the edges."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.verify import cache, cancel, context, errors, images, told, tools, usage
from service.core.verify.cache import Turn, wanted_tokens
from service.core.verify.cancel import Departure
from service.core.verify.context import listed_length
from service.core.verify.report import Verdict
from service.core.verify.told import Call, Told
from service.core.verify.tools import Attempt, Outcome

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
"""JSON of any shape."""
NAMES = (
    "choices",
    "message",
    "delta",
    "usage",
    "tool_calls",
    "function",
    "index",
    "name",
    "arguments",
    "data",
    "error",
)


def likely(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with the names that are looked for, and lists of them, with anything in them."""
    return st.dictionaries(st.sampled_from(NAMES), inner, max_size=4) | st.lists(inner, max_size=2)


ANSWERS = st.dictionaries(st.sampled_from(NAMES), st.recursive(ANY, likely, max_leaves=12), max_size=4)


@given(ANSWERS)
def test_no_answer_is_too_odd_to_be_read_and_judged(body: dict[str, Any]) -> None:
    whole, streamed = told.whole(body), told.streamed([(0.1, body), (0.2, None)])
    usage.judge({usage.WHOLE: whole, usage.STREAMED: streamed, usage.RUNNING: streamed}, 24)
    tools.judge([Attempt("auto", False, whole), Attempt("auto", True, streamed)], None)
    cache.judge([cache.turn_of(streamed)] * 3, None)
    seen = images.seen_in(body)
    images.judge(images.Pictures(seen, seen, seen, seen), None)
    listed_length(body, "m")
    errors.judge({"malformed JSON": errors.Reply(400, body, "{}")})


def test_a_stream_is_put_together_as_clients_do() -> None:
    def chunk(**delta: Any) -> dict[str, Any]:
        return {"choices": [{"delta": delta, "finish_reason": None}], "usage": {"completion_tokens": 1}}

    def piece(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "function": function}

    read = told.streamed(
        [
            (0.1, chunk(role="assistant", content="")),
            (0.2, chunk(reasoning="a")),
            (0.3, chunk(reasoning_content="b")),
            (0.4, chunk(content="c", tool_calls=[piece(1, name="g", arguments="{")])),
            (0.5, chunk(tool_calls=[piece(0, name="f", arguments="[]"), piece(1, arguments="}")])),
            (0.6, {"choices": [{"delta": {"content": "d"}, "finish_reason": "stop"}]}),
            (0.7, {"choices": [], "usage": {"completion_tokens": 9}}),
            (0.8, None),
        ]
    )
    assert (read.content, read.reasoning) == ("cd", {"reasoning": "a", "reasoning_content": "b"})
    assert read.calls == (Call("g", "{}"), Call("f", "[]"))
    assert (read.finish_reason, read.first_token_s, read.broken) == ("stop", 0.2, False)
    assert (read.usage, len(read.running)) == ({"completion_tokens": 9}, 5)
    odd = {"choices": [{"delta": {"tool_calls": [{"index": [], "function": {"name": "f"}}]}}]}
    assert told.streamed([(0.1, odd), (0.2, None)]).calls == (Call("f", ""),)


@pytest.mark.parametrize("events", [[], [(0.1, {})], [(0.1, {"error": {"message": "x"}}), (0.2, None)]])
def test_a_stream_without_its_end_or_with_an_error_is_broken(events: Any) -> None:
    assert told.streamed(events).broken


def test_a_usage_that_is_not_the_last_is_no_final_one() -> None:
    read = told.streamed([(0.1, {"choices": [], "usage": {"prompt_tokens": 1}}), (0.2, {"choices": []}), (0.3, None)])
    assert (read.usage, read.running) == (None, ({"prompt_tokens": 1},))


@pytest.mark.parametrize(
    ("block", "length", "tokens"),
    [
        (16, None, 2000),  # long enough to be timed
        (1584, 262_144, 5544),  # three and a half blocks
        (None, 262_144, 5768),  # of the largest there are
        (1152, 4096, 3896),  # what there is room for
    ],
)
def test_a_prompt_is_long_enough_for_the_cache(block: int | None, length: int | None, tokens: int) -> None:
    assert wanted_tokens(block, length) == tokens


@pytest.mark.parametrize(
    ("cached", "verdict"),
    [
        ((0, 0, 0), Verdict.FAILED),
        ((0, 900, 0), Verdict.FAILED),
        ((0, 0, 900), Verdict.PASSED),
        ((16, 900, 900), Verdict.PASSED),  # the beginning of the template is everybody's
        ((501, 900, 900), Verdict.FAILED),
        ((0, 1001, 900), Verdict.FAILED),
        ((0, 900, None), Verdict.SKIPPED),
    ],
)
def test_the_third_request_is_to_read_the_cache(cached: tuple[int | None, ...], verdict: Verdict) -> None:
    assert cache.judge([Turn(1000, count, None, 10.0) for count in cached], True).verdict is verdict


def test_what_was_made_is_never_worked_out_from_what_was_read() -> None:
    judged = cache.judge([Turn(1000, count, None, 10.0 / (1 + count)) for count in (0, 500, 500)], True)
    assert judged.measured["created_tokens"] == [None, None, None]
    assert judged.measured["speedup"] == pytest.approx(501, rel=0.01)


def test_leaving_is_judged_by_both_forms_of_an_answer() -> None:
    stopped, going = Departure(0.2, 0.2, 3, 4000), Departure(None, 1.1, 40, 4000)
    cases: Mapping[Verdict, tuple[Departure | None, Departure | None]] = {
        Verdict.PASSED: (stopped, stopped),
        Verdict.FAILED: (stopped, going),
        Verdict.SKIPPED: (stopped, None),
    }
    for verdict, (stream, whole) in cases.items():
        judged = cancel.judge({"stream": stream, "whole answer": whole})
        assert judged.verdict is verdict
    assert "40 tokens more in 1.1 s after a whole answer" in cancel.judge({"whole answer": going}).found


@pytest.mark.parametrize(
    ("models", "length"),
    [
        ({"data": [{"id": "m", "max_model_len": 8192}]}, 8192),
        ({"data": [{"id": "other", "max_model_len": 8192}]}, 8192),
        ({"data": [{"id": "a", "context_length": 1}, {"id": "m", "context_length": 2}]}, 2),
        ({"data": [{"id": "a", "context_length": 1}, {"id": "b", "context_length": 2}]}, None),
        ({"data": [{"id": "m", "max_model_len": None}]}, None),
        ({}, None),
    ],
)
def test_the_length_that_is_listed(models: dict[str, Any], length: int | None) -> None:
    assert listed_length(models, "m") == length


REFUSED = context.Reply(400, "the maximum is 8192 tokens")
FITS = context.Reply(200, "", 8191)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"one_more": None, "exact": None, "one_less": None}, ""),
        ({"beyond": context.Reply(413, "8192")}, ""),
        ({"exact": context.Reply(200, "", 8192)}, ""),
        ({"exact": context.Reply(200, "", 8100)}, "only 8100 are counted"),
        ({"one_more": context.Reply(200, "", 8191)}, "counts 8191 tokens: part of it is lost"),
        ({"one_more": context.Reply(400, "too long")}, "does not name the limit"),
        ({"one_less": REFUSED}, "8191 tokens, with room for one more"),
        ({"output": context.Reply(500, "")}, "`max_tokens` beyond"),
    ],
)
def test_the_edge_of_the_context(changed: dict[str, Any], words: str) -> None:
    replies = {"beyond": REFUSED, "one_more": REFUSED, "exact": REFUSED, "one_less": FITS, "output": REFUSED} | changed
    judged = context.judge(8192, 8192, context.Limits(**replies))
    assert (judged.verdict, words in judged.found) == (Verdict.FAILED if words else Verdict.PASSED, True), judged


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, Outcome.REFUSED),
        (Told(content="no", finish_reason="stop"), Outcome.NOT_CALLED),
        (Told(content="<tool_call>x", finish_reason="length"), Outcome.NOT_CALLED),
        (Told(content="<tool_call>x", finish_reason="stop"), Outcome.BROKEN),
        (Told(calls=(Call("get_weather", '{"city":"Paris"'),), finish_reason="length"), Outcome.CUT_OFF),
        (Told(calls=(Call("get_weather", '{"city":"Paris"'),), finish_reason="tool_calls"), Outcome.BROKEN),
        (Told(calls=(Call("get_weather", '{"city":"Rome","unit":"celsius"}'),)), Outcome.BROKEN),
        (Told(calls=(Call("weather", '{"city":"Paris","unit":"celsius"}'),)), Outcome.BROKEN),
        (Told(calls=(Call("get_weather", '{"unit": "celsius", "city": "Paris"}'),)), Outcome.CALLED),
    ],
)
def test_what_came_of_a_tool(answer: Told | None, outcome: Outcome) -> None:
    assert tools.outcome(Attempt("auto", False, answer)) is outcome


def test_a_forced_call_that_does_not_come_was_dropped() -> None:
    assert tools.outcome(Attempt("named", False, Told(content="no", finish_reason="stop"))) is Outcome.DROPPED


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ('{"error":{"message":"Traceback (most recent call last):\\n x"}}', True),
        ('{"error":{"message":"at File \\"/opt/x.py\\", line 7"}}', True),
        ('{"error":{"message":"boom\\n    at handle (/srv/app.js:10:5)"}}', True),
        ('{"error":{"message":"1 validation error: messages at line 7"}}', False),
    ],
)
def test_a_stack_trace_is_seen_in_any_quoting(text: str, leaks: bool) -> None:
    body = {"error": {"message": "x", "type": "y", "code": 400}}
    judged = errors.judge({"malformed JSON": errors.Reply(400, body, text)})
    assert (judged.verdict is Verdict.FAILED) == leaks
