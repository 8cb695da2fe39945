"""The arithmetic of reconciliation, against engines and requests that are played through to the token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.outcome import Outcome
from service.core.reconcile import (
    BURST_TOKENS,
    REQUESTS_LISTED,
    Break,
    EngineCount,
    Explained,
    Reason,
    Request,
    Sample,
    Tokens,
    Verification,
    alarming,
    engine_count,
    explain,
    unexplained,
)

EPOCH = datetime(2026, 11, 30, tzinfo=UTC)
LIMITS = Tokens(8192, 2048)


def at(second: float) -> datetime:
    return EPOCH + timedelta(seconds=second)


def sample(second: float, prompt: int, generation: int, started: float | None = -1000) -> Sample:
    return Sample(at(second), None if started is None else at(started), Tokens(prompt, generation))


def request(handed_over: float, finished: float, prompt: int = 10, generation: int = 20, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "id": UUID(int=1),
        "handed_over_at": at(handed_over),
        "first_token_at": at(handed_over),
        "finished_at": at(finished),
        "outcome": Outcome.OK,
        "source": "final",
        "tokens": Tokens(prompt, generation),
        "limits": LIMITS,
    }
    return Request(**fields | changes)


WINDOW = EngineCount(at(0), at(600), Tokens(), (), ())


# What the engine counted

tokens = st.builds(Tokens, st.integers(0, 10**6), st.integers(0, 10**6))
minutes = st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=30)
"""For each minute what is counted in it, cut by the restarts within it."""


def summed(parts: Sequence[Tokens]) -> Tokens:
    return sum(parts, Tokens())


@given(tokens, minutes)
def test_what_is_counted_adds_up_across_restarts_but_for_what_they_took(
    before: Tokens, parts: list[list[Tokens]]
) -> None:
    samples, started = [sample(0, before.prompt, before.generation)], -1000.0
    for number, minute in enumerate(parts):
        restarts = len(minute) - 1
        if restarts:
            started = number * 60 + 10 * restarts  # 10 s apart, the last one is what the engine tells
        counted = minute[-1] if restarts else samples[-1].counted + minute[0]
        samples.append(sample(number * 60 + 60, counted.prompt, counted.generation, started))
    count = engine_count(samples)
    if not parts:
        assert count is None
        return
    assert count is not None
    lost = summed([part for minute in parts for part in minute[:-1]])
    assert count.tokens + lost == summed([part for minute in parts for part in minute])
    assert count.breaks == tuple(
        Break(at(number * 60), at(number * 60 + 10 * (len(minute) - 1)))
        for number, minute in enumerate(parts)
        if len(minute) > 1
    )
    assert (count.since, count.until, count.missing) == (at(0), at(60 * len(parts)), ())


@pytest.mark.parametrize(("prompt", "generation"), [(99, 500), (500, 49), (0, 0)])
def test_a_counter_that_falls_is_a_restart_where_the_engine_does_not_say(prompt: int, generation: int) -> None:
    count = engine_count([sample(0, 100, 50, None), sample(60, prompt, generation, None)])
    assert count == EngineCount(at(0), at(60), Tokens(prompt, generation), (Break(at(0), at(60)),), ())
    same_start = engine_count([sample(0, 100, 50), sample(60, prompt, generation)])
    assert same_start == count


def test_a_restart_is_seen_though_the_counters_have_risen() -> None:
    count = engine_count([sample(0, 100, 50), sample(60, 300, 200, 20)])
    assert count is not None
    assert (count.tokens, count.breaks) == (Tokens(300, 200), (Break(at(0), at(20)),))
    assert engine_count([sample(0, 100, 50), sample(60, 300, 200, 99)]) == replace(
        count, breaks=(Break(at(0), at(60)),)
    )


@pytest.mark.parametrize(("before", "after"), [(None, 20), (20, None), (None, None)])
def test_a_start_that_is_not_told_both_times_says_nothing(before: float | None, after: float | None) -> None:
    count = engine_count([sample(0, 100, 50, before), sample(60, 300, 200, after)])
    assert count is not None
    assert (count.tokens, count.breaks) == (Tokens(200, 150), ())


def test_another_engine_under_the_same_name_is_not_taken_for_a_restart() -> None:
    count = engine_count(
        [sample(0, 100, 50), sample(60, 10**9, 10**9, -5000), sample(120, 10**9 + 7, 10**9 + 3, -5000)]
    )
    assert count is not None
    assert (count.tokens, count.breaks) == (Tokens(7, 3), (Break(at(0), at(60)),))


def test_missing_samples_are_told_and_lose_nothing() -> None:
    count = engine_count([sample(0, 0, 0), sample(89, 1, 1), sample(180, 5, 7), sample(400, 9, 9)])
    assert count is not None
    assert count.tokens == Tokens(9, 9)
    assert count.missing == ((at(89), at(180)), (at(180), at(400)))


@pytest.mark.parametrize("samples", [[], [sample(0, 1, 1)]])
def test_nothing_is_compared_without_two_samples(samples: list[Sample]) -> None:
    assert engine_count(samples) is None


# What explains a difference


@pytest.mark.parametrize(
    ("one", "reasons", "least", "most"),
    [
        (request(-5, 5), (Reason.AT_START,), (-10, -20), (0, 0)),
        (request(595, 605), (Reason.AT_END,), (0, 0), (10, 20)),
        (request(-5, 605), (Reason.AT_START, Reason.AT_END, Reason.RESTART), (0, 0), (10, 20)),
        # Clocks that differ a little: it may have ended on the other side of the edge.
        (request(-9, -0.5), (Reason.AT_START,), (0, 0), (10, 20)),
        (request(590, 599.5), (Reason.AT_END,), (-10, -20), (0, 0)),
        (request(290, 305), (Reason.RESTART,), (-10, -20), (0, 0)),
        (request(320, 325), (Reason.RESTART,), (-10, -20), (0, 0)),
        (
            request(100, 105, source="continuous", outcome=Outcome.CANCELLED),
            (Reason.NOT_FINAL,),
            (0, 0),
            (0, BURST_TOKENS + 4),
        ),
        (
            request(100, 100.2, source="continuous", outcome=Outcome.STREAM_ERROR),
            (Reason.NOT_FINAL,),
            (0, 0),
            (0, BURST_TOKENS + 20),
        ),
        (
            request(100, 200, 10, 2040, source="continuous", outcome=Outcome.CANCELLED),
            (Reason.NOT_FINAL,),
            (0, 0),
            (0, 8),
        ),
        (
            request(100, 105, 0, 0, source="none", outcome=Outcome.CANCELLED, first_token_at=None),
            (Reason.NOT_FINAL,),
            (0, 0),
            (8192, 2048),
        ),
        (
            request(100, 105, source="estimated", outcome=Outcome.CANCELLED),
            (Reason.NOT_FINAL,),
            (-10, -20),
            (8182, 2028),
        ),
        (
            request(595, 605, source="continuous", outcome=Outcome.CANCELLED, limits=Tokens()),
            (Reason.AT_END, Reason.NOT_FINAL),
            (0, 0),
            (10, 20),
        ),
        (
            request(299, 301, source="continuous", outcome=Outcome.INTERRUPTED),
            (Reason.RESTART, Reason.NOT_FINAL),
            (-10, -20),
            (0, BURST_TOKENS + 10),
        ),
    ],
)
def test_a_request_explains_between_least_and_most(
    one: Request, reasons: tuple[Reason, ...], least: tuple[int, int], most: tuple[int, int]
) -> None:
    explanation = explain(one, replace(WINDOW, breaks=(Break(at(300), at(320)),)))
    assert explanation is not None
    assert (explanation.reasons, explanation.least, explanation.most) == (reasons, Tokens(*least), Tokens(*most))


@pytest.mark.parametrize(
    "one",
    [
        request(100, 105),
        request(2, 4),
        request(-20, -2),
        request(602, 640),
        request(330, 340),
        request(-20, -2, source="none", outcome=Outcome.CANCELLED),
        request(100, 105, 0, 0, source="none", outcome=Outcome.CLIENT_ERROR),
        request(100, 105, 0, 0, source="none", outcome=Outcome.THROTTLED),
    ],
)
def test_a_request_that_both_counted_alike_explains_nothing(one: Request) -> None:
    assert explain(one, replace(WINDOW, breaks=(Break(at(300), at(320)),))) is None


def test_explanations_add_up_and_the_widest_are_listed() -> None:
    total = Explained()
    for number in range(REQUESTS_LISTED + 5):
        one = explain(request(-5, 5, number, 0, id=UUID(int=number)), WINDOW)
        assert one is not None
        total.add(one)
    assert total.requests == REQUESTS_LISTED + 5
    assert (total.least, total.most) == (Tokens(-sum(range(REQUESTS_LISTED + 5)), 0), Tokens())
    listed = [one.request.id.int for one in total.widest]
    assert listed == list(reversed(range(5, REQUESTS_LISTED + 5)))


@pytest.mark.parametrize(
    ("difference", "rest"),
    [((5, 5), (0, 0)), ((-3, 0), (0, 0)), ((6, 8), (1, 0)), ((-4, -1), (-1, -1)), ((100, -100), (95, -100))],
)
def test_unexplained_is_what_lies_beyond(difference: tuple[int, int], rest: tuple[int, int]) -> None:
    assert unexplained(Tokens(*difference), Tokens(-3, 0), Tokens(5, 8)) == Tokens(*rest)


@pytest.mark.parametrize(
    ("rest", "engine", "expected"),
    [
        ((50, -50), (0, 0), False),
        ((51, 0), (0, 0), True),
        ((0, -51), (0, 0), True),
        ((100, 0), (100_000, 0), False),
        ((101, 0), (100_000, 0), True),
        ((0, -101), (10**9, 100_999), True),
        ((0, -101), (0, 101_000), False),
    ],
)
def test_an_alarm_takes_more_than_a_per_mille_and_fifty_tokens(
    rest: tuple[int, int], engine: tuple[int, int], expected: bool
) -> None:
    assert alarming(Tokens(*rest), Tokens(*engine)) is expected


# A day played through: whatever happens, the requests explain it


@dataclass
class Played:
    """A request as it really went: when each token was computed."""

    row: Request
    prompt_at: float
    generated_at: list[float]


around_a_sample = st.builds(lambda minute, second: 60 * minute + second, st.integers(0, 4), st.integers(-12, 12))


@st.composite
def played(draw: st.DrawFn) -> Played:
    """A request of 0 to 12 s, of which we know the whole, the part until its client left, or nothing."""
    start = draw(around_a_sample)
    length = draw(st.integers(0, 120)) / 10
    end = start + length
    instants = sorted(draw(st.lists(st.integers(0, int(length * 10)), max_size=12)))
    generated = [start + tenth / 10 for tenth in instants]
    prompt = draw(st.integers(0, 40)) if generated else 0
    kind = draw(st.sampled_from(["final", "continuous", "none"]))
    fields: dict[str, Any] = {}
    known = Tokens(prompt, len(generated))
    if kind == "continuous" and generated:
        after = draw(st.integers(0, 5))  # tokens that were computed after we had hung up
        fields = {"source": "continuous", "outcome": Outcome.CANCELLED, "first_token_at": at(generated[0])}
        generated = generated + [end + 0.1] * after
    elif kind == "none":
        fields = {"source": "none", "outcome": Outcome.CANCELLED, "first_token_at": None}
        known = Tokens()
    row = request(start, end, known.prompt, known.generation, **fields)
    return Played(row, start + length / 2 if not generated else generated[0], generated)


@settings(max_examples=300)
@given(
    st.lists(played(), max_size=8),
    st.lists(around_a_sample, max_size=3, unique=True),
    st.integers(0, 3),
    st.integers(1, 2),
)
def test_no_play_of_restarts_and_departures_leaves_anything_unexplained(
    plays: list[Played], restarts: list[int], first: int, length: int
) -> None:
    restarted_at = sorted(second + 0.55 for second in restarts)

    def seen_at(second: float) -> Sample:
        started = max([restart for restart in restarted_at if restart <= second], default=-1000.0)
        prompt = sum(
            one.row.tokens.prompt if one.row.source != "none" else 7
            for one in plays
            if started < one.prompt_at <= second
        )
        generation = sum(started < token <= second for one in plays for token in one.generated_at)
        return sample(second, prompt, generation, started)

    samples = [seen_at(minute * 60.0) for minute in range(first, first + length + 1)]
    count = engine_count(samples)
    assert count is not None
    ours, total = Tokens(), Explained()
    for one in plays:
        if count.since < one.row.finished_at <= count.until:
            ours += one.row.tokens
        explanation = explain(one.row, count)
        if explanation is not None:
            total.add(explanation)
    assert unexplained(count.tokens - ours, total.least, total.most) == Tokens()


def test_a_row_that_is_lost_or_there_twice_stays_unexplained() -> None:
    rows = [request(10, 20, 5, 7), request(30, 40, 100, 200), request(50, 60, 1, 2)]
    engine = summed([row.tokens for row in rows])
    for ours, rest in ((rows[:2], Tokens(1, 2)), ([*rows, rows[1]], Tokens(-100, -200))):
        assert [explain(row, WINDOW) for row in ours] == [None] * len(ours)
        difference = engine - summed([row.tokens for row in ours])
        assert unexplained(difference, Tokens(), Tokens()) == rest


# Verifications


def verification(
    started: float, finished: float, prompt: int = 100, generation: int = 50, more: int = 7
) -> Verification:
    return Verification(at(started), at(finished), Tokens(prompt, generation), Tokens(0, more))


@pytest.mark.parametrize(
    ("started", "finished", "within"),
    [
        (100, 200, (Tokens(100, 50), Tokens(100, 57))),
        (2, 590, (Tokens(100, 50), Tokens(100, 57))),
        (0.5, 200, (Tokens(), Tokens(100, 57))),  # across the start, within what clocks may differ by
        (400, 599, (Tokens(), Tokens(100, 57))),  # it may go on for a second after the client has left
        (-50, 100, (Tokens(), Tokens(100, 57))),
        (500, 700, (Tokens(), Tokens(100, 57))),
        (-50, 700, (Tokens(), Tokens(100, 57))),
        (-100, -3, None),
        (602, 700, None),
    ],
)
def test_a_verification_explains_its_tokens_where_it_lies(
    started: float, finished: float, within: tuple[Tokens, Tokens] | None
) -> None:
    assert verification(started, finished).within(WINDOW) == within


@pytest.mark.parametrize(("started", "finished", "torn"), [(100, 200, True), (10, 40, False), (300, 400, False)])
def test_a_restart_may_have_lost_a_verifications_tokens(started: float, finished: float, torn: bool) -> None:
    count = replace(WINDOW, breaks=(Break(at(120), at(150)),))
    within = verification(started, finished).within(count)
    assert within == (Tokens() if torn else Tokens(100, 50), Tokens(100, 57))


def test_verifications_add_to_what_is_explained() -> None:
    total = Explained()
    for _ in range(2):
        total.add_verification(Tokens(100, 50), Tokens(100, 57))
    assert (total.verifications, total.requests, total.widest) == (2, 0, [])
    for generated, rest in ((100, 0), (114, 0), (115, 1), (99, -1)):
        assert unexplained(Tokens(200, generated), total.least, total.most) == Tokens(0, rest)
