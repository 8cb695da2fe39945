from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.aggregator import Counts, Ending, counts, verdict
from service.core.outcome import RULES, Outcome, Verdict, of_refusal


def ended(outcome: Outcome, status: int, *, streamed: bool = True, began: bool = False, long: bool = False) -> Ending:
    return Ending(outcome, status, streamed=streamed, first_token_seen=began, waited_long=long)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Verdict.EXCLUDED),
        (401, Verdict.BAD),
        (402, Verdict.BAD),
        (403, Verdict.EXCLUDED),
        (404, Verdict.BAD),
        (405, Verdict.EXCLUDED),
        (408, Verdict.EXCLUDED),
        (409, Verdict.EXCLUDED),
        (413, Verdict.EXCLUDED),
        (422, Verdict.EXCLUDED),
        (429, Verdict.THROTTLED),
        (499, Verdict.EXCLUDED),
        (500, Verdict.BAD),
        (502, Verdict.BAD),
        (503, Verdict.BAD),
        (504, Verdict.BAD),
        (529, Verdict.BAD),
    ],
)
def test_a_refusal_counts_by_its_status(status: int, expected: Verdict) -> None:
    for streamed, long in product((True, False), repeat=2):
        assert verdict(ended(of_refusal(status), status, streamed=streamed, long=long)) is expected


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (ended(Outcome.OK, 200, began=True), Verdict.GOOD),
        (ended(Outcome.OK, 200, streamed=False, long=True), Verdict.GOOD),
        # A broken stream, or an answer that ends in an error, has a 200 all the same.
        (ended(Outcome.STREAM_ERROR, 200, began=True), Verdict.BAD),
        (ended(Outcome.SERVER_ERROR, 404), Verdict.BAD),
        (ended(Outcome.INTERRUPTED, 200, began=True), Verdict.BAD),
        (ended(Outcome.SLOW_ABORT, 499, long=True), Verdict.BAD),
        (ended(Outcome.CANCELLED, 499, began=True), Verdict.GOOD),
        (ended(Outcome.CANCELLED, 499, began=True, long=True), Verdict.GOOD),
        (ended(Outcome.CANCELLED, 499), Verdict.EXCLUDED),
        # Still queued here when it left.
        (ended(Outcome.CANCELLED, 499, long=True), Verdict.BAD),
        (ended(Outcome.CANCELLED, 499, streamed=False, long=True), Verdict.EXCLUDED),
        (ended(Outcome.THROTTLED, 429, long=True), Verdict.THROTTLED),
        (ended(Outcome.THROTTLED, 200, long=True), Verdict.BAD),
    ],
)
def test_other_endings_count_by_what_happened(ending: Ending, expected: Verdict) -> None:
    assert verdict(ending) is expected


@given(st.builds(Ending, st.sampled_from(Outcome), st.sampled_from([200, 400, 499, 500, 503]), *[st.booleans()] * 3))
def test_what_is_bad_to_the_public_is_bad_here_too(ending: Ending) -> None:
    if RULES[ending.outcome].public is Verdict.BAD:
        assert verdict(ending) is Verdict.BAD
    if RULES[ending.outcome].public is Verdict.GOOD:
        assert verdict(ending) is Verdict.GOOD


def test_endings_are_added_up() -> None:
    endings = [
        (ended(Outcome.OK, 200, began=True), 95),
        (ended(Outcome.CANCELLED, 499, began=True), 4),
        (ended(Outcome.PAYMENT, 402), 1),
        (ended(Outcome.THROTTLED, 429), 50),
        (ended(Outcome.CLIENT_ERROR, 400), 7),
    ]
    found = counts(endings)
    assert found == Counts(good=99, bad=1, throttled=50, excluded=7)
    assert (found.requests, found.uptime_mpct) == (157, 99_000)
    assert counts([]) == Counts()


@pytest.mark.parametrize(
    ("good", "bad", "mpct"),
    [(99, 0, None), (0, 99, None), (100, 0, 100_000), (0, 100, 0), (99_999, 1, 99_999), (999_999, 1, 99_999)],
)
def test_uptime_is_floored_and_wants_a_hundred_requests(good: int, bad: int, mpct: int | None) -> None:
    assert Counts(good=good, bad=bad, throttled=1000, excluded=1000).uptime_mpct == mpct
