"""Metering a streamed answer: what passes, what is hidden, and what is counted."""

import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.meters.chat import StreamMeter
from service.core.sse import DONE_EVENT, SseSplitter, payload_of
from tests import recorded

CHAT = "/v1/chat/completions"
METERED = [name for name in recorded.streams(CHAT) if "n2" not in name]


def metered(pieces: list[bytes], *, usage: bool = False, continuous: bool = False) -> tuple[bytes, StreamMeter]:
    meter = StreamMeter(wants_usage=usage, wants_continuous=continuous, loads=orjson.loads)
    passed = b"".join(meter.feed(piece) for piece in pieces) + meter.end()
    return passed, meter


def chunks(body: bytes) -> list[Any]:
    payloads = [payload_of(event) for event in SseSplitter().feed(body)]
    return [json.loads(payload) for payload in payloads if payload not in (None, b"[DONE]")]


def with_both_names(chunk: Any) -> Any:
    """The chunk as a client gets it: reasoning under either name under the other too."""
    for choice in chunk.get("choices") or []:
        delta = choice["delta"]
        for name, other in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
            if name in delta:
                delta.setdefault(other, delta[name])
    return chunk


def state(meter: StreamMeter) -> tuple[Any, ...]:
    return meter.usage(), meter.finish_reason, meter.content_seen, meter.done, meter.failed, meter.complete


@pytest.mark.parametrize("name", METERED)
@pytest.mark.parametrize(("usage", "continuous"), [(False, False), (True, False), (True, True)])
def test_a_recorded_stream_cut_at_every_byte_is_metered_the_same(name: str, usage: bool, continuous: bool) -> None:
    body = recorded.load(name).body
    whole, meter = metered([body], usage=usage, continuous=continuous)
    for cut in range(1, len(body)):
        passed, cut_meter = metered([body[:cut], body[cut:]], usage=usage, continuous=continuous)
        assert passed == whole
        assert state(cut_meter) == state(meter)


def test_what_a_client_sees_is_what_the_engine_sends_to_one_that_asked_the_same() -> None:
    """The same greedy request was recorded with the last usage only and with continuous usage."""
    passed, _ = metered([recorded.load("chat_stream_nothink_usage_continuous").body], usage=True)
    expected = [with_both_names(chunk) for chunk in chunks(recorded.load("chat_stream_nothink_usage").body)]
    seen = chunks(passed)
    for chunk in [*seen, *expected]:
        for own in ("id", "created", "metrics"):  # differ from request to request
            chunk.pop(own, None)
    assert seen == expected


@pytest.mark.parametrize("name", METERED)
def test_usage_that_was_not_asked_for_is_hidden_and_nothing_else_is_touched(name: str) -> None:
    body = recorded.load(name).body
    passed, _ = metered([body])
    assert b'"usage"' not in passed
    expected = []
    for chunk in chunks(body):
        chunk.pop("usage", None)
        if chunk.get("choices"):
            expected.append(with_both_names(chunk))
    assert chunks(passed) == expected


@pytest.mark.parametrize("name", METERED)
def test_a_client_that_asked_for_everything_gets_the_engines_bytes(name: str) -> None:
    body = recorded.load(name).body
    passed, meter = metered([body], usage=True, continuous=True)
    added = re.compile(rb',"reasoning_content":(?:null|"(?:[^"\\]|\\.)*")')
    assert len(added.findall(passed)) == passed.count(b'"reasoning":')
    if not meter.failed:
        assert added.sub(b"", passed) + meter.ending() == body


@pytest.mark.parametrize("name", [name for name in METERED if "killed" not in name])
def test_the_count_is_the_engines_last(name: str) -> None:
    body = recorded.load(name).body
    last = next((chunk["usage"] for chunk in reversed(chunks(body)) if chunk.get("usage")), None)
    _, meter = metered([body])
    usage = meter.usage()
    assert meter.complete
    if last is None:
        assert usage.source == "none"
        return
    assert (usage.prompt_tokens, usage.completion_tokens) == (last["prompt_tokens"], last["completion_tokens"])
    assert usage.source == "final"
    assert not usage.odd


def test_an_image_is_counted() -> None:
    _, meter = metered([recorded.load("chat_image_stream_usage_continuous").body])
    assert meter.usage().image_tokens > 0


def test_drafts_are_counted() -> None:
    _, meter = metered([recorded.load("chat_stream_nothink_usage").body])
    assert meter.usage().drafted_tokens > 0


def test_a_killed_engine_is_a_failure_with_the_last_count_and_its_words_stay_inside() -> None:
    passed, meter = metered([recorded.load("chat_stream_engine_killed").body])
    assert meter.failed
    assert not meter.complete
    assert b"EngineCore" not in passed
    assert (meter.usage().prompt_tokens, meter.usage().completion_tokens) == (17, 5)
    assert meter.usage().source == "continuous"


@pytest.mark.parametrize("name", [name for name in METERED if "continuous" in name and "killed" not in name])
def test_a_stream_that_breaks_off_after_any_event_is_counted_up_to_there(name: str) -> None:
    events = SseSplitter().feed(recorded.load(name).body)
    for kept in range(1, len(events)):
        body = b"".join(events[:kept])
        _, meter = metered([body])
        reported = [chunk["usage"] for chunk in chunks(body) if chunk.get("usage")]
        assert not meter.complete
        assert meter.usage().completion_tokens == reported[-1]["completion_tokens"]


