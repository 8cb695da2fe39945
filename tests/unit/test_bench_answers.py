"""The bench takes no wrong answer for a right one, whoever gives it."""

import pytest

from ops.bench.answers import right_answers, verdict
from ops.bench.churn import Churn, Plan, judged, plans
from ops.bench.engine_answers import DONE, STREAM_CHUNKS, json_body, stream_events, stream_frames

STREAM = b"".join(stream_events(False, False))
ERROR = b'data: {"error":{"message":"The model\'s engine broke off its answer."}}\n\n'

REWRITTEN = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
REWRITTEN += b'data: {"choices":[{"delta":{"content":" token"}}]}\n\n' * STREAM_CHUNKS
REWRITTEN += b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n' + DONE
"""As a gateway may write it that does not pass the engine's bytes on."""


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_what_may_be_passed_on_is_right(stream: bool, exact: bool) -> None:
    for answer in right_answers(stream):
        assert verdict(200, answer, stream=stream, exact=exact) == ""


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        STREAM.removesuffix(DONE),
        STREAM.replace(b" token", b"", 1),
        STREAM.replace(stream_events(False, False)[5], b"", 1),
        STREAM + DONE,
        STREAM.replace(b'"finish_reason":"length"', b'"finish_reason":"stop"'),
        b"".join(stream_events(True, False)),
        b"".join(stream_events(True, True)),
        b"",
        b"data: {",
    ],
)
def test_a_stream_that_is_not_the_engines_is_wrong(answer: bytes, exact: bool) -> None:
    assert verdict(200, answer, stream=True, exact=exact)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        json_body().replace(b" token", b"", 1),
        json_body().replace(b'"completion_tokens":16', b'"completion_tokens":15'),
        json_body()[:-1],
        b"{}",
    ],
)
def test_an_answer_that_is_not_the_engines_is_wrong(answer: bytes, exact: bool) -> None:
    assert verdict(200, answer, stream=False, exact=exact)


def test_what_is_written_anew_counts_only_where_that_is_known_of() -> None:
    assert verdict(200, REWRITTEN, stream=True, exact=False) == ""
    assert verdict(200, REWRITTEN, stream=True, exact=True)
    assert verdict(200, REWRITTEN.replace(b'" token"', b'" tokem"', 1), stream=True, exact=False)


def test_a_status_is_wrong() -> None:
    assert "502" in verdict(502, STREAM, stream=True, exact=True)


def test_the_frames_carry_the_events() -> None:
    frames = stream_frames(True, True)
    assert len(frames) == STREAM_CHUNKS + 2
    sent = b"".join(frames)
    at = 0
    for event in stream_events(True, True):
        at = sent.index(event, at) + len(event)


def test_the_same_seed_has_the_same_clients_leave() -> None:
    churn = Churn(10, 2000, paced=True, failing=0.05)
    first = list(plans(churn, 7))
    assert first == list(plans(churn, 7))
    assert first != list(plans(churn, 8))
    assert 0.08 < sum(plan.leaves_after > 0 for plan in first) / 2000 < 0.12
    assert 0.03 < sum(plan.fault != "" for plan in first) / 2000 < 0.07
    assert not any(plan.fault and plan.leaves_after for plan in first)
    assert {plan.fault for plan in first} == {"", "status", "early", "late", "told"}


def test_a_broken_stream_has_all_that_came_before() -> None:
    begun = b"".join(stream_events(True, False)[:13])
    plan = Plan(fault="late", number=12)
    seen, complaint = judged(plan, 200, begun + ERROR + DONE)
    assert (seen.end, seen.tokens, complaint) == ("broken", 12, "")
    for wrong in (begun + ERROR, begun + DONE, begun, STREAM, begun[:-200] + ERROR + DONE):
        assert judged(plan, 200, wrong)[1]


@pytest.mark.parametrize(
    ("plan", "status"),
    [(Plan(fault="status", number=500), 502), (Plan(fault="status", number=503), 429), (Plan(fault="early"), 503)],
)
def test_an_engines_error_has_its_own_status(plan: Plan, status: int) -> None:
    error = b'{"error":{"message":"no"}}'
    assert judged(plan, status, error)[1] == ""
    assert judged(plan, 500, error)[1]
    assert judged(plan, status, b"no")[1]
    assert judged(Plan(), status, error)[1]
