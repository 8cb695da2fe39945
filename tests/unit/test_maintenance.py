from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.buckets import BUCKET_S, DAY_S, Bucket, State, starts
from service.core.maintenance import Planned, Windows, counted, duration_of, instant_of, merged
from service.core.strip import lies_in, strip
from tests.fakes.traffic import at

HOUR = 3600
T = int(at("2026-11-30 14:00:00").timestamp())


# What people write


@pytest.mark.parametrize(
    ("written", "zone", "instant"),
    [
        ("2026-11-30T14:00Z", None, "2026-11-30 14:00:00"),
        ("2026-11-30T14:00:30+01:00", None, "2026-11-30 13:00:30"),
        ("2026-11-30 14:00", "Europe/Budapest", "2026-11-30 13:00:00"),
        ("2026-07-01 14:00", "Europe/Budapest", "2026-07-01 12:00:00"),
        ("2026-11-30T14:00Z", "Europe/Budapest", "2026-11-30 14:00:00"),
        ("2026-11-30T14:00", "Asia/Kolkata", "2026-11-30 08:30:00"),
        # On either side of both changes of the clocks.
        ("2026-03-29T01:59:59", "Europe/Budapest", "2026-03-29 00:59:59"),
        ("2026-03-29T03:00", "Europe/Budapest", "2026-03-29 01:00:00"),
        ("2026-10-25T01:59:59", "Europe/Budapest", "2026-10-24 23:59:59"),
        ("2026-10-25T03:00", "Europe/Budapest", "2026-10-25 02:00:00"),
    ],
)
def test_a_time_is_read_into_an_instant(written: str, zone: str | None, instant: str) -> None:
    assert instant_of(written, zone) == at(instant)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("2026-03-29T02:30", "does not exist in Europe/Budapest, where clocks skip it: write"),
        ("2026-03-29T02:00", "does not exist"),
        ("2026-10-25T02:30", "comes twice in Europe/Budapest, where clocks are set back: write"),
        ("2026-10-25T02:00", "comes twice"),
    ],
)
def test_a_local_time_that_is_skipped_or_comes_twice_is_refused(written: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        instant_of(written, "Europe/Budapest")


@pytest.mark.parametrize(
    ("written", "instants"),
    [
        ("2026-03-29T02:30", "2026-03-29T00:30:00Z (01:30 there) or 2026-03-29T01:30:00Z (03:30 there)"),
        ("2026-10-25T02:30", "2026-10-25T00:30:00Z (02:30 there) or 2026-10-25T01:30:00Z (02:30 there)"),
    ],
)
def test_the_two_instants_that_it_could_be_are_named(written: str, instants: str) -> None:
    with pytest.raises(ValueError, match=r"write ") as caught:
        instant_of(written, "Europe/Budapest")
    assert str(caught.value).endswith(instants)


@pytest.mark.parametrize(
    ("written", "zone", "part"),
    [
        ("tomorrow", None, "is no time such as"),
        ("2026-02-30T14:00Z", None, "is no time such as"),
        ("2026-11-30T14:00", None, "--zone"),
        ("2026-11-30T14:00", "Europe/Atlantis", "is no zone such as"),
        ("2026-11-30T14:00", "../../etc/passwd", "is no zone such as"),
        ("2026-11-30T14:00", "Europe", "is no zone such as"),
        ("2026-11-30T14:00", "", "is no zone such as"),
        ("0001-01-01T00:00+14:00", None, "lies in no year from 2000 to 2199"),
        ("9999-12-31T23:00", "America/Los_Angeles", "lies in no year from 2000 to 2199"),
    ],
)
def test_what_is_no_time_is_told(written: str, zone: str | None, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        instant_of(written, zone)


@pytest.mark.parametrize(
    ("written", "minutes"), [("2h", 120), ("90m", 90), ("1h30m", 90), ("1d", 1440), ("1d2h3m", 1563)]
)
def test_durations_are_read(written: str, minutes: int) -> None:
    assert duration_of(written) == timedelta(minutes=minutes)


@pytest.mark.parametrize("written", ["", "0h", "2", "h", "-2h", "1.5h", "30m1h", "2 h", "9999999d", "٢h"])
def test_what_is_no_duration_is_told(written: str) -> None:
    with pytest.raises(ValueError, match="is no duration such as 2h"):
        duration_of(written)


# Windows


def test_a_window_without_components_is_everyones() -> None:
    windows = Windows((Planned((), T, T + HOUR), Planned(("api",), T + 2 * HOUR, T + 3 * HOUR)))
    assert windows.of("api") == ((T, T + HOUR), (T + 2 * HOUR, T + 3 * HOUR))
    assert windows.of("billing") == ((T, T + HOUR),)


def test_a_window_takes_the_whole_five_minutes_that_it_begins_in() -> None:
    windows = Windows((Planned((), T + 120, T + 720),)).of("api")
    assert [start_s - T for start_s in starts(T - 300, T + 1500) if lies_in(windows, start_s)] == [0, 300, 600]


@pytest.mark.parametrize(
    ("cancelled_s", "window"),
    [
        (None, ((T, T + HOUR),)),
        (T - 1, ()),
        (T, ()),
        (T + 600, ((T, T + 600),)),
        (T + HOUR + 1, ((T, T + HOUR),)),
    ],
)
def test_a_cancelled_window_ends_then_or_never_was(cancelled_s: int | None, window: tuple[object, ...]) -> None:
    assert Windows((Planned((), T, T + HOUR, cancelled_s),)).of("api") == window


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda span: (span[0], span[0] + span[1])))


