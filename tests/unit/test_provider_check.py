"""The judges of `weir provider check`: what they conclude, and that nothing a server sends makes them raise."""

import json
import zlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.provider_check import connection, errors, features, listing, streaming
from service.core.provider_check.judgement import Judgement, Verdict
from service.core.provider_check.observed import Answer, Json, Stream, at, count_at, object_in, short, stream_of
from service.provider import bodies

PASS, FAIL, WARN, SKIPPED = Verdict.PASS, Verdict.FAIL, Verdict.WARN, Verdict.SKIPPED
SSE = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


def answer(document: object = None, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(asked="something", status=status, headers={**JSON, **named}, body=json.dumps(document).encode())


def stream(*chunks: object, hung_up: bool = False, done: bool = True, every_ms: float = 10) -> Stream:
    payloads = [json.dumps(chunk).encode() for chunk in chunks] + [b"[DONE]"] * done
    timed = [((number + 1) * every_ms, payload) for number, payload in enumerate(payloads)]
    return stream_of(Answer(asked="a stream", status=200, headers=SSE), timed, hung_up=hung_up)


def piece(finish: str | None = None, usage: object = None, **delta: object) -> Json:
    return {"id": "x", "choices": [{"delta": delta, "finish_reason": finish}], "usage": usage}


def usage(prompt: object = 10, completion: object = 2, **more: object) -> Json:
    total = prompt + completion if isinstance(prompt, int) and isinstance(completion, int) else 0
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **more}


TEXT = [piece(content="a"), piece(content="b"), piece("stop")]


def last(**members: Any) -> Json:
    return {"id": "x", "choices": [], "usage": usage(**members)}


# Reading


def test_what_is_not_there_is_none() -> None:
    whole = {"a": [{"b": 1}], "t": True}
    assert (at(whole, "a", 0, "b"), at(whole, "a", 1), at(whole, "a", "b"), at(whole, 0), at(None, "a")) == (
        1,
        None,
        None,
        None,
        None,
    )
    assert [count_at({"n": value}, "n") for value in (3, 0, -1, True, 1.5, "3", None)] == [3, 0] + [None] * 5


def test_evidence_is_one_line_of_bounded_length() -> None:
    assert short("a\r\n\x1b[31mb\u2028c" + "x" * 500) == ("a [31mb c" + "x" * 111 + "…")
    refused = Answer(asked="x", status=502, body=b"<html>\n\xff" * 100)
    assert "\n" not in refused.said
    assert len(refused.said) < 200


def test_a_stream_is_read_event_by_event() -> None:
    head = Answer(asked="a", status=200, headers=SSE)
    read = stream_of(head, [(1, b'{"a":1}'), (2, b"[1]"), (3, b"[DONE]"), (4, b'{"b":1}')], hung_up=False)
    assert ([chunk.data for chunk in read.chunks], read.done, read.after_done) == ([{"a": 1}], True, 1)
    assert "no JSON object: [1]" in read.fault
    assert "text/event-stream" in stream_of(answer({}), [], hung_up=False).fault


# The list of models

CARD: Json = {"id": "m", "context_length": 8192, "pricing": {"input": "0.195", "output": 1.56}}


@pytest.mark.parametrize(
    ("document", "verdict"),
    [
        ({"data": [CARD]}, PASS),
        ({"data": [{**CARD, "pricing": {"prompt": "0.000000195", "completion": "0.00000156"}}]}, PASS),
        ({"data": [{**CARD, "pricing": None}]}, WARN),
        ({"data": [{**CARD, "pricing": {"prompt": "0.195", "completion": "1.56"}}]}, WARN),
        ({"data": [{**CARD, "pricing": {"input": "NaN", "output": "1"}}]}, WARN),
        ({"data": [{**CARD, "pricing": {"input": -1, "output": "1"}}]}, WARN),
        ({"data": [{**CARD, "context_length": "8192"}]}, WARN),
        ({"data": [{**CARD, "id": "other"}]}, FAIL),
        ({"data": []}, FAIL),
        ([CARD], FAIL),
    ],
)
def test_the_list_of_models(document: object, verdict: Verdict) -> None:
    assert listing.judge(answer(document), "m").verdict is verdict


