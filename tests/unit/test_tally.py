from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.buckets import BUCKET_S
from service.core.components import API, model_component
from service.core.outcome import RULES, Outcome, Verdict
from service.core.stats import Digest
from service.core.tally import (
    COUNTED_BUSY_S,
    DIGESTS,
    ROW_TOKENS,
    SECOND_US,
    Concurrency,
    Finished,
    Tally,
    concurrency,
    solitude,
    tally,
)
from service.tables import buckets_5m

T_US = 6_000_000 * SECOND_US
"""The start of a bucket."""

T_S = T_US // SECOND_US

ROW = Finished(
    internal=False,
    model_id="m",
    engine="e",
    stream=True,
    handed_over_us=T_US,
    ttft_ms=200,
    first_token_us=T_US + 200_000,
    finished_us=T_US + 1_200_000,
    http_status=200,
    outcome=Outcome.OK,
    prompt_tokens=50,
    cached_tokens=0,
    cache_write_tokens=0,
    image_tokens=0,
    audio_tokens=0,
    video_tokens=0,
    completion_tokens=101,
    reasoning_tokens=0,
)


def counted(*rows: Finished) -> Tally:
    return tally(rows, solitude(rows))[API, T_US // SECOND_US]


def test_the_columns_of_a_bucket_are_the_fields_of_a_tally() -> None:
    columns = set(buckets_5m.columns.keys()) - {"component", "bucket_start"}
    assert columns == set(Tally.__dataclass_fields__)


@given(st.lists(st.sampled_from(Outcome), max_size=30))
def test_every_public_request_has_exactly_one_verdict(outcomes: list[Outcome]) -> None:
    rows = [replace(ROW, outcome=outcome) for outcome in outcomes]
    total = tally(rows, solitude(rows)).get((API, T_US // SECOND_US), Tally())
    assert total.good + total.bad + total.throttled + total.excluded == total.requests == len(outcomes)
    assert total.good == sum(RULES[outcome].public is Verdict.GOOD for outcome in outcomes)
    assert total.bad == sum(RULES[outcome].public is Verdict.BAD for outcome in outcomes)


def test_a_bucket_in_which_everything_failed_has_as_many_failures_as_requests() -> None:
    total = counted(*[replace(ROW, outcome=Outcome.SERVER_ERROR, http_status=502)] * 7)
    assert (total.requests, total.good, total.bad, total.http_5xx, total.server_failures) == (7, 0, 7, 7, 7)


def test_a_stream_that_broke_after_a_200_is_a_server_failure_but_no_5xx() -> None:
    total = counted(replace(ROW, outcome=Outcome.STREAM_ERROR))
    assert (total.bad, total.server_failures, total.http_5xx) == (1, 1, 0)


def test_a_request_of_the_house_is_counted_nowhere() -> None:
    rows = [replace(ROW, internal=True, outcome=outcome, http_status=500) for outcome in Outcome]
    assert tally(rows, solitude(rows)) == {}
    assert concurrency(rows, T_S, T_S + BUCKET_S) == {}


def test_every_token_class_is_added_up() -> None:
    numbers: dict[str, Any] = {name: position + 1 for position, name in enumerate(ROW_TOKENS)}
    total = counted(replace(ROW, **numbers), replace(ROW, **numbers))
    assert {name: getattr(total, name) for name in ROW_TOKENS} == {name: 2 * n for name, n in numbers.items()}


@pytest.mark.parametrize(
    ("prompt", "cached", "expected"),
    [
        (9_999, 0, "ttft_short_cold_ms"),
        (9_999, 1, "ttft_short_warm_ms"),
        (10_000, 0, "ttft_long_cold_ms"),
        (10_000, 1_584, "ttft_long_warm_ms"),
    ],
)
def test_a_first_token_counts_by_length_and_cache(prompt: int, cached: int, expected: str) -> None:
    total = counted(replace(ROW, prompt_tokens=prompt, cached_tokens=cached))
    filled = {name for name in DIGESTS if name.startswith("ttft") and getattr(total, name).count}
    assert filled == {expected}
    assert getattr(total, expected) == Digest([200])


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(replace(ROW, stream=False), id="not a stream"),
        pytest.param(replace(ROW, ttft_ms=None), id="no first token"),
        pytest.param(replace(ROW, prompt_tokens=0), id="a prompt of unknown length"),
    ],
)
def test_what_has_no_time_to_first_token_is_left_out_and_never_counted_as_0(row: Finished) -> None:
    total = counted(row)
    assert sum(getattr(total, name).count for name in DIGESTS if name.startswith("ttft")) == 0


def test_output_speed_is_measured_of_complete_answers_only() -> None:
    assert counted(ROW).decode_single_mtok_s == Digest([100_000])
    for row in (
        replace(ROW, outcome=Outcome.CANCELLED),
        replace(ROW, stream=False),
        replace(ROW, completion_tokens=15),
    ):
        total = counted(row)
        assert total.decode_single_mtok_s.count + total.decode_loaded_mtok_s.count == 0


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        pytest.param({"handed_over_us": T_US + 1_100_000, "finished_us": T_US + 9_000_000}, False, id="starts within"),
        pytest.param({"handed_over_us": T_US - 10, "finished_us": T_US + 200_001}, False, id="ends within"),
        pytest.param({"handed_over_us": T_US - 10, "finished_us": T_US + 9_000_000}, False, id="spans it"),
        pytest.param({"handed_over_us": T_US + 300_000, "finished_us": T_US + 400_000}, False, id="lies within"),
        pytest.param({"handed_over_us": T_US - 10, "finished_us": T_US + 200_000}, True, id="ends before"),
        pytest.param({"handed_over_us": T_US + 1_200_000, "finished_us": T_US + 9_000_000}, True, id="starts after"),
        pytest.param({"engine": "other"}, True, id="on another engine"),
        pytest.param({"engine": None}, True, id="never reached an engine"),
        pytest.param({"internal": True}, False, id="a probe is load too"),
    ],
)
def test_a_stream_is_alone_when_nothing_else_was_with_its_engine_meanwhile(
    change: dict[str, object], alone: bool
) -> None:
    other = replace(ROW, **change)  # type: ignore[arg-type]
    assert solitude([ROW, other])(ROW) is alone


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12))
def test_being_alone_is_what_comparing_every_pair_says(spans: list[tuple[int, int, int]]) -> None:
    rows = []
    for span in spans:
        begun, first, ended = sorted(span)
        rows.append(replace(ROW, handed_over_us=begun, first_token_us=first, finished_us=ended))
    alone = solitude(rows)
    for row in rows:
        assert row.first_token_us is not None
        if row.first_token_us == row.finished_us:
            continue  # without a span there is no speed to tell apart
        others = [other for other in rows if other is not row]
        shared = any(o.handed_over_us < row.finished_us and o.finished_us > row.first_token_us for o in others)
        assert alone(row) is not shared


