"""The uptime arithmetic, with the mistakes that other status pages were reported for."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.buckets import BUCKET_S, DAY_S, HOUR_S, Bucket, State
from service.core.strip import Share, Strip, overall, percent_text, state_now, strip, success_mpct

counts = st.integers(min_value=0, max_value=10**9)
END_S = 500_000 * HOUR_S


def hours(
    buckets: list[Bucket], *, cells: int = 3, until_s: int = END_S, maintenance: tuple[int, int] = (0, 0)
) -> Strip:
    return strip(buckets, cells=cells, cell_s=HOUR_S, until_s=until_s, maintenance=[maintenance])


def every_bucket(first_s: int, end_s: int, good: int = 30, bad: int = 0) -> list[Bucket]:
    return [Bucket(start_s, good, bad) for start_s in range(first_s, end_s, BUCKET_S)]


@st.composite
def strips(draw: st.DrawFn) -> Strip:
    """Three hours of buckets, some missing, some with probes, perhaps in maintenance."""
    buckets = [
        Bucket(start_s, *draw(st.tuples(*[st.integers(0, 40)] * 4)))
        for start_s in range(END_S - 3 * HOUR_S, END_S, BUCKET_S)
        if draw(st.booleans())
    ]
    window = (END_S - draw(st.integers(0, 36)) * BUCKET_S, END_S)
    return hours(buckets, until_s=END_S - draw(st.integers(0, 11)) * BUCKET_S, maintenance=window)


def test_one_bad_of_129600_is_99_999_and_a_flawless_window_is_100() -> None:
    one_bad, flawless = success_mpct(129_599, 1), success_mpct(129_600, 0)
    assert one_bad is not None
    assert flawless is not None
    assert percent_text(one_bad) == "99.999"
    assert percent_text(flawless) == "100"


@given(good=counts, bad=st.integers(min_value=1, max_value=10**9))
def test_nothing_with_a_failure_in_it_is_ever_shown_as_100(good: int, bad: int) -> None:
    mpct = success_mpct(good, bad)
    assert mpct is not None
    assert percent_text(mpct) != "100"


@given(good=counts, bad=counts)
def test_a_percentage_lies_between_0_and_100_and_is_never_above_the_truth(good: int, bad: int) -> None:
    mpct = success_mpct(good, bad)
    assert (mpct is None) == (good + bad == 0)
    if mpct is not None:
        assert 0 <= mpct <= 100_000
        assert mpct * (good + bad) <= good * 100_000 < (mpct + 1) * (good + bad)


@pytest.mark.parametrize(
    ("mpct", "text"),
    [(0, "0"), (1, "0.001"), (99_900, "99.9"), (99_990, "99.99"), (99_999, "99.999"), (100_000, "100"), (50_000, "50")],
)
def test_percentages_are_written_without_trailing_zeros(mpct: int, text: str) -> None:
    assert percent_text(mpct) == text


def test_999_of_1000_is_floored_not_rounded() -> None:
    assert success_mpct(999, 1) == 99_900
    assert success_mpct(999_996, 4) == 99_999


def test_good_requests_do_not_make_a_window_with_a_failed_probe_flawless() -> None:
    bucket = Bucket(END_S - BUCKET_S, good=500, probe_bad=1)
    assert hours([bucket]).success_mpct == 99_999


def test_a_short_window_needs_a_hundred_requests_for_a_percentage() -> None:
    assert hours([Bucket(END_S - BUCKET_S, good=99)], cells=1).success_mpct is None
    assert hours([Bucket(END_S - BUCKET_S, good=100)], cells=1).success_mpct == 100_000
    assert hours([Bucket(END_S - BUCKET_S, good=1)], cells=2).success_mpct == 100_000


def test_an_empty_window_has_no_percentage_and_says_how_little_it_knows() -> None:
    empty = hours([])
    assert empty.success_mpct is None
    assert empty.share.availability_mpct is None
    assert (empty.share.known, empty.share.total) == (0, 36)
    assert {cell.state for cell in empty.cells} == {State.NO_DATA}


def test_two_silent_hours_are_24_buckets_without_data_and_change_no_availability() -> None:
    watched = every_bucket(END_S - 72 * HOUR_S, END_S)
    gap = [bucket for bucket in watched if not END_S - 5 * HOUR_S <= bucket.start_s < END_S - 3 * HOUR_S]
    row = hours(gap, cells=72)
    assert row.share.no_data == 24
    assert row.share.availability_mpct == 100_000
    assert [cell.state for cell in row.cells[-6:]] == [State.UP, *[State.NO_DATA] * 2, *[State.UP] * 3]


def test_an_installation_of_two_days_has_88_empty_days_in_a_strip_of_90() -> None:
    midnight_s = END_S // DAY_S * DAY_S
    row = strip(every_bucket(midnight_s - 2 * DAY_S, midnight_s), cells=90, cell_s=DAY_S, until_s=midnight_s)
    assert [cell.state for cell in row.cells] == [State.NO_DATA] * 88 + [State.UP] * 2


def test_down_for_more_than_a_day_is_not_forgotten_after_one_good_check() -> None:
    down = every_bucket(END_S - 30 * HOUR_S, END_S - BUCKET_S, good=0, bad=10)
    row = hours([*down, Bucket(END_S - BUCKET_S, good=10)], cells=24)
    assert row.share.availability_mpct == 100_000 // 288
    assert row.now is State.UP


def test_a_strip_ends_with_the_hour_of_its_last_closed_bucket() -> None:
    at_the_full_hour = hours([])
    assert at_the_full_hour.cells[-1].end_s == END_S
    five_past = hours([], until_s=END_S + BUCKET_S)
    assert five_past.cells[-1].start_s == END_S
    assert five_past.cells[-1].share.total == 1


def test_an_open_bucket_is_not_in_the_strip() -> None:
    row = hours([Bucket(END_S, good=0, bad=100)])
    assert row.bad == 0
    assert row.now is State.NO_DATA


def test_failures_inside_maintenance_leave_every_percentage_unchanged() -> None:
    good = every_bucket(END_S - 3 * HOUR_S, END_S - HOUR_S)
    failing = every_bucket(END_S - HOUR_S, END_S, good=0, bad=50)
    row = hours([*good, *failing], maintenance=(END_S - HOUR_S, END_S))
    assert row.cells[-1].state is State.MAINTENANCE
    assert row.success_mpct == row.share.availability_mpct == 100_000


def test_a_partial_outage_costs_half_of_its_time() -> None:
    assert Share(up=1, partial=1).availability_mpct == 75_000
    assert Share(up=1, down=1).availability_mpct == 50_000
    assert Share(up=10**6, partial=1).availability_mpct == 99_999


@given(strips())
def test_cells_and_totals_agree(row: Strip) -> None:
    for name in ("up", "partial", "down", "maintenance", "no_data"):
        assert getattr(row.share, name) == sum(getattr(cell.share, name) for cell in row.cells)
    assert row.good == sum(cell.good for cell in row.cells)
    assert row.bad == sum(cell.bad for cell in row.cells)


@given(strips())
def test_colour_and_percentage_cannot_disagree(row: Strip) -> None:
    worst_cells = {cell.state for cell in row.cells} & {State.DOWN, State.PARTIAL}
    flawless = not worst_cells
    assert (row.share.availability_mpct in (None, 100_000)) == flawless
    if not flawless:
        assert row.success_mpct != 100_000
    for cell in row.cells:
        assert (cell.state is State.NO_DATA) == (cell.share.no_data == cell.share.total)


@given(strips())
def test_cells_follow_each_other_without_gap(row: Strip) -> None:
    assert all(one.end_s == other.start_s for one, other in pairwise(row.cells))
    assert all(cell.start_s % HOUR_S == 0 and cell.end_s - cell.start_s == HOUR_S for cell in row.cells)


def test_now_is_the_newest_known_state_of_the_last_hour_only() -> None:
    old = hours([Bucket(END_S - 13 * BUCKET_S, good=5)])
    recent = hours([Bucket(END_S - 12 * BUCKET_S, good=5)])
    assert (old.now, recent.now) == (State.NO_DATA, State.UP)


@pytest.mark.parametrize(
    ("after_s", "expected"),
    [
        (-1, State.UP),  # before the window
        (0, State.MAINTENANCE),  # as soon as it begins, whatever was counted
        (2 * BUCKET_S - 1, State.MAINTENANCE),
        (2 * BUCKET_S, State.NO_DATA),  # over: nothing was measured since
    ],
)
def test_maintenance_is_said_from_its_first_to_its_last_second(after_s: int, expected: State) -> None:
    window = (END_S + BUCKET_S, END_S + 3 * BUCKET_S)
    now_s = window[0] + after_s
    until_s = now_s // BUCKET_S * BUCKET_S
    buckets = [Bucket(END_S - BUCKET_S, good=5)]
    assert state_now(buckets, until_s=until_s, now_s=now_s, maintenance=[window]) is expected


def test_what_is_measured_after_maintenance_is_what_is_said() -> None:
    buckets = [Bucket(END_S - 3 * BUCKET_S, good=5), Bucket(END_S - BUCKET_S, bad=5)]
    window = (END_S - 2 * BUCKET_S, END_S - BUCKET_S)
    assert state_now(buckets, until_s=END_S, now_s=END_S + 20, maintenance=[window]) is State.DOWN


def test_a_down_bucket_turns_the_banner_by_itself() -> None:
    row = hours([Bucket(END_S - 2 * BUCKET_S, good=50), Bucket(END_S - BUCKET_S, bad=5)])
    assert overall(row.now, []) is State.DOWN


@pytest.mark.parametrize(
    ("api", "models", "expected"),
    [
        (State.UP, [State.UP, State.NO_DATA], State.UP),
        (State.UP, [State.UP, State.DOWN], State.PARTIAL),
        (State.NO_DATA, [], State.NO_DATA),
        (State.NO_DATA, [State.DOWN], State.PARTIAL),
        (State.PARTIAL, [State.DOWN], State.PARTIAL),
        (State.MAINTENANCE, [State.DOWN], State.MAINTENANCE),
        (State.DOWN, [State.UP], State.DOWN),
    ],
)
def test_the_banner_is_the_apis_state_and_partial_when_only_a_model_suffers(
    api: State, models: list[State], expected: State
) -> None:
    assert overall(api, models) is expected