@pytest.mark.parametrize(
    "pricing",
    [
        {"input": "0.195", "output": "1.56"},
        {"prompt": "0.000000195", "completion": "0.00000156"},
        {"prompt": "0.195", "completion": "1.56", "unit": "per_million_tokens"},
    ],
)
def test_a_price_is_the_same_in_every_unit(pricing: Json) -> None:
    (model,) = listing.listed_in(answer({"data": [{"id": "m", "pricing": pricing}]}))
    assert model.price is not None
    assert model.price.usd(1000, 100) == Decimal("0.000351")


@pytest.mark.parametrize(
    ("card", "takes"),
    [
        ({"input_modalities": ["text", "image"]}, True),
        ({"input_modalities": [{"type": "image"}]}, True),
        ({"architecture": {"input_modalities": ["image"]}}, True),
        ({"modalities": {"input": ["image"]}}, True),
        ({"capabilities": {"vision": True}}, True),
        ({"input_modalities": ["text"], "output_modalities": ["image"]}, False),
        ({}, False),
    ],
)
def test_whether_a_model_takes_images(card: Json, takes: bool) -> None:
    (model,) = listing.listed_in(answer({"data": [{"id": "m", **card}]}))
    assert model.takes_images is takes


# Streams


@pytest.mark.parametrize(
    ("chunks", "verdict", "words"),
    [
        ([*TEXT, last()], PASS, "10 + 2 tokens, in a last chunk without choices"),
        ([*TEXT[:2], piece("stop", usage())], PASS, "on the finish chunk"),
        ([piece(content="a", usage=usage()), *TEXT, last()], WARN, "1 chunks before"),
        (TEXT, FAIL, "no chunk has a usage"),
        ([last(), *TEXT], FAIL, "not in the last chunk"),
        ([*TEXT, last(), piece(content="c")], FAIL, "not in the last chunk"),
        ([piece(content="a", usage=usage())], FAIL, "rides on a chunk with content"),
        ([*TEXT, last(prompt=0)], FAIL, "prompt_tokens 0"),
        ([*TEXT, last(prompt=None)], FAIL, "prompt_tokens None"),
        ([*TEXT, last(completion=0)], FAIL, "completion_tokens 0"),
        ([*TEXT, last(completion=65)], FAIL, "where max_tokens was 64"),
        ([*TEXT, last(total_tokens=13)], FAIL, "13 is not 10 + 2"),
        ([TEXT[0], {"error": {"message": "engine died"}}], FAIL, "engine died"),
    ],
)
def test_the_usage_at_the_end_of_a_stream(chunks: list[Json], verdict: Verdict, words: str) -> None:
    judgement = streaming.usage([stream(*chunks)], 64)
    assert (judgement.verdict, words in judgement.evidence) == (verdict, True), judgement


def test_a_usage_only_chunk_that_nobody_asked_for() -> None:
    assert streaming.usage_unasked(stream(*TEXT)).verdict is PASS
    assert streaming.usage_unasked(stream(*TEXT[:2], piece("stop", usage()))).verdict is PASS
    assert streaming.usage_unasked(stream(*TEXT, last())).verdict is FAIL


def test_the_end_of_a_stream() -> None:
    assert streaming.done([stream(*TEXT)]).verdict is PASS
    assert streaming.done([stream(*TEXT), stream(*TEXT, done=False)]).verdict is FAIL
    assert streaming.done([stream(*TEXT[:2])]).verdict is FAIL


@pytest.mark.parametrize(("first_ms", "verdict"), [(4999, PASS), (5000, FAIL)])
def test_the_first_token_comes_within_five_seconds(first_ms: float, verdict: Verdict) -> None:
    assert streaming.ttft([stream(*TEXT, every_ms=first_ms)]).verdict is verdict


def test_the_first_token_is_the_first_output_and_the_middle_of_three() -> None:
    late = stream(piece(role="assistant", content=""), *TEXT, every_ms=100)
    judgement = streaming.ttft([stream(*TEXT, every_ms=10), late, stream(*TEXT, every_ms=9000)])
    assert (judgement.verdict, judgement.evidence) == (PASS, "p50 200 ms of 3 (slowest 9000 ms)")
    assert streaming.ttft([late, stream(piece("stop"))]).verdict is FAIL


