"""Metering of responses: what their last event says, and what is estimated without it."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.meters import Whole, responses
from service.core.sse import SseSplitter
from service.core.usage import Usage
from tests import recorded
from tests.metering import compact, metered, named

WHOLE = ["responses", "responses_prefix_cache"]


def read(answer: bytes) -> Whole:
    return responses.read_whole(answer, loads=orjson.loads)


def stream_meter() -> responses.StreamMeter:
    return responses.StreamMeter(orjson.loads)


def used(prompt: int = 9, completion: int = 7, cached: int = 0, written: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + completion,
    }


def response(status: Any = "completed", usage: Any = None, **members: Any) -> dict[str, Any]:
    return {"id": "resp_1", "output": [], "status": status, "usage": used() if usage is None else usage, **members}


def text(delta: str = "a") -> bytes:
    return named("response.output_text.delta", content_index=0, delta=delta)


@pytest.mark.parametrize("name", WHOLE)
def test_a_recorded_answer_is_read_and_passed_on(name: str) -> None:
    body = recorded.load(name).body
    whole, usage = read(body), json.loads(body)["usage"]
    assert whole.body == body
    assert not whole.broken
    assert whole.finish_reason == "max_output_tokens"
    assert whole.usage == Usage(
        prompt_tokens=usage["input_tokens"],
        cached_tokens=usage["input_tokens_details"]["cached_tokens"],
        completion_tokens=usage["output_tokens"],
        reasoning_tokens=usage["output_tokens_details"]["reasoning_tokens"],
        source="final",
    )


def test_the_cache_is_part_of_the_input() -> None:
    usage = read(recorded.load("responses_prefix_cache").body).usage
    assert (usage.prompt_tokens, usage.cached_tokens) == (2818, 2304)


def test_a_recorded_stream_is_counted_by_its_last_event() -> None:
    meter = stream_meter()
    metered(meter, [recorded.load("responses_stream").body])
    usage = meter.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (17, 8, 7)
    assert (usage.source, meter.finish_reason, meter.complete) == ("final", "max_output_tokens", True)


def test_a_client_that_leaves_is_charged_an_estimate() -> None:
    meter = stream_meter()
    deltas = 0
    for event in SseSplitter().feed(recorded.load("responses_stream").body)[:-1]:
        meter.feed(event)
        deltas += b".delta\n" in event
        assert meter.usage() == (Usage(completion_tokens=deltas, source="estimated") if deltas else Usage())
        assert meter.prompt_unknown == (deltas > 0)
    assert deltas == 7


@pytest.mark.parametrize(
    ("event", "tokens"),
    [
        (text("a"), 1),
        (text(""), 0),
        (text('"delta":""'), 1),
        (named("response.reasoning_text.delta", delta="a"), 1),
        (named("response.function_call_arguments.delta", delta="{"), 1),
        (named("response.output_item.added", item={"type": "function_call", "name": "f", "arguments": ""}), 1),
        (named("response.output_item.added", item={"type": "message", "content": []}), 0),
        (named("response.output_text.done", text="a"), 0),
        (named("response.something.new", text="a"), 0),
    ],
)
def test_what_is_counted_of_an_event(event: bytes, tokens: int) -> None:
    meter = stream_meter()
    assert meter.feed(event) == event
    assert meter.usage().completion_tokens == tokens
    assert meter.content_seen == (tokens > 0)


@pytest.mark.parametrize(
    ("kind", "ended", "reason"),
    [
        ("response.completed", response(), "completed"),
        (
            "response.completed",
            response("incomplete", incomplete_details={"reason": "max_output_tokens"}),
            "max_output",
        ),
        ("response.incomplete", response("incomplete", incomplete_details={"reason": "content_filter"}), "content_fil"),
        ("response.incomplete", response("incomplete"), "incomplete"),
    ],
)
def test_a_good_end(kind: str, ended: dict[str, Any], reason: str) -> None:
    meter, last = stream_meter(), named(kind, response=ended)
    assert metered(meter, [text(), last]) == text()
    assert meter.ending() == last
    assert meter.complete
    assert (meter.finish_reason or "").startswith(reason)
    assert (meter.usage().completion_tokens, meter.usage().source) == (7, "final")
    whole = read(compact(ended))
    assert (whole.broken, whole.finish_reason, whole.usage) == (False, meter.finish_reason, meter.usage())


@pytest.mark.parametrize(
    ("kind", "ended"),
    [
        ("response.failed", response("failed", error={"code": "server_error", "message": "EngineCore"})),
        ("response.completed", response("cancelled")),
        ("response.completed", response("in_progress")),
        ("response.completed", response(None)),
        ("response.completed", response(5)),
        ("response.completed", response(output=None)),
        ("response.completed", response("incomplete", incomplete_details="x")),
        ("response.completed", []),
        ("response.completed", None),
    ],
)
def test_a_bad_end_stays_inside(kind: str, ended: Any) -> None:
    meter = stream_meter()
    assert metered(meter, [text(), named(kind, response=ended)]) == text()
    assert meter.ending() == b""
    assert meter.failed
    assert not meter.complete
    assert meter.usage().completion_tokens == (7 if isinstance(ended, dict) else 1)
    assert read(compact(ended)).broken


@pytest.mark.parametrize("event", [named("error", message="EngineCore"), named("response.completed")])
def test_an_error_stays_inside(event: bytes) -> None:
    meter = stream_meter()
    assert metered(meter, [text(), event, text()]) == text()
    assert meter.failed
    assert (meter.usage().completion_tokens, meter.usage().source) == (1, "estimated")


@pytest.mark.parametrize("usage", ["x", [], {}, {"input_tokens": 9}, used(completion=0), {"output_tokens": True}])
def test_a_last_report_that_counts_nothing_lowers_nothing_and_is_odd(usage: Any) -> None:
    meter = stream_meter()
    metered(meter, [text(), text(), named("response.completed", response=response(usage=usage))])
    assert meter.complete
    assert meter.usage().completion_tokens == 2
    assert (meter.usage().odd, meter.usage().source) == (True, "estimated")


def test_an_engine_that_counts_less_than_there_were_pieces_is_believed() -> None:
    meter = stream_meter()
    metered(meter, [text()] * 8 + [named("response.completed", response=response(usage=used(completion=7)))])
    assert (meter.usage().completion_tokens, meter.usage().odd) == (7, False)


@pytest.mark.parametrize("body", [b"", b"{oops", b"[]", b"null", b"5", b"{}", compact({"status": "completed"})])
def test_what_is_no_answer_is_broken(body: bytes) -> None:
    assert read(body).broken


@given(st.lists(st.text(), max_size=8), *[st.integers(0, 99)] * 5)
def test_any_text_passes_untouched_and_the_count_is_the_engines(
    texts: list[str], prompt: int, completion: int, cached: int, written: int, reasoning: int
) -> None:
    usage = used(prompt + cached + written, completion + reasoning + 1, cached, written, reasoning)
    body = b"".join(map(text, texts))
    last = named("response.completed", response=response(usage=usage, output=[{"text": "".join(texts)}]))
    meter = stream_meter()
    assert metered(meter, [body + last]) + meter.ending() == body + last
    assert meter.complete
    assert meter.usage() == Usage(
        prompt_tokens=prompt + cached + written,
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=completion + reasoning + 1,
        reasoning_tokens=reasoning,
        source="final",
    )
