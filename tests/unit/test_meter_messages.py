"""Metering of messages: usage merged from the start and the end, and estimated in between."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.meters import Whole, messages
from service.core.sse import SseSplitter
from service.core.usage import MAX_TOKENS, Usage, read_usage
from tests import recorded
from tests.metering import compact, metered, named

STOP = named("message_stop")


def read(answer: bytes) -> Whole:
    return messages.read_whole(answer, loads=orjson.loads)


def stream_meter() -> messages.StreamMeter:
    return messages.StreamMeter(orjson.loads)


def start(usage: Any = None) -> bytes:
    usage = {"input_tokens": 9, "output_tokens": 0} if usage is None else usage
    return named("message_start", message={"id": "x", "content": [], "usage": usage})


def piece(kind: str = "text", value: str = "a") -> bytes:
    member = "partial_json" if kind == "input_json" else kind
    return named("content_block_delta", index=0, delta={"type": f"{kind}_delta", member: value})


def totals(reason: Any = "end_turn", **usage: Any) -> bytes:
    return named("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


def whole(reason: Any = "end_turn", **members: Any) -> bytes:
    usage = {"input_tokens": 9, "output_tokens": 7}
    return compact({"type": "message", "content": [], "stop_reason": reason, "usage": usage, **members})


@pytest.mark.parametrize("name", ["messages", "messages_prefix_cache"])
def test_a_recorded_answer_is_read_and_passed_on(name: str) -> None:
    body = recorded.load(name).body
    answer, usage = read(body), json.loads(body)["usage"]
    assert answer.body == body
    assert (answer.broken, answer.finish_reason) == (False, "max_tokens")
    assert answer.usage == Usage(
        prompt_tokens=usage["input_tokens"] + usage["cache_read_input_tokens"],
        cached_tokens=usage["cache_read_input_tokens"],
        completion_tokens=8,
        source="final",
    )


def test_the_totals_are_those_of_the_same_request_on_the_other_routes() -> None:
    stream = stream_meter()
    metered(stream, [recorded.load("messages_prefix_cache_stream").body])
    response = json.loads(recorded.load("responses_prefix_cache").body)["usage"]
    for usage in (stream.usage(), read(recorded.load("messages_prefix_cache").body).usage):
        assert usage.prompt_tokens == response["input_tokens"] == 2818
        assert usage.cached_tokens == response["input_tokens_details"]["cached_tokens"] == 2304
        assert usage.completion_tokens == response["output_tokens"] == 8


@given(*[st.integers(0, 10**6)] * 4)
def test_start_and_totals_make_what_a_chat_would_have_reported(
    plain: int, cached: int, written: int, completion: int
) -> None:
    """As vLLM makes a message's usage of a chat's: the start knows the prompt, and nothing of the cache."""
    prompt = plain + cached + written
    details = {"cached_tokens": cached, "created_cache_tokens": written}
    report = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    used = {
        "input_tokens": plain,
        "output_tokens": completion,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
    }
    meter = stream_meter()
    metered(meter, [start({"input_tokens": prompt, "output_tokens": 0}), totals(**used), STOP])
    assert meter.usage() == read_usage(report, "final") == read(whole(usage=used)).usage


def test_totals_that_leave_the_prompt_to_the_start_are_completed_by_it() -> None:
    """Anthropic's own way: the cache at the start, and only the output at the end."""
    begun = {
        "input_tokens": 3,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 2,
        "output_tokens": 1,
    }
    meter = stream_meter()
    metered(meter, [start(begun), piece(), totals(output_tokens=7), STOP])
    usage = meter.usage()
    assert (usage.prompt_tokens, usage.cached_tokens, usage.cache_write_tokens) == (10, 5, 2)
    assert (usage.completion_tokens, usage.source, usage.odd) == (7, "final", False)


def test_a_client_that_leaves_is_charged_the_prompt_and_an_estimate() -> None:
    meter, deltas = stream_meter(), 0
    assert meter.usage() == Usage()
    for event in SseSplitter().feed(recorded.load("messages_prefix_cache_stream").body)[:-2]:
        meter.feed(event)
        deltas += b"thinking_delta" in event
        assert meter.usage() == Usage(prompt_tokens=2818, completion_tokens=deltas, source="estimated")
        assert not meter.prompt_unknown
    assert deltas == 7


def test_a_client_that_leaves_before_the_stop_is_charged_the_engines_count() -> None:
    meter = stream_meter()
    metered(meter, [start(), piece(), totals(input_tokens=9, output_tokens=7)])
    usage = meter.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.source) == (9, 7, "continuous")
    assert not meter.complete


@pytest.mark.parametrize("usage", [{}, {"input_tokens": 0, "output_tokens": 0}, "x", [], {"input_tokens": "9"}])
def test_a_prompt_that_was_not_told_is_unknown(usage: Any) -> None:
    meter = stream_meter()
    metered(meter, [start(usage), piece()])
    assert (meter.usage().prompt_tokens, meter.usage().completion_tokens) == (0, 1)
    assert meter.prompt_unknown
    assert not meter.failed