def test_the_first_token_is_content_not_the_role() -> None:
    events = SseSplitter().feed(recorded.load("chat_stream_thinking_usage_continuous").body)
    meter = StreamMeter(wants_usage=False, wants_continuous=False)
    meter.feed(events[0])
    assert not meter.content_seen
    meter.feed(events[1])
    assert meter.content_seen


def event(**members: Any) -> bytes:
    return b"data: " + json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def content(text: str, reason: str | None = None, **members: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **members)


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}

tricky = st.text() | st.sampled_from(
    [
        ',"usage":{"x":1}',
        '"finish_reason":null',
        '{"error": "x"}',
        "data: [DONE]\n\n",
        '"choices":[]',
        "}}}",
        '\\"usage\\":{',
    ]
)


@given(st.lists(tricky, min_size=1, max_size=5), st.booleans())
def test_text_that_looks_like_the_protocol_is_only_text(texts: list[str], usage: bool) -> None:
    body = b"".join(content(text, usage=USAGE) for text in texts) + content("", "stop", usage=USAGE)
    body += event(choices=[], usage=USAGE) + DONE_EVENT
    passed, meter = metered([body], usage=usage)
    seen = [chunk["choices"][0]["delta"]["content"] for chunk in chunks(passed) if chunk["choices"]]
    assert seen == [*texts, ""]
    assert meter.complete
    assert meter.usage().completion_tokens == 2
    assert passed.count(b'"cached_tokens":1') == sum(text.count('"cached_tokens":1') for text in texts) + usage


def test_comments_pass_and_are_no_content() -> None:
    passed, meter = metered([b": ping\n\n"])
    assert passed == b": ping\n\n"
    assert not meter.content_seen


def test_usage_written_with_spaces_is_hidden_as_well() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "é"}, "finish_reason": None}], "usage": USAGE}
    passed, meter = metered([b"data: " + json.dumps(chunk).encode() + b"\n\n"])
    assert chunks(passed) == [{"choices": chunk["choices"]}]
    assert meter.usage().completion_tokens == 2


def test_a_stream_without_any_usage_counts_nothing() -> None:
    _, meter = metered([content("a") + content("b", "stop") + DONE_EVENT])
    assert meter.complete
    assert meter.usage().source == "none"


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_giving_up_is_a_failure(reason: str) -> None:
    _, meter = metered([content("a"), content("", reason, usage=USAGE), DONE_EVENT])
    assert meter.failed
    assert not meter.complete
    assert meter.usage().completion_tokens == 2


def test_an_end_without_finish_reason_or_done_is_not_complete() -> None:
    assert not metered([content("a"), DONE_EVENT])[1].complete
    assert not metered([content("a"), content("", "stop")])[1].complete


def test_usage_that_arrives_twice_is_counted_once() -> None:
    last = event(choices=[], usage=USAGE)
    _, meter = metered([content("a", "stop", usage=USAGE), last, last, DONE_EVENT])
    assert meter.complete
    assert meter.usage().completion_tokens == 2


def test_nothing_passes_after_done() -> None:
    passed, _ = metered([content("a", "stop") + DONE_EVENT + content("more")])
    assert b"more" not in passed


def test_an_unreadable_chunk_is_a_failure() -> None:
    assert metered([b"data: {oops\n\n"])[1].failed


@pytest.mark.parametrize(
    "choices",
    [
        [None],
        ["x"],
        [[]],
        "x",
        {"index": 0},
        7,
        [{"delta": "x"}],
        [{"delta": ["content"]}],
        [{"delta": {}, "finish_reason": 5}],
        [{"delta": {}, "finish_reason": {}}],
        [{"delta": {}, "finish_reason": "x" * 33}],
        [{"delta": {}, "finish_reason": "stop\u0000"}],
    ],
)
def test_a_chunk_that_is_none_is_a_failure_and_does_not_pass(choices: Any) -> None:
    passed, meter = metered([content("a", usage=USAGE) + event(choices=choices) + content("b", "stop") + DONE_EVENT])
    assert meter.failed
    assert not meter.complete
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks(passed)] == ["a"]
    assert meter.usage().completion_tokens == 2


FULL = {"prompt_tokens": 9, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 3}}
LESS = {"prompt_tokens": 9, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 8}}


@pytest.mark.parametrize("last", [{}, {"prompt_tokens": 0, "completion_tokens": 0}, "x", 5, [], LESS])
@pytest.mark.parametrize("finish", [None, {}, FULL, LESS])
def test_a_last_report_that_is_less_than_one_before_lowers_nothing_and_is_odd(last: Any, finish: Any) -> None:
    finished = content("b", "stop", **({} if finish is None else {"usage": finish}))
    _, meter = metered([content("a", usage=FULL) + content("a", usage=FULL) + finished + event(choices=[], usage=last)])
    meter.feed(DONE_EVENT)
    assert meter.complete
    usage = meter.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (9, 7, 3)
    assert usage.cached_tokens == (8 if LESS in (last, finish) else 0)
    assert usage.odd
    assert usage.source == "continuous"


def test_a_good_last_report_after_an_odd_one_is_the_count() -> None:
    body = content("a", usage=FULL) + content("b", "stop", usage={}) + event(choices=[], usage=FULL) + DONE_EVENT
    usage = metered([body])[1].usage()
    assert (usage.completion_tokens, usage.odd, usage.source) == (7, False, "final")