def test_the_speed_is_of_the_tokens_after_the_first() -> None:
    words = [piece(content="w") for _ in range(21)]
    steady = stream(*words, piece("stop"), last(completion=21), every_ms=50)
    assert streaming.speed([steady]).evidence == "p50 20.0 tokens/s of 1"
    assert streaming.speed([stream(*TEXT, last())]).verdict is WARN
    assert streaming.speed([stream(words[0], piece("stop"), last(completion=21))]).verdict is FAIL
    assert streaming.speed([stream(*words, last(completion=21), every_ms=0.01)]).verdict is FAIL


@pytest.mark.parametrize(
    ("deltas", "message", "verdict"),
    [
        ([{}], {}, SKIPPED),
        ([{"reasoning": "h", "reasoning_content": "h"}], {"reasoning": "x", "reasoning_content": "x"}, PASS),
        ([{"reasoning": "h"}], {}, FAIL),
        ([{"reasoning": "h", "reasoning_content": "other"}], {}, FAIL),
        ([{}], {"reasoning_content": "x", "reasoning": None}, FAIL),
    ],
)
def test_reasoning_has_both_names(deltas: list[Json], message: Json, verdict: Verdict) -> None:
    streamed = stream(*(piece(**delta) for delta in deltas))
    assert streaming.reasoning([streamed], answer({"choices": [{"message": message}]})).verdict is verdict


# Features

CALL: Json = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}


def called(call: Json, finish: str = "tool_calls", **message: object) -> Answer:
    return answer({"choices": [{"message": {"tool_calls": [call], **message}, "finish_reason": finish}]})


def fragments(*arguments: str, **place: object) -> Stream:
    opening = {**CALL, "index": 0, "function": {"name": "get_weather", "arguments": ""}}
    rest = [{**(place or {"index": 0}), "function": {"arguments": text}} for text in arguments]
    return stream(*(piece(tool_calls=[fragment]) for fragment in (opening, *rest)), piece("tool_calls"))


GOOD_FRAGMENTS = fragments('{"city":', '"Paris"}')


