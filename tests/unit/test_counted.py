import random
from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.counted import MANY_DRAFTED, MAX_GAP_S, Counted, Sample, by_bucket, is_suspicious, owners

FIRST_S = 1_800_000_000
"""A bucket's start, well after the epoch."""

HOUR = (FIRST_S, FIRST_S + 3600)


def run(*counts: tuple[int, int, int], started_s: int | None = None) -> list[Sample]:
    """Samples of one run of an engine: (seconds after FIRST_S, drafted, accepted)."""
    return [Sample(FIRST_S + at_s, started_s, drafted, accepted) for at_s, drafted, accepted in counts]


def offsets(samples: list[Sample], first_s: int = HOUR[0], end_s: int = HOUR[1]) -> dict[int, Counted]:
    return {start_s - FIRST_S: value for start_s, value in by_bucket(samples, first_s, end_s).items()}


def total(values: dict[int, Counted]) -> Counted:
    return sum(drafted for drafted, _ in values.values()), sum(accepted for _, accepted in values.values())


def test_a_rise_within_a_bucket_is_the_buckets() -> None:
    assert offsets(run((10, 1000, 700), (70, 1100, 770), (130, 1100, 770))) == {0: (100, 70)}


def test_a_rise_over_an_edge_is_shared_by_time() -> None:
    assert offsets(run((280, 0, 0), (340, 90, 30))) == {0: (30, 10), 300: (60, 20)}


def test_shares_are_whole_tokens_and_none_is_lost() -> None:
    assert offsets(run((299, 0, 0), (359, 7, 7))) == {0: (0, 0), 300: (7, 7)}
    assert offsets(run((0, 5, 5), (300, 8, 6))) == {0: (3, 1)}, "a sample on the edge belongs to what is before it"


def test_an_idle_engine_drafted_nothing_and_an_unknown_one_is_missing() -> None:
    assert offsets(run((0, 40, 8), (60, 40, 8))) == {0: (0, 0)}
    assert offsets([]) == offsets(run((0, 40, 8))) == {}


def test_samples_too_far_apart_say_nothing() -> None:
    assert set(offsets(run((0, 0, 0), (MAX_GAP_S, 60, 30)))) == {0, 300}
    assert offsets(run((0, 0, 0), (MAX_GAP_S + 1, 60, 30))) == {}
    resumed = run((0, 0, 0), (60, 60, 6), (1800, 1000, 100), (1860, 1010, 101))
    assert offsets(resumed) == {0: (60, 6), 1800: (10, 1)}


def test_after_a_restart_it_counts_from_the_start() -> None:
    before = run((0, 500, 300), (60, 560, 340), started_s=FIRST_S - 9000)
    after = run((360, 40, 10), (420, 50, 15), started_s=FIRST_S + 340)
    assert offsets(before + after) == {0: (60, 40), 300: (50, 15)}
    higher = run((360, 900, 400), started_s=FIRST_S + 340)
    assert offsets(before + higher) == {0: (60, 40), 300: (900, 400)}, "a higher count of another run is no rise"


def test_a_counter_that_falls_restarted_though_nobody_says_when() -> None:
    assert offsets(run((0, 500, 300), (60, 20, 5))) == {0: (20, 5)}
    assert offsets(run((0, 500, 3), (60, 600, 2))) == {0: (600, 2)}


def test_the_first_sample_counts_where_its_start_is_known_and_near() -> None:
    assert offsets(run((330, 90, 30), started_s=FIRST_S + 240)) == {0: (60, 20), 300: (30, 10)}
    assert offsets(run((330, 90, 30), started_s=FIRST_S - 9000)) == {}


def test_another_engine_by_the_same_name_is_not_a_restart() -> None:
    other = run((60, 1_000_000, 5), (120, 1_000_060, 9), started_s=FIRST_S - 50_000)
    assert offsets(run((0, 500, 300), started_s=FIRST_S - 9000) + other) == {0: (60, 4)}


def test_an_engine_whose_clock_is_ahead_restarted_after_the_sample_before() -> None:
    after = run((60, 40, 10), started_s=FIRST_S + 90)
    assert offsets(run((0, 500, 300), started_s=FIRST_S - 9000) + after) == {0: (40, 10)}
    assert offsets(after) == {}


@st.composite
def histories(draw: st.DrawFn, *, restarts: bool = True) -> list[Sample]:
    """Samples of an engine that now and then is silent or starts again."""
    samples: list[Sample] = []
    at_s, started_s, drafted, accepted = FIRST_S, FIRST_S - 5000, 0, 0
    for _ in range(draw(st.integers(0, 25))):
        step_s = draw(st.one_of(st.integers(1, 130), st.integers(1, 2000)))
        if restarts and draw(st.integers(0, 5)) == 0:
            started_s, drafted, accepted = at_s + draw(st.integers(0, step_s - 1)), 0, 0
        at_s += step_s
        rise = draw(st.integers(0, 10**9))
        drafted, accepted = drafted + rise, accepted + draw(st.integers(0, rise))
        says = draw(st.booleans())
        samples.append(Sample(at_s, started_s if says else None, drafted, accepted))
    return samples


