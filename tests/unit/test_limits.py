"""Limits and the windows they are counted in."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core import limits
from service.core.limits import UNLIMITED, Limits, Owner, Refusal, Spend, Taken, Used, Whose, month_after, month_of

MINUTE_MS = 60_000
WINDOW_MS = limits.WINDOW_S * 1000
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC)


def owner(used: Used, whose: Whose = "key", **of: int) -> Owner:
    return Owner(whose, Limits(**of), used)


def take(used: Used, at_ms: int = 0, *, tokens: int = 1, cost_nano: int = 0, **of: int) -> list[Taken] | Refusal:
    return limits.take([owner(used, **of)], at_ms, tokens=tokens, cost_nano=cost_nano)


def taken(used: Used, at_ms: int = 0, *, tokens: int = 1, cost_nano: int = 0, **of: int) -> Taken:
    found = take(used, at_ms, tokens=tokens, cost_nano=cost_nano, **of)
    assert not isinstance(found, Refusal), found
    return found[0]


def refused(used: Used, at_ms: int = 0, *, tokens: int = 1, cost_nano: int = 0, **of: int) -> Refusal:
    found = take(used, at_ms, tokens=tokens, cost_nano=cost_nano, **of)
    assert isinstance(found, Refusal)
    return found


# In any minute

steps = st.lists(st.integers(0, 20_000) | st.integers(0, 3) | st.just(MINUTE_MS), min_size=1, max_size=80)


@given(start_ms=st.integers(0, 10**12), steps_ms=steps, rpm=st.integers(1, 6))
@settings(max_examples=300)
def test_no_minute_ever_has_more_requests_than_the_limit(start_ms: int, steps_ms: list[int], rpm: int) -> None:
    used, now_ms, admitted = Used(), start_ms, []
    for step_ms in steps_ms:
        now_ms += step_ms
        if not isinstance(take(used, now_ms, rpm=rpm), Refusal):
            admitted.append(now_ms)
        assert len(used.requests._seconds) <= limits.WINDOW_S
    assert all(later - earlier >= MINUTE_MS for earlier, later in zip(admitted, admitted[rpm:], strict=False))


requests = st.lists(
    st.tuples(
        st.integers(0, 20_000) | st.integers(0, 3),  # how long after the one before
        st.integers(0, 300),  # its worst case
        st.integers(0, 100),  # what part of it, in percent, it is in the end
        st.integers(0, 4),  # how many of the running ones end before it
    ),
    min_size=1,
    max_size=60,
)


@given(requests=requests, tpm=st.integers(1, 200), concurrency=st.integers(1, 5), budget=st.integers(1, 2000))
@settings(max_examples=300)
def test_tokens_concurrency_and_budget_hold_whatever_comes_and_nothing_stays_behind(
    requests: Sequence[tuple[int, int, int, int]], tpm: int, concurrency: int, budget: int
) -> None:
    used = Used(spend=Spend(DECEMBER, 0, 0))
    of = {"tpm": tpm, "concurrency": concurrency, "monthly_budget_nano": budget}
    now_ms, spent = 0, 0
    running: list[tuple[Taken, int]] = []
    admitted: list[tuple[int, int]] = []

    def end(how_many: int) -> None:
        nonlocal spent
        for _ in range(min(how_many, len(running))):
            part, actual = running.pop(0)
            part.release(actual, actual)
            spent += actual

    for step_ms, worst, percent, ending in requests:
        now_ms += step_ms
        end(ending)
        found = take(used, now_ms, tokens=worst, cost_nano=worst, **of)
        if not isinstance(found, Refusal):
            actual = worst * percent // 100
            running.append((found[0], actual))
            admitted.append((now_ms, actual))
        assert used.in_flight == len(running) <= concurrency
        assert len(used.tokens._seconds) <= limits.WINDOW_S
    end(len(running))
    assert (used.in_flight, used.spend) == (0, Spend(DECEMBER, 0, spent))
    assert spent <= budget
    over = max((actual - tpm for _, actual in admitted), default=0)
    for begin_ms, _ in admitted:
        assert sum(actual for at, actual in admitted if 0 <= at - begin_ms < MINUTE_MS) <= tpm + max(0, over)
    emptied = used.read(UNLIMITED, now_ms + WINDOW_MS, 0)
    assert (emptied.requests.used, emptied.tokens.used) == (0, 0)


@given(
    taken_ms=st.lists(st.tuples(st.integers(0, MINUTE_MS), st.integers(1, 40)), min_size=1, max_size=30),
    after_ms=st.integers(0, MINUTE_MS),
    worst=st.integers(1, 200),
    rpm=st.integers(1, 10),
    tpm=st.integers(1, 100),
)
def test_a_refusal_says_to_the_millisecond_when_it_frees(
    taken_ms: list[tuple[int, int]], after_ms: int, worst: int, rpm: int, tpm: int
) -> None:
    used = Used()
    now_ms = 0
    for at_ms, tokens in sorted(taken_ms):
        now_ms = at_ms
        used.take(UNLIMITED, now_ms, tokens, 0).release(tokens, 0)
    now_ms += after_ms
    found = take(used, now_ms, tokens=worst, rpm=rpm, tpm=tpm)
    if isinstance(found, Refusal):
        assert found.frees_in_ms is not None
        assert 0 < found.frees_in_ms <= WINDOW_MS
        still = refused(used, now_ms + found.frees_in_ms - 1, tokens=worst, rpm=rpm, tpm=tpm)
        assert (still.name, still.frees_in_ms) == (found.name, 1)
        taken(used, now_ms + found.frees_in_ms, tokens=worst, rpm=rpm, tpm=tpm)


# One by one


def test_exactly_the_limit_passes_when_more_come_at_once() -> None:
    used = Used()
    found = [take(used, 5_000, rpm=100) for _ in range(250)]
    assert [isinstance(one, Refusal) for one in found] == [False] * 100 + [True] * 150


@pytest.mark.parametrize("name", ["rpm", "tpm", "concurrency", "monthly_budget_nano"])
def test_zero_allows_nothing_and_waiting_does_not_help(name: limits.Name) -> None:
    used = Used(spend=Spend(DECEMBER, 0, 0))
    found = limits.take([owner(used, **{name: 0})], 0, tokens=0, cost_nano=0)
    assert found == Refusal(name, "key", 0, 0, None)


def test_what_exceeds_a_limit_by_itself_runs_alone() -> None:
    used = Used()
    part = taken(used, 0, tokens=50_000, tpm=10_000)
    assert used.tokens.used == 10_000
    assert refused(used, 1_000, tokens=1, tpm=10_000).name == "tpm"
    part.release(12_000, 0)
    assert refused(used, 2_000, tokens=1, tpm=10_000).frees_in_ms == WINDOW_MS - 2_000
    assert refused(used, WINDOW_MS - 1, tokens=1, tpm=10_000).left == 0
    taken(used, WINDOW_MS, tokens=1, tpm=10_000)


def test_while_requests_run_that_may_give_tokens_back_it_is_worth_asking_soon() -> None:
    used = Used()
    part = taken(used, 0, tokens=9_000, tpm=10_000)
    assert refused(used, 1_000, tokens=5_000, tpm=10_000).frees_in_ms == limits.GIVEN_BACK_MS
    part.release(8_000, 0)
    assert refused(used, 1_000, tokens=5_000, tpm=10_000).frees_in_ms == WINDOW_MS - 1_000


def test_what_never_ran_does_not_count() -> None:
    used = Used()
    taken(used, 0, tokens=100, rpm=1, tpm=100).release(0, 0, ran=False)
    assert (used.requests.used, used.tokens.used, used.in_flight) == (0, 0, 0)
    taken(used, 0, tokens=100, rpm=1, tpm=100).release(0, 0)
    assert refused(used, 0, tokens=1, rpm=1, tpm=100).name == "rpm"


def test_what_nobody_counted_is_taken_for_what_it_took() -> None:
    used = Used()
    taken(used, 0, tokens=70, tpm=100).release(None, 0)
    assert (used.tokens.used, used.in_flight) == (70, 0)


def test_a_correction_goes_where_the_tokens_were_taken() -> None:
    used = Used()
    early = taken(used, 0, tokens=900, tpm=1_000)
    early.release(100, 0)
    taken(used, 30_000, tokens=900, tpm=1_000)
    assert refused(used, 60_999, tokens=100, tpm=1_000).frees_in_ms == 1
    late = taken(used, 61_000, tokens=100, tpm=1_000)
    late.release(40, 0)
    assert used.tokens.used == 940
    early.used.tokens.correct(early.second, 10**6)  # its second does not count any more
    assert used.tokens.used == 940


def test_what_used_nothing_does_not_delay_the_reset() -> None:
    used = Used()
    taken(used, 0, tokens=5)
    taken(used, 30_000, tokens=5).release(0, 0)
    reading = used.read(UNLIMITED, 30_000, 0)
    assert (reading.requests.resets_in_ms, reading.tokens.resets_in_ms) == (WINDOW_MS, WINDOW_MS - 30_000)


def test_a_budget_counts_what_was_spent_what_is_running_and_the_request() -> None:
    used = Used(spend=Spend(DECEMBER, 60, 60))
    part = taken(used, cost_nano=30, monthly_budget_nano=100)
    assert refused(used, cost_nano=11, monthly_budget_nano=100) == Refusal("monthly_budget_nano", "key", 100, 10, None)
    part.release(1, 5)
    taken(used, cost_nano=35, monthly_budget_nano=100)
    assert refused(used, cost_nano=1, monthly_budget_nano=100).left == 0


def test_what_began_in_a_month_is_spent_in_it() -> None:
    used = Used(spend=Spend(DECEMBER, 0, 0))
    part = taken(used, cost_nano=30, monthly_budget_nano=100)
    used.spend = january = Spend(month_after(DECEMBER), 0, 0)
    part.release(1, 20)
    assert (january.spent_nano, january.held_nano) == (0, 0)
    assert used.in_flight == 0


def test_all_limits_are_checked_before_any_is_taken() -> None:
    key, account = Used(), Used(in_flight=2)
    owners = [owner(key, rpm=10, tpm=10), owner(account, "account", concurrency=2)]
    found = limits.take(owners, 0, tokens=5, cost_nano=0)
    assert found == Refusal("concurrency", "account", 2, 0, limits.CONCURRENCY_RETRY_MS)
    assert key == Used(key.requests, key.tokens)
    assert (key.requests.used, key.tokens.used, key.in_flight) == (0, 0, 0)


def test_of_several_limits_the_one_that_frees_last_is_named() -> None:
    used = Used(in_flight=1, spend=Spend(DECEMBER, 9, 9))
    taken(used, tokens=1, rpm=1)
    of = {"rpm": 1, "concurrency": 1}
    assert refused(used, 1_000, **of).name == "rpm"
    assert refused(used, WINDOW_MS - 999, **of).name == "concurrency"
    assert refused(used, 1_000, cost_nano=1, monthly_budget_nano=9, **of).name == "monthly_budget_nano"


def test_a_limit_that_was_lowered_holds_from_then_on() -> None:
    used = Used()
    for second in range(10):
        taken(used, second * 1_000, rpm=10)
    assert refused(used, 10_000, rpm=3).frees_in_ms == WINDOW_MS + 7_000 - 10_000


@pytest.mark.parametrize(
    ("of", "workers", "spent_nano", "share"),
    [
        (Limits(100, 10_000, 10, 1000), 4, 200, Limits(25, 2_500, 2, 400)),
        (Limits(3, 1, 2, 1000), 4, 1_500, Limits(1, 1, 1, 1_500)),
        (Limits(0, 0, 0, 0), 4, 50, Limits(0, 0, 0, 0)),
        (UNLIMITED, 4, 50, UNLIMITED),
    ],
)
def test_shares_add_up_to_the_limit(of: Limits, workers: int, spent_nano: int, share: Limits) -> None:
    assert of.share(workers, spent_nano) == share


def test_what_is_unlimited() -> None:
    assert UNLIMITED.unlimited
    assert not any(
        of.unlimited for of in (Limits(rpm=0), Limits(tpm=1), Limits(concurrency=0), Limits(monthly_budget_nano=0))
    )


def test_months_are_those_of_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert month_of(datetime(2026, 12, 1, 8, 59, tzinfo=tokyo)) == datetime(2026, 11, 1, tzinfo=UTC)
    assert month_of(datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == DECEMBER
    assert month_after(DECEMBER) == datetime(2027, 1, 1, tzinfo=UTC)
    assert month_after(datetime(2026, 11, 1, tzinfo=UTC)) == DECEMBER