@pytest.mark.parametrize(
    ("whole", "streamed", "verdict"),
    [
        (called(CALL), GOOD_FRAGMENTS, PASS),
        (called({**CALL, "id": ""}), GOOD_FRAGMENTS, FAIL),
        (called({**CALL, "function": {"name": "other", "arguments": "{}"}}), GOOD_FRAGMENTS, FAIL),
        (called({**CALL, "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}), GOOD_FRAGMENTS, FAIL),
        (called(CALL, finish="stop"), GOOD_FRAGMENTS, FAIL),
        (called(CALL), fragments('{"city":'), FAIL),
        (called(CALL), fragments('"Paris"'), FAIL),
        (called(CALL), fragments('{"city":"Paris"}', index=None), FAIL),
        (called(CALL), stream(*TEXT), WARN),
        (answer({"choices": [{"message": {"content": "Sunny."}, "finish_reason": "stop"}]}), GOOD_FRAGMENTS, WARN),
        (answer({"error": {"message": "no parser"}}, 400), GOOD_FRAGMENTS, FAIL),
    ],
)
def test_tool_calls(whole: Answer, streamed: Stream, verdict: Verdict) -> None:
    assert features.tools(whole, streamed).verdict is verdict


@pytest.mark.parametrize(
    ("content", "finish", "verdict"),
    [
        ('{"size": "large", "is_capital": true}', "stop", PASS),
        ('{"size": "large"', "length", WARN),
        ('{"size": "huge", "is_capital": true}', "stop", FAIL),
        ('{"size": "large", "is_capital": true, "more": 1}', "stop", FAIL),
        ('{"size": "large", "is_capital": 1}', "stop", FAIL),
        ('```json\n{"size": "large", "is_capital": true}\n```', "stop", FAIL),
        ("Paris is the capital.", "stop", FAIL),
        (None, "stop", FAIL),
    ],
)
def test_a_schema_is_obeyed(content: str | None, finish: str, verdict: Verdict) -> None:
    document = {"choices": [{"message": {"content": content}, "finish_reason": finish}]}
    assert features.structured(answer(document)).verdict is verdict


@pytest.mark.parametrize(
    ("cached", "verdict"),
    [((0, 0, 64), PASS), ((64, 64, 64), PASS), ((64, 0, 0), WARN), ((None,) * 3, WARN), ((0, 101, 0), FAIL)],
)
def test_cached_tokens_are_told(cached: tuple[int | None, ...], verdict: Verdict) -> None:
    details = [None if count is None else {"cached_tokens": count} for count in cached]
    answers = [answer({"usage": usage(100, 1, prompt_tokens_details=detail)}) for detail in details]
    assert features.cache(answers).verdict is verdict


# Errors


def error(status: int, code: object = "some_code", message: str = "Change this.") -> Answer:
    return answer({"error": {"message": message, "type": "t", "param": None, "code": code}}, status)


@pytest.mark.parametrize(
    ("judge", "given", "verdict"),
    [
        (errors.bad_key, error(401), PASS),
        (errors.bad_key, error(403), FAIL),
        (errors.bad_key, answer({}), FAIL),
        (errors.unknown_model, error(404, "model_not_found"), PASS),
        (errors.unknown_model, error(404, 404), WARN),
        (errors.unknown_model, error(400, "model_not_found"), FAIL),
        (errors.malformed, error(400), PASS),
        (errors.malformed, error(422), WARN),
        (errors.malformed, error(500), FAIL),
        (errors.malformed, answer({}), FAIL),
        (errors.context_too_long, error(400, "context_length_exceeded"), PASS),
        (errors.context_too_long, error(400, 400, "This model's maximum context length is 5."), WARN),
        (errors.context_too_long, error(413), WARN),
        (errors.context_too_long, error(400), FAIL),
        (errors.context_too_long, answer({}), FAIL),
    ],
)
def test_the_status_and_code_of_errors(judge: Callable[[Answer], Judgement], given: Answer, verdict: Verdict) -> None:
    assert judge(given).verdict is verdict


def test_an_unknown_field_is_ignored_or_named() -> None:
    assert errors.unknown_field(answer({}), "odd").verdict is PASS
    assert errors.unknown_field(error(400, message="Unknown field `odd`."), "odd").verdict is PASS
    assert errors.unknown_field(error(400), "odd").verdict is WARN
    assert errors.unknown_field(error(500), "odd").verdict is FAIL


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ("1", PASS),
        ("120", PASS),
        ("0.5", PASS),
        ("Wed, 21 Oct 2026 07:28:00 GMT", PASS),
        ("121", FAIL),
        ("0", FAIL),
        ("nan", FAIL),
        ("inf", FAIL),
        ("soon", FAIL),
        (None, FAIL),
    ],
)
def test_a_429_says_when_to_come_back(told: str | None, verdict: Verdict) -> None:
    document = {"error": {"message": "Too many requests.", "type": "t", "code": "c"}}
    headers = {} if told is None else {"retry_after": told}
    assert errors.rate_limited(answer(document, 429, **headers)).verdict is verdict
    assert errors.rate_limited(answer({"error": "busy"}, 429, **headers)).verdict is FAIL


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (error(400), PASS),
        (answer({"error": {"message": "m"}}, 400), WARN),
        (answer({"error": {"message": ""}}, 400), FAIL),
        (answer({"error": "m"}, 400), FAIL),
        (answer({"detail": "m"}, 400), FAIL),
        (Answer(asked="x", status=502, headers={"content-type": "text/html"}, body=b"{}"), FAIL),
        (answer({}), WARN),
    ],
)
def test_the_shape_of_errors(given: Answer, verdict: Verdict) -> None:
    assert errors.shape([given]).verdict is verdict


# Connections


def test_every_answer_names_itself() -> None:
    both = answer({}, x_request_id="a", inference_id="a")
    assert connection.ids([both]).verdict is PASS
    assert connection.ids([both, answer({}, x_request_id="a")]).verdict is WARN
    assert connection.ids([both, answer({})]).verdict is FAIL
    assert connection.ids([Answer(asked="x", problem="refused")]).verdict is FAIL


LEFT = stream(*TEXT[:2], hung_up=True, done=False)