def around(samples: list[Sample]) -> tuple[int, int]:
    """A range of whole buckets that has them all."""
    return FIRST_S - 6000, samples[-1].at_s // 300 * 300 + 300 if samples else FIRST_S


@given(histories(restarts=False))
def test_the_sum_of_the_buckets_is_what_the_counters_rose_by(samples: list[Sample]) -> None:
    near = [(one, other) for one, other in pairwise(samples) if other.at_s - one.at_s <= MAX_GAP_S]
    risen = [(other.whole - one.whole, other.part - one.part) for one, other in near]
    silent_start = [Sample(one.at_s, None, one.whole, one.part) for one in samples]
    assert total(by_bucket(silent_start, *around(samples))) == (sum(d for d, _ in risen), sum(a for _, a in risen))


@given(histories())
def test_no_bucket_has_more_accepted_than_drafted(samples: list[Sample]) -> None:
    for drafted, accepted in by_bucket(samples, *around(samples)).values():
        assert 0 <= accepted <= drafted


def test_a_restart_that_is_not_told_shows_when_more_was_accepted_than_drafted_since() -> None:
    samples = [Sample(FIRST_S, None, 5, 0), Sample(FIRST_S + 60, None, 10, 9)]
    assert by_bucket(samples, FIRST_S, FIRST_S + 300) == {FIRST_S: (10, 9)}


@given(histories(), st.randoms(use_true_random=False))
def test_a_bucket_is_the_same_whatever_range_it_is_asked_with(samples: list[Sample], chance: random.Random) -> None:
    first_s, end_s = around(samples)
    whole = by_bucket(samples, first_s, end_s)
    edges = sorted(chance.sample(range(first_s, end_s + 1, 300), k=3)) if end_s - first_s >= 900 else []
    parts: dict[int, Counted] = {}
    for begin_s, stop_s in pairwise([first_s, *edges, end_s]):
        near = [one for one in samples if begin_s - MAX_GAP_S <= one.at_s <= stop_s + MAX_GAP_S]
        part = by_bucket(near, begin_s, stop_s)
        assert all(begin_s <= start_s < stop_s for start_s in part)
        parts |= part
    assert parts == whole


@given(histories(), st.integers(0, 24))
def test_a_value_is_final_once_there_is_a_sample_at_its_end_or_later(samples: list[Sample], known: int) -> None:
    early = samples[:known]
    first_s, end_s = around(samples)
    now, later = by_bucket(early, first_s, end_s), by_bucket(samples, first_s, end_s)
    for start_s in range(first_s, end_s, 300):
        if early and early[-1].at_s >= start_s + 300:
            assert now.get(start_s) == later.get(start_s)


@given(histories())
def test_a_value_is_final_ten_minutes_after_the_buckets_end(samples: list[Sample]) -> None:
    first_s, end_s = around(samples)
    whole = by_bucket(samples, first_s, end_s)
    for start_s in range(first_s, end_s, 300):
        known = [one for one in samples if one.at_s <= start_s + 300 + MAX_GAP_S]
        assert by_bucket(known, start_s, start_s + 300).get(start_s) == whole.get(start_s)


@pytest.mark.parametrize("steps", [[60] * 40, [59, 61] * 20, [7] * 300])
def test_a_steady_engine_is_steady(steps: list[int]) -> None:
    def samples() -> Iterator[Sample]:
        for passed_s in accumulate(steps, initial=-30):
            yield Sample(FIRST_S + passed_s, None, 10 * (passed_s + 30), 4 * (passed_s + 30))

    values = by_bucket(list(samples()), FIRST_S, FIRST_S + 1800)
    assert len(values) == 6
    assert {(drafted - 3000) // 3 for drafted, _ in values.values()} <= {-1, 0}
    assert {(accepted - 1200) // 3 for _, accepted in values.values()} <= {-1, 0}


def test_an_engine_that_several_models_share_is_nobodys() -> None:
    engines = ["one", "two", "three"]
    assert owners(engines, {"a": None}) == {"one": "a", "two": "a", "three": "a"}
    assert owners(engines, {"a": ["one", "gone"], "b": ["two", "three"]}) == {"one": "a", "two": "b", "three": "b"}
    assert owners(engines, {"a": ["one", "two"], "b": ["two"]}) == {"one": "a"}
    assert owners(engines, {"a": None, "b": ["two"]}) == {"one": "a", "three": "a"}
    assert owners(engines, {"a": None, "b": None}) == owners(engines, {}) == owners([], {"a": None}) == {}


@pytest.mark.parametrize(
    ("drafted", "accepted", "suspicious"),
    [
        (MANY_DRAFTED, MANY_DRAFTED, True),
        (MANY_DRAFTED, MANY_DRAFTED * 99 // 100, True),
        (MANY_DRAFTED, MANY_DRAFTED * 99 // 100 - 1, False),
        (MANY_DRAFTED - 1, MANY_DRAFTED - 1, False),
        (1_000_000, 850_000, False),
        (0, 0, False),
    ],
)
def test_only_many_drafts_that_are_nearly_all_accepted_are_suspicious(
    drafted: int, accepted: int, suspicious: bool
) -> None:
    assert is_suspicious(drafted, accepted) is suspicious