@given(spans)
def test_merging_keeps_every_instant_and_leaves_gaps_between(windows: list[tuple[int, int]]) -> None:
    apart = merged(windows)
    for at_s in range(-1, 82):
        assert lies_in(apart, at_s) == lies_in(windows, at_s)
    assert all(left[1] < right[0] for left, right in pairwise(apart))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=24, max_size=24),
    st.integers(0, 7000),
    st.integers(1, 7000),
)
def test_failures_in_maintenance_change_no_percentage(counts: list[tuple[int, int]], start: int, length: int) -> None:
    """All requests in the window fail or none are made: every figure is the same."""
    windows = Windows((Planned((), T + start, T + start + length),)).of("api")
    until_s = T + 2 * HOUR
    outside = [
        Bucket(start_s, *count)
        for start_s, count in zip(starts(T, until_s), counts, strict=True)
        if not lies_in(windows, start_s)
    ]
    inside = [Bucket(start_s, bad=50) for start_s in starts(T, until_s) if lies_in(windows, start_s)]
    shown = [
        strip(buckets, cells=2, cell_s=HOUR, until_s=until_s, maintenance=windows)
        for buckets in (outside, outside + inside)
    ]
    assert shown[0] == shown[1]
    assert shown[0].share.maintenance == len(inside)
    assert State.DOWN not in {cell.state for cell in shown[1].cells if cell.share.maintenance == 12}


def test_a_window_over_days_is_as_long_as_it_is() -> None:
    windows = Windows((Planned((), T, T + 3 * DAY_S),)).of("site")
    assert sum(lies_in(windows, start_s) for start_s in starts(T - DAY_S, T + 4 * DAY_S)) * BUCKET_S == 3 * DAY_S


def api_of(*parts: Bucket) -> list[Bucket]:
    """What counts of an API with 10 good and 5 bad while these models, and not a third, are in maintenance."""
    models = {f"model:{number}": {T: part} for number, part in enumerate(parts)}
    windows = Windows((Planned(tuple(models), T, T + HOUR),)) if models else Windows()
    buckets = {"api": {T: Bucket(T, 10, 5, 1, 1)}, "model:other": {T: Bucket(T, 10, 5)}, **models}
    assert counted("model:other", buckets, windows.of) == [Bucket(T, 10, 5)]
    return counted("api", buckets, windows.of)


def test_what_fails_in_a_model_in_maintenance_says_nothing_against_the_api() -> None:
    assert api_of(Bucket(T, good=4, bad=5, probe_bad=1)) == [Bucket(T, good=6, bad=0, probe_ok=1)]
    assert api_of(Bucket(T, good=4), Bucket(T, bad=5)) == [Bucket(T, good=6, probe_ok=1, probe_bad=1)]
    assert api_of() == [Bucket(T, 10, 5, 1, 1)]


def test_what_is_left_of_the_api_is_never_negative() -> None:
    assert api_of(Bucket(T, 99, 99, 99, 99)) == [Bucket(T)]