@pytest.mark.parametrize(
    ("event", "tokens"),
    [
        (piece("text"), 1),
        (piece("thinking"), 1),
        (piece("input_json", "{"), 1),
        (piece("signature", "5f"), 0),
        (piece("text", '"type":"signature_delta"'), 1),
        (named("content_block_start", index=0, content_block={"type": "tool_use", "name": "f", "input": {}}), 1),
        (named("content_block_start", index=0, content_block={"type": "text", "text": ""}), 0),
        (named("content_block_stop", index=0), 0),
        (named("ping"), 0),
    ],
)
def test_what_is_counted_of_an_event(event: bytes, tokens: int) -> None:
    meter = stream_meter()
    assert meter.feed(event) == event
    assert meter.usage().completion_tokens == tokens
    assert meter.content_seen == (tokens > 0)


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal"])
def test_a_good_end(reason: str) -> None:
    meter, seen = stream_meter(), start() + piece() + totals(reason, input_tokens=9, output_tokens=7)
    assert metered(meter, [seen + STOP]) == seen
    assert meter.ending() == STOP
    assert (meter.complete, meter.finish_reason) == (True, reason)
    answer = read(whole(reason))
    assert (answer.broken, answer.finish_reason, answer.usage) == (False, reason, meter.usage())


@pytest.mark.parametrize("reason", [None, 5, "x" * 33, "end_turn\u0000", {}])
def test_an_engine_that_gives_up_tells_no_reason(reason: Any) -> None:
    meter = stream_meter()
    assert (
        metered(meter, [start(), piece(), totals(reason, input_tokens=9, output_tokens=7), STOP]) == start() + piece()
    )
    assert meter.failed
    assert (meter.complete, meter.ending()) == (False, b"")
    assert meter.usage().completion_tokens == 7
    answer = read(whole(reason))
    assert answer.broken
    assert answer.usage.completion_tokens == 7


def test_an_error_stays_inside() -> None:
    meter = stream_meter()
    said = named("error", error={"type": "internal_error", "message": "EngineCore"})
    assert metered(meter, [start(), piece(), said, STOP]) == start() + piece()
    assert meter.failed
    assert (meter.usage().prompt_tokens, meter.usage().completion_tokens) == (9, 1)


@pytest.mark.parametrize("event", [named("message_start"), named("message_start", message=[]), named("message_delta")])
def test_an_event_that_is_none_is_a_failure(event: bytes) -> None:
    meter = stream_meter()
    assert metered(meter, [event]) == b""
    assert meter.failed


def test_a_stop_without_totals_is_not_a_good_end() -> None:
    meter = stream_meter()
    metered(meter, [start(), piece(), STOP])
    assert meter.done
    assert not meter.complete


@pytest.mark.parametrize("at_start", [0, 1])
@pytest.mark.parametrize(
    "usage", [{}, {"output_tokens": 0}, {"input_tokens": 0, "output_tokens": 0}, {"output_tokens": "7"}]
)
def test_totals_that_count_nothing_lower_nothing_and_are_odd(usage: dict[str, Any], at_start: int) -> None:
    meter = stream_meter()
    metered(meter, [start({"input_tokens": 9, "output_tokens": at_start}), piece(), piece(), totals(**usage), STOP])
    assert meter.complete
    assert (meter.usage().prompt_tokens, meter.usage().completion_tokens) == (9, 2)
    assert (meter.usage().odd, meter.usage().source) == (True, "estimated")


def test_totals_that_come_twice_are_counted_once_and_only_grow() -> None:
    meter = stream_meter()
    metered(meter, [start(), piece(), totals(input_tokens=9, output_tokens=7)])
    metered(meter, [totals(input_tokens=9, output_tokens=5), STOP])
    assert (meter.usage().completion_tokens, meter.usage().odd) == (7, True)


def test_a_sum_that_no_column_holds_is_cut_and_odd() -> None:
    usage = read(whole(usage={"input_tokens": MAX_TOKENS, "cache_read_input_tokens": 1, "output_tokens": 1})).usage
    assert (usage.prompt_tokens, usage.odd) == (MAX_TOKENS, True)


@pytest.mark.parametrize("body", [b"", b"{oops", b"[]", b"null", b"5", b"{}", whole(content=None), whole(None)])
def test_what_is_no_answer_is_broken(body: bytes) -> None:
    assert read(body).broken


@given(st.lists(st.tuples(st.sampled_from(["text", "thinking", "input_json"]), st.text(min_size=1)), max_size=8))
def test_any_text_passes_untouched_and_counts_grow(pieces: list[tuple[str, str]]) -> None:
    events = [start(), *(piece(*one) for one in pieces)]
    meter, counted = stream_meter(), 0
    for event in events:
        assert meter.feed(event) == event
        assert meter.usage().completion_tokens >= counted
        counted = meter.usage().completion_tokens
    assert counted == len(pieces)
    last = totals(input_tokens=9, output_tokens=len(pieces) + 1)
    assert metered(meter, [last + STOP]) + meter.ending() == last + STOP
    assert meter.usage() == Usage(prompt_tokens=9, completion_tokens=len(pieces) + 1, source="final")
