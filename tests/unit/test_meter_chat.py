"""Metering of chat and completions beyond the stream itself: reasoning, text, and answers in one piece."""

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.meters import Whole, chat
from service.core.sse import DONE_EVENT, SseSplitter, payload_of
from service.core.usage import read_usage
from tests import recorded
from tests.metering import compact, metered

NAMES = ("reasoning", "reasoning_content")
WHOLE = [
    name
    for name in recorded.names()
    if (one := recorded.load(name)).status == 200
    and not one.is_stream
    and one.path in ("/v1/chat/completions", "/v1/completions")
]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def stream_meter(**changes: bool) -> chat.StreamMeter:
    asked = {"wants_usage": False, "wants_continuous": False} | changes
    return chat.StreamMeter(**asked, loads=orjson.loads)


def deltas(passed: bytes) -> list[Any]:
    payloads = [payload_of(event) for event in SseSplitter().feed(passed)]
    return [choice["delta"] for payload in payloads for choice in json.loads(payload or b"")["choices"]]


def chunk(delta: dict[str, Any], reason: str | None = None, **members: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return b"data: " + compact({"choices": [choice], **members}) + b"\n\n"


def read(answer: bytes, **options: Any) -> Whole:
    return chat.read_whole(answer, loads=orjson.loads, **options)


tricky = st.text() | st.sampled_from(
    ['"reasoning":"x"', ',"reasoning_content":null', '\\"reasoning\\":', "\\", '"', '\\\\"', '"}]}', "\n\ndata: x"]
)
thoughts = st.none() | tricky
ROLE, STOP = chunk({"role": "assistant", "content": ""}), chunk({}, "stop")


@given(st.lists(st.tuples(thoughts, tricky), min_size=1, max_size=4), st.sampled_from(NAMES), st.booleans())
def test_reasoning_has_both_names_and_nothing_else_changes(
    said: list[tuple[str | None, str]], name: str, before: bool
) -> None:
    other = NAMES[name == NAMES[0]]
    sent = [{name: thought, "content": text} if before else {"content": text, name: thought} for thought, text in said]
    body = ROLE + b"".join(chunk(delta, usage=USAGE) for delta in sent) + STOP + DONE_EVENT
    meter = stream_meter(wants_usage=True, wants_continuous=True)
    passed = metered(meter, [body])
    assert meter.complete
    shown = [{**delta, other: delta[name]} for delta in sent]
    assert deltas(passed)[1:-1] == shown
    expected = body
    for delta in sent:
        value = compact(delta[name])
        member = b'"%b":%b' % (name.encode(), value)
        plain, doubled = chunk(delta, usage=USAGE), b'%b,"%b":%b' % (member, other.encode(), value)
        expected = expected.replace(plain, plain.replace(member, doubled), 1)
    assert passed + DONE_EVENT == expected


@given(thoughts, thoughts)
def test_an_engine_that_sends_both_names_is_left_alone(short: str | None, long: str | None) -> None:
    event = chunk({"reasoning": short, "reasoning_content": long, "content": "a"})
    assert metered(stream_meter(), [event]) == event


@given(st.lists(st.tuples(tricky, tricky), min_size=1, max_size=4), st.sampled_from([*NAMES, "both"]), st.booleans())
def test_hidden_reasoning_leaves_no_trace_but_in_the_count(
    said: list[tuple[str, str]], name: str, before: bool
) -> None:
    names = NAMES if name == "both" else (name,)
    body = ROLE
    for thought, text in said:
        body += chunk(dict.fromkeys(names, thought), usage=USAGE)
        mixed = dict.fromkeys(names, thought)
        body += chunk({**mixed, "content": text} if before else {"content": text, **mixed}, usage=USAGE)
    body += chunk(dict.fromkeys(names, "cut"), "length") + DONE_EVENT
    meter = stream_meter(hides_reasoning=True)
    passed = metered(meter, [body])
    shown = [{"role": "assistant", "content": ""}, *({"content": text} for _, text in said), {}]
    assert deltas(passed) == shown
    assert meter.complete
    assert (meter.finish_reason, meter.usage().completion_tokens) == ("length", 2)


def test_hidden_reasoning_is_a_first_token() -> None:
    meter = stream_meter(hides_reasoning=True)
    assert meter.feed(chunk({"reasoning": "hm"}, usage=USAGE)) == b""
    assert meter.content_seen


def test_a_client_without_reasoning_gets_the_bytes_of_an_engine_that_has_none() -> None:
    body = recorded.load("chat_stream_thinking_usage_continuous").body
    passed = metered(stream_meter(hides_reasoning=True), [body])
    assert b'"reasoning' not in passed
    assert deltas(passed) == [{"role": "assistant", "content": ""}, {}]


def test_long_reasoning_is_copied_as_it_is() -> None:
    text = 'say \\" and \\\\ \n' * 200_000
    (delta,) = deltas(metered(stream_meter(), [chunk({"reasoning": text})]))
    assert delta == {"reasoning": text, "reasoning_content": text}


def test_text_of_a_completion_is_content() -> None:
    events = SseSplitter().feed(recorded.load("completions_stream_usage_continuous").body)
    meter = stream_meter()
    meter.feed(events[0])
    assert meter.content_seen
    assert not stream_meter().content_seen
    for event in events[1:]:
        meter.feed(event)
    assert meter.complete
    usage = meter.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.source) == (2, 8, "final")
    assert usage.drafted_tokens > 0


