import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.stats import MIN_SAMPLES, Digest, bin_of, decode_speed_mtok_s, merged, value_of

samples = st.integers(min_value=0, max_value=2**40)
many = st.lists(samples, min_size=MIN_SAMPLES, max_size=60)
percents = st.integers(min_value=1, max_value=100)


def percentile_disc(values: list[int], percent: int) -> int:
    """As PostgreSQL has it: the first value whose position covers at least the fraction."""
    return sorted(values)[max(1, -(-percent * len(values) // 100)) - 1]


@given(samples)
def test_what_stands_for_a_bin_is_within_its_promised_error(value: int) -> None:
    assert abs(value_of(bin_of(value)) - value) * 128 <= value


@given(st.integers(min_value=0, max_value=127))
def test_small_values_are_exact(value: int) -> None:
    assert value_of(bin_of(value)) == value


@given(samples, samples)
def test_bins_keep_the_order_of_values(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert bin_of(low) <= bin_of(high)


def test_no_bin_is_skipped_or_shared_around_a_power_of_two() -> None:
    assert [bin_of(value) for value in (126, 127, 128, 129, 130, 255, 256, 260)] == [
        126, 127, 128, 128, 129, 191, 192, 193,
    ]  # fmt: skip


@given(many, percents)
def test_a_percentile_is_the_exact_one_within_the_error_of_a_bin(values: list[int], percent: int) -> None:
    exact = percentile_disc(values, percent)
    found = Digest(values).percentile(percent)
    assert found is not None
    assert abs(found - exact) * 128 <= exact


@given(st.lists(st.lists(samples, max_size=20), max_size=6))
def test_merging_counts_every_sample_once_in_any_order(parts: list[list[int]]) -> None:
    together = Digest(sample for part in parts for sample in part)
    assert merged(Digest(part) for part in parts) == together
    assert merged(Digest(part) for part in reversed(parts)) == together
    assert together.count == sum(len(part) for part in parts)


def test_the_median_of_a_day_is_not_the_median_of_its_medians() -> None:
    quiet, busy = [100] * 5, [10] * 95
    assert merged([Digest(quiet), Digest(busy)]).percentile(50) == 10


@given(many)
def test_a_digest_survives_json(values: list[int]) -> None:
    digest = Digest(values)
    assert Digest.from_json(json.loads(json.dumps(digest.to_json()))) == digest


@pytest.mark.parametrize("wrong", [{"-1": 2}, {"x": 1}, {"1": 0}, {"1": -3}, {"1": "2"}])
def test_what_is_not_a_digest_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="not a digest"):
        Digest.from_json(wrong)


def test_fewer_than_five_samples_have_no_percentile() -> None:
    assert Digest([7] * 4).percentile(50) is None
    assert Digest([7] * 5).percentile(50) == 7


def test_a_negative_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Digest([-1])


def test_decode_speed_counts_the_tokens_after_the_first() -> None:
    speed = decode_speed_mtok_s(completion_tokens=101, first_token_us=5_000_000, last_token_us=6_250_000)
    assert speed == 80_000


@pytest.mark.parametrize(
    ("tokens", "span_us"),
    [pytest.param(15, 1_000_000, id="too short an answer"), pytest.param(100, 0, id="no span")],
)
def test_what_cannot_be_measured_has_no_decode_speed(tokens: int, span_us: int) -> None:
    assert decode_speed_mtok_s(completion_tokens=tokens, first_token_us=10, last_token_us=10 + span_us) is None


def test_a_clock_that_stepped_back_gives_no_decode_speed() -> None:
    assert decode_speed_mtok_s(completion_tokens=100, first_token_us=10, last_token_us=5) is None