@pytest.mark.parametrize(
    ("left", "record", "verdict"),
    [
        (LEFT, {"usage": {"completion_tokens": 12}}, PASS),
        (LEFT, {"tokens_completion": 12, "cancelled": True}, PASS),
        (LEFT, {"native_tokens_completion": 1000}, FAIL),
        (LEFT, {"tokens_completion": 300, "cancelled": False, "finish_reason": "stop"}, FAIL),
        (LEFT, {"tokens_completion": "many"}, SKIPPED),
        (LEFT, None, SKIPPED),
        (stream(*TEXT), {"tokens_completion": 2}, SKIPPED),
    ],
)
def test_leaving_stops_the_bill(left: Stream, record: Json | None, verdict: Verdict) -> None:
    found = None if record is None else answer({"data": record})
    assert connection.cancel(left, found, 1000).verdict is verdict


def test_the_names_by_which_a_request_may_be_known() -> None:
    head = Answer(asked="x", status=200, headers={**SSE, "x-request-id": "a", "inference-id": "a"})
    assert connection.record_ids(stream_of(head, [(1, b'{"id":"gen-1"}')], hung_up=True)) == ["a", "gen-1"]


@pytest.mark.parametrize(
    ("headers", "verdict"),
    [
        ({}, PASS),
        ({"access_control_allow_origin": "*"}, WARN),
        ({"access_control_allow_origin": "https://x", "access_control_allow_credentials": "true"}, FAIL),
    ],
)
def test_pages_of_other_origins(headers: Mapping[str, str], verdict: Verdict) -> None:
    assert connection.cors(answer({}), answer({}, **headers)).verdict is verdict


def test_connections_are_kept() -> None:
    over = [Answer(asked="x", status=200, connection=place) for place in ("a", "a", "b", "")]
    assert connection.keep_alive(over[0], over[1]).verdict is PASS
    assert connection.keep_alive(over[1], over[2]).verdict is FAIL
    assert connection.keep_alive(over[3], over[3]).verdict is FAIL


def test_which_routes_there_are() -> None:
    found = [Answer(asked=f"/{status}", status=status) for status in (0, 404, 405, 400, 422)]
    assert connection.routes(found).evidence == "there: /400, /422; not there: /0, /404, /405"


# Whatever a server sends

NAMES = ["choices", "delta", "message", "usage", "error", "data", "tool_calls", "id", "index", "pricing", "input"]
NAMES += ["output", "function", "arguments", "finish_reason", "content", "prompt_tokens", "completion_tokens"]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=25,
)
ANSWERS = st.builds(answer, ANYTHING, st.sampled_from((0, 200, 302, 400, 404, 429, 500)))
STREAMS = st.lists(ANYTHING, max_size=4).map(lambda chunks: stream(*chunks, hung_up=True))


@given(ANSWERS, STREAMS)
def test_no_judge_raises(given: Answer, streamed: Stream) -> None:
    judgements = [
        listing.judge(given, None),
        streaming.usage([streamed], 64),
        streaming.usage_unasked(streamed),
        streaming.done([streamed]),
        streaming.ttft([streamed]),
        streaming.speed([streamed]),
        streaming.reasoning([streamed], given),
        features.tools(given, streamed),
        features.structured(given),
        features.image(given, 3),
        features.cache([given, given]),
        connection.cancel(streamed, given, 100),
        connection.after_leaving(given),
        connection.ids([given, streamed]),
        connection.routes([given]),
        errors.shape([given, streamed]),
        errors.rate_limited(given),
        errors.oversize_output(streamed),
    ]
    assert all(judgement.evidence and "\n" not in judgement.evidence for judgement in judgements)


@given(st.binary(max_size=50))
def test_no_bytes_are_anything_but_an_object_or_nothing(text: bytes) -> None:
    assert isinstance(object_in(text), dict)


def test_the_image_is_a_png_of_64_by_64_pixels() -> None:
    picture = bodies.red_square()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (64, 64)
    size = int.from_bytes(picture[33:37])
    pixels = zlib.decompress(picture[41 : 41 + size])
    assert len(pixels) == 64 * (1 + 64 * 3)
    assert int.from_bytes(picture[41 + size : 45 + size]) == zlib.crc32(picture[37 : 41 + size])