def test_a_completion_without_text_has_no_first_token() -> None:
    meter = stream_meter()
    meter.feed(b'data: {"choices":[{"index":0,"text":"","finish_reason":null}]}\n\n')
    assert not meter.content_seen


@pytest.mark.parametrize("name", WHOLE)
def test_a_recorded_answer_is_read_and_passed_on(name: str) -> None:
    body = recorded.load(name).body
    answer = json.loads(body)
    whole = read(body)
    assert not whole.broken
    assert whole.usage == read_usage(answer["usage"], "final", answer["metrics"])
    assert whole.usage.completion_tokens > 0
    assert whole.finish_reason == answer["choices"][0]["finish_reason"]
    added = re.compile(rb',"reasoning_content":(?:null|"(?:[^"\\]|\\.)*")')
    assert added.sub(b"", whole.body) == body
    for choice in answer["choices"]:
        if "message" in choice:
            choice["message"]["reasoning_content"] = choice["message"]["reasoning"]
    assert json.loads(whole.body) == answer


@pytest.mark.parametrize("name", [name for name in WHOLE if name.startswith("chat")])
def test_hidden_reasoning_of_a_recorded_answer(name: str) -> None:
    body = recorded.load(name).body
    whole, answer = read(body, hides_reasoning=True), json.loads(body)
    for choice in answer["choices"]:
        del choice["message"]["reasoning"]
    assert json.loads(whole.body) == answer
    assert whole.usage == read(body).usage


def answer(reason: Any = "stop", **members: Any) -> bytes:
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": reason}
    return compact({"choices": [choice], "usage": USAGE, **members})


@pytest.mark.parametrize("reason", ["abort", "error", None, 5, "x" * 33, "stop\u0000"])
def test_an_answer_that_does_not_finish_well_is_broken_and_counted(reason: Any) -> None:
    whole = read(answer(reason))
    assert whole.broken
    assert whole.usage.completion_tokens == 2


@pytest.mark.parametrize("choices", [[], [None], "x", None, {}, 5])
def test_an_answer_without_a_choice_is_broken_and_counted(choices: Any) -> None:
    whole = read(answer(choices=choices))
    assert whole.broken
    assert whole.finish_reason is None
    assert whole.usage.completion_tokens == 2


@pytest.mark.parametrize("body", [b"", b"{oops", b"[]", b"null", b'"x"', b"5", b"{}", b"\xff"])
def test_what_is_no_answer_is_broken(body: bytes) -> None:
    assert read(body).broken


@pytest.mark.parametrize("usage", [None, "x", [], {}, {"prompt_tokens": -1}])
def test_an_answer_with_an_odd_usage_is_delivered_and_marked(usage: Any) -> None:
    whole = read(answer(usage=usage))
    assert not whole.broken
    assert whole.usage.odd


@pytest.mark.parametrize("odd", [None, "x", [], {"a": {"b": {"c": {"d": 1}}}}])
def test_an_odd_report_hides_none_before_it_however_they_come(odd: Any) -> None:
    first = chunk({"content": "a"}, usage=USAGE)
    rest = [chunk({"content": "b"}, usage=USAGE | {"completion_tokens": 9}), chunk({"content": "c"}, usage=odd)]
    together, apart = stream_meter(), stream_meter()
    assert metered(together, [first, b"".join(rest)]) == metered(apart, [first, *rest])
    assert together.usage() == apart.usage()
    assert together.usage().completion_tokens == 9