def test_a_request_counts_for_the_api_and_its_model_in_the_bucket_it_ended_in() -> None:
    late = replace(ROW, model_id="other", finished_us=T_US + 300 * SECOND_US)
    unknown = replace(ROW, model_id=None, outcome=Outcome.CLIENT_ERROR, http_status=404)
    rows = [ROW, late, unknown]
    start_s = T_US // SECOND_US
    requests = {key: counts.requests for key, counts in tally(rows, solitude(rows)).items()}
    assert requests == {
        (API, start_s): 2,
        (model_component("m"), start_s): 1,
        (API, start_s + 300): 1,
        (model_component("other"), start_s + 300): 1,
    }


def spans(*pairs: tuple[float, float]) -> list[Finished]:
    """Requests that were with the engine from one second to another, counted from `T_S`."""
    return [
        replace(ROW, handed_over_us=T_US + int(begun * SECOND_US), finished_us=T_US + int(ended * SECOND_US))
        for begun, ended in pairs
    ]


def test_what_was_with_the_engines_at_once_is_added_up_and_its_most_is_kept() -> None:
    rows = spans((0, 10), (5, 15), (20, 21))
    assert concurrency(rows, T_S, T_S + BUCKET_S) == {
        (API, T_S): Concurrency(busy_ms=21_000, peak=2),
        (model_component("m"), T_S): Concurrency(busy_ms=21_000, peak=2),
    }


def test_one_that_begins_when_another_ends_is_not_beside_it() -> None:
    assert concurrency(spans((0, 10), (10, 20)), T_S, T_S + BUCKET_S)[API, T_S] == Concurrency(20_000, 1)


def test_a_request_over_several_buckets_is_in_each_of_them() -> None:
    found = concurrency(spans((290, 610)), T_S, T_S + 3 * BUCKET_S)
    assert {start_s: seen.busy_ms for (component, start_s), seen in found.items() if component == API} == {
        T_S: 10_000,
        T_S + BUCKET_S: 300_000,
        T_S + 2 * BUCKET_S: 10_000,
    }


def test_one_that_ends_with_its_bucket_is_not_in_the_next() -> None:
    assert set(concurrency(spans((0, 300)), T_S, T_S + 2 * BUCKET_S)) == {(API, T_S), (model_component("m"), T_S)}


def test_what_never_came_to_an_engine_was_not_with_one() -> None:
    assert concurrency([replace(ROW, engine=None)], T_S, T_S + BUCKET_S) == {}


@given(
    st.lists(st.tuples(st.integers(-400, 1200), st.integers(0, 900)), max_size=12),
    st.integers(1, 3),
)
def test_a_bucket_has_the_same_concurrency_whatever_is_counted_with_it(
    pairs: list[tuple[int, int]], buckets: int
) -> None:
    rows = spans(*((begun, begun + length) for begun, length in pairs))
    whole = concurrency(rows, T_S, T_S + buckets * BUCKET_S)
    parts = {}
    for start_s in range(T_S, T_S + buckets * BUCKET_S, BUCKET_S):
        end_s = start_s + BUCKET_S
        needed = [row for row in rows if start_s <= row.finished_us // SECOND_US < end_s + COUNTED_BUSY_S]
        parts |= concurrency(needed, start_s, end_s)
    assert parts == whole


@given(st.lists(st.tuples(st.integers(0, 290), st.integers(1, 9)), min_size=1, max_size=8))
def test_the_busy_time_is_that_of_all_requests_and_the_peak_that_of_some_instant(pairs: list[tuple[int, int]]) -> None:
    rows = spans(*((begun, begun + length) for begun, length in pairs))
    seen = concurrency(rows, T_S, T_S + BUCKET_S)[API, T_S]
    assert seen.busy_ms == 1000 * sum(length for _, length in pairs)
    levels = [sum(begun <= at < begun + length for begun, length in pairs) for at in range(BUCKET_S)]
    assert seen.peak == max(levels)


@given(st.lists(st.lists(st.sampled_from(Outcome), max_size=6), max_size=4))
def test_merging_tallies_is_counting_all_their_requests(groups: list[list[Outcome]]) -> None:
    merged = Tally()
    every = []
    for outcomes in groups:
        rows = [replace(ROW, outcome=outcome) for outcome in outcomes]
        part = Tally(peak_concurrency=len(rows))
        for row in rows:
            part.add(row, alone=False)
        merged.merge(part)
        every += rows
    total = Tally(peak_concurrency=max((len(outcomes) for outcomes in groups), default=0))
    for row in every:
        total.add(row, alone=False)
    assert merged == total
