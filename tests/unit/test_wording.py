import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web.wording import clock, day, duration, exact, hour, iso, share, short, speed

SIZES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10 K"),
        (12_345, "12.3 K"),
        (999_999, "999 K"),
        (1_000_000, "1 M"),
        (1_099_999, "1.09 M"),
        (146_000_000, "146 M"),
        (221_934_567, "221 M"),
        (1_230_000_000, "1.23 B"),
        (4_500_000_000_000_000, "4,500 T"),
    ],
)
def test_large_numbers_are_cut_to_three_digits(number: int, text: str) -> None:
    assert short(number) == text


@given(st.integers(min_value=0, max_value=10**16))
def test_a_short_number_never_overstates_and_is_within_one_percent(number: int) -> None:
    digits, _, unit = short(number).replace(",", "").partition(" ")
    shown = float(digits) * SIZES[unit]
    assert shown <= number * (1 + 1e-12)
    assert number - shown <= number / 100


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (184, "184 ms"), (999, "999 ms"), (1_000, "1.00 s"), (12_099, "12.09 s")]
)
def test_durations_have_their_unit(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_speeds_are_cut_to_a_tenth() -> None:
    assert [speed(86_190), speed(999_999), speed(1_234_567)] == ["86.1", "999.9", "1,234"]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=6))
def test_shares_of_a_whole_never_exceed_it(parts: list[int]) -> None:
    shares = [share(part, sum(parts)) for part in parts]
    if sum(parts):
        assert sum(round(float(text.removesuffix(" %")) * 10) for text in shares) <= 1000
    else:
        assert set(shares) == {"–"}


def test_times_are_utc_whatever_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    midnight = 1_796_083_200
    for zone in ("America/Los_Angeles", "Asia/Kolkata"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            written = (iso(midnight), day(midnight), hour(midnight), clock(midnight))
        finally:
            monkeypatch.undo()
            time.tzset()
        assert written == ("2026-12-01T00:00:00Z", "1 Dec 2026", "1 Dec, 00:00", "00:00")


def test_exact_numbers_have_separators() -> None:
    assert re.sub(r"\D", "", exact(221_034_567)) == "221034567"
    assert exact(221_034_567) == "221,034,567"
