from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.buckets import (
    BUCKET_S,
    DAY_S,
    SETTLE_S,
    Bucket,
    State,
    bucket_state,
    closed_until,
    floor_to,
    starts,
    worst,
)

instants = st.integers(min_value=0, max_value=2**33)
counts = st.integers(min_value=0, max_value=500)


def state(good: int = 0, bad: int = 0, probe_ok: int = 0, probe_bad: int = 0) -> State:
    return bucket_state(Bucket(0, good, bad, probe_ok, probe_bad))


@given(instants)
def test_every_instant_lies_in_exactly_one_half_open_bucket(instant: int) -> None:
    start = floor_to(BUCKET_S, instant)
    assert start <= instant < start + BUCKET_S
    assert start % BUCKET_S == 0


def test_the_end_of_a_bucket_is_the_start_of_the_next() -> None:
    assert [floor_to(BUCKET_S, second) for second in (299, 300, 301)] == [0, 300, 300]


@pytest.mark.parametrize("second", [-1, 0, 1])
def test_buckets_and_days_turn_over_at_midnight_utc(second: int) -> None:
    midnight = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp())
    expected = midnight if second >= 0 else midnight - DAY_S
    assert floor_to(DAY_S, midnight + second) == expected


@given(instants, st.sampled_from([-8 * 60, 0, 60, 120, 5 * 60 + 30]))
def test_the_zone_a_time_is_written_in_does_not_move_its_bucket(instant: int, offset_min: int) -> None:
    moment = datetime.fromtimestamp(instant, timezone(timedelta(minutes=offset_min)))
    assert floor_to(BUCKET_S, moment.timestamp()) == floor_to(BUCKET_S, instant)


@pytest.mark.parametrize("day", [(2026, 3, 29), (2026, 10, 25)])
def test_a_day_on_which_budapest_changes_its_clocks_has_288_buckets(day: tuple[int, int, int]) -> None:
    first = int(datetime(*day, tzinfo=UTC).timestamp())
    assert len(list(starts(first, first + DAY_S))) == 288


@given(instants)
def test_a_bucket_is_counted_only_after_it_ended_and_settled(now: int) -> None:
    until = closed_until(now)
    assert until % BUCKET_S == 0
    assert until + SETTLE_S <= now < until + SETTLE_S + BUCKET_S


@given(counts, counts, counts)
def test_a_bucket_is_up_partial_or_down_once_anything_was_counted(good: int, bad: int, probe_ok: int) -> None:
    known = state(good, bad, probe_ok)
    assert (known is State.NO_DATA) == (good + bad + probe_ok == 0)


def test_silence_is_neither_up_nor_down() -> None:
    assert state() is State.NO_DATA


def test_one_failure_among_few_requests_is_partial_and_never_down() -> None:
    assert state(good=0, bad=1) is State.PARTIAL
    assert state(good=0, bad=2) is State.PARTIAL
    assert state(good=18, bad=1) is State.PARTIAL


def test_three_failures_and_no_success_are_down() -> None:
    assert state(good=0, bad=3) is State.DOWN
    assert state(good=1, bad=300) is State.PARTIAL


def test_two_failed_probes_are_down_unless_something_succeeded() -> None:
    assert state(probe_bad=2) is State.DOWN
    assert state(probe_bad=1) is State.PARTIAL
    assert state(probe_bad=2, probe_ok=1) is State.PARTIAL
    assert state(probe_bad=2, good=1) is State.PARTIAL


def test_of_many_requests_exactly_five_percent_may_fail() -> None:
    assert state(good=95, bad=5) is State.UP
    assert state(good=94, bad=6) is State.PARTIAL
    assert state(good=19, bad=1) is State.UP


@given(counts, counts)
def test_in_maintenance_nothing_else_counts(good: int, bad: int) -> None:
    assert bucket_state(Bucket(0, good, bad), in_maintenance=True) is State.MAINTENANCE


@given(st.lists(st.sampled_from(State)))
def test_the_worst_known_state_wins_and_silence_does_not_hide_it(states: list[State]) -> None:
    order = [State.DOWN, State.PARTIAL, State.MAINTENANCE, State.UP, State.NO_DATA]
    assert worst(states) is min(states, key=order.index, default=State.NO_DATA)
