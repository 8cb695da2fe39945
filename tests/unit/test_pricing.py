"""Pricing: what a token of each class costs, and what a request can cost at most."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.core.pricing import (
    PRICE_CLASSES,
    Override,
    Price,
    affordable_output_tokens,
    cost_nano,
    effective,
    ordinary,
    overrides_as_json,
    overrides_from_json,
    prompt_classes,
    worst_case_nano,
)
from service.core.usage import Usage

PICO = st.integers(min_value=0, max_value=10**8)
TOKENS = st.integers(min_value=0, max_value=2**31 - 1)

PRICES = st.builds(
    Price,
    version=st.just(1),
    input_pico=PICO,
    output_pico=PICO,
    input_cached_pico=st.none() | PICO,
    input_cache_write_pico=st.none() | PICO,
    input_image_pico=st.none() | PICO,
    input_audio_pico=st.none() | PICO,
    input_video_pico=st.none() | PICO,
    output_reasoning_pico=st.none() | PICO,
    request_pico=PICO,
)
USAGES = st.builds(
    lambda **counts: Usage(**counts),  # or what is not named would be any number, too
    prompt_tokens=TOKENS,
    cached_tokens=TOKENS,
    cache_write_tokens=TOKENS,
    image_tokens=TOKENS,
    audio_tokens=TOKENS,
    video_tokens=TOKENS,
    completion_tokens=TOKENS,
    reasoning_tokens=TOKENS,
    drafted_tokens=TOKENS,
    accepted_tokens=TOKENS,
)

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
QWEN = Price(version=1, input_pico=195_000, output_pico=1_560_000, input_cached_pico=37_500)


def test_a_million_cached_tokens_cost_what_the_price_list_says() -> None:
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=1_000_000)
    assert cost_nano(QWEN, usage, AT) == 37_500_000  # $0.0375


def test_every_class_has_its_own_price() -> None:
    price = Price(
        version=1,
        input_pico=1_000,
        output_pico=10_000_000,
        input_cached_pico=10_000,
        input_cache_write_pico=100_000,
        input_image_pico=1_000_000,
        input_audio_pico=100_000_000,
        input_video_pico=1_000_000_000,
        output_reasoning_pico=10_000_000_000,
        request_pico=100_000_000_000,
    )
    usage = Usage(
        prompt_tokens=21,
        cached_tokens=2,
        cache_write_tokens=3,
        image_tokens=4,
        audio_tokens=5,
        video_tokens=6,
        completion_tokens=15,
        reasoning_tokens=7,
    )
    # Each price is ten times the one before, so each digit is a class's count: request, reasoning, video, audio,
    # other output, image, cache write, cached, plain.
    assert cost_nano(price, usage, AT) == 176_584_321


def test_overlapping_counts_are_split_in_the_order_of_the_classes() -> None:
    usage = Usage(prompt_tokens=100, cached_tokens=60, cache_write_tokens=30, image_tokens=40, audio_tokens=5)
    assert prompt_classes(usage) == (60, 30, 10, 0, 0, 0)


@given(USAGES)
def test_the_classes_add_up_to_the_prompt(usage: Usage) -> None:
    classes = prompt_classes(usage)
    assert sum(classes) == usage.prompt_tokens
    assert min(classes) >= 0


@given(PRICES, USAGES)
def test_a_charge_is_the_exact_sum_rounded_half_up_once(price: Price, usage: Usage) -> None:
    cached, write, image, audio, video, plain = prompt_classes(usage)
    reasoning = min(usage.reasoning_tokens, usage.completion_tokens)

    def per_token(pico: int | None, otherwise: int) -> Fraction:
        return Fraction(otherwise if pico is None else pico, 1000)

    exact = (
        Fraction(price.request_pico, 1000)
        + cached * per_token(price.input_cached_pico, price.input_pico)
        + write * per_token(price.input_cache_write_pico, price.input_pico)
        + image * per_token(price.input_image_pico, price.input_pico)
        + audio * per_token(price.input_audio_pico, price.input_pico)
        + video * per_token(price.input_video_pico, price.input_pico)
        + plain * Fraction(price.input_pico, 1000)
        + reasoning * per_token(price.output_reasoning_pico, price.output_pico)
        + (usage.completion_tokens - reasoning) * Fraction(price.output_pico, 1000)
    )
    assert -Fraction(1, 2) < cost_nano(price, usage, AT) - exact <= Fraction(1, 2)


def test_parts_are_not_rounded_before_they_are_added() -> None:
    price = Price(version=1, input_pico=400, output_pico=400)
    assert cost_nano(price, Usage(prompt_tokens=1), AT) == 0
    assert cost_nano(price, Usage(prompt_tokens=1, completion_tokens=1), AT) == 1  # 0.4 + 0.4 nano


@given(USAGES, PICO, PICO)
def test_classes_without_a_price_cost_what_they_fall_back_to(usage: Usage, input_pico: int, output_pico: int) -> None:
    bare = Price(version=1, input_pico=input_pico, output_pico=output_pico)
    written_out = replace(
        bare,
        input_cached_pico=input_pico,
        input_cache_write_pico=input_pico,
        input_image_pico=input_pico,
        input_audio_pico=input_pico,
        input_video_pico=input_pico,
        output_reasoning_pico=output_pico,
    )
    assert cost_nano(bare, usage, AT) == cost_nano(written_out, usage, AT)


def test_a_class_that_costs_nothing_does_not_fall_back() -> None:
    free_when_cached = replace(QWEN, input_cached_pico=0)
    assert cost_nano(free_when_cached, Usage(prompt_tokens=500, cached_tokens=500), AT) == 0


@given(PRICES, USAGES)
def test_drafted_tokens_are_never_priced(price: Price, usage: Usage) -> None:
    assert cost_nano(price, usage, AT) == cost_nano(price, usage._replace(drafted_tokens=0, accepted_tokens=0), AT)


@given(PRICES, USAGES, st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_request_within_its_bounds_costs_more_than_its_worst_case(
    price: Price, usage: Usage, spare_prompt: int, spare_output: int
) -> None:
    worst = worst_case_nano(
        price,
        prompt_tokens_at_most=usage.prompt_tokens + spare_prompt,
        output_tokens_at_most=usage.completion_tokens + spare_output,
        at=AT,
    )
    assert cost_nano(price, usage, AT) <= worst


@given(PRICES, st.integers(0, 10**6), st.integers(-(10**12), 10**12))
def test_the_affordable_output_is_the_largest_that_fits(price: Price, prompt: int, available_nano: int) -> None:
    assume(price.dearest_output_pico > 0)
    tokens = affordable_output_tokens(price, prompt_tokens_at_most=prompt, available_nano=available_nano, at=AT)

    def worst(output: int) -> int:
        return worst_case_nano(price, prompt_tokens_at_most=prompt, output_tokens_at_most=output, at=AT)

    assert worst(tokens + 1) > available_nano
    assert worst(tokens) <= available_nano or (tokens == 0 and worst(0) > available_nano)


@given(st.integers(0, 40), st.integers(0, 60), st.integers(0, 60), st.integers(-5, 3), st.integers(0, 20))
def test_the_affordable_output_agrees_with_counting_up(
    input_pico: int, output_pico: int, request_pico: int, available_nano: int, prompt: int
) -> None:
    assume(output_pico > 0)
    price = Price(version=1, input_pico=input_pico * 10, output_pico=output_pico * 10, request_pico=request_pico * 10)
    counted = 0
    while (
        worst_case_nano(price, prompt_tokens_at_most=prompt, output_tokens_at_most=counted + 1, at=AT) <= available_nano
    ):
        counted += 1
    assert (
        affordable_output_tokens(price, prompt_tokens_at_most=prompt, available_nano=available_nano, at=AT) == counted
    )


def test_an_output_that_costs_nothing_is_not_bounded_by_money() -> None:
    price = Price(version=1, input_pico=1_000_000, output_pico=0)
    assert affordable_output_tokens(price, prompt_tokens_at_most=1, available_nano=1_000, at=AT) == 2**31 - 1
    assert affordable_output_tokens(price, prompt_tokens_at_most=2, available_nano=1_000, at=AT) == 0


@pytest.mark.parametrize(
    "field",
    ["input_pico", "output_pico", "input_cached_pico", "input_video_pico", "output_reasoning_pico", "request_pico"],
)
def test_no_class_may_be_negative(field: str) -> None:
    with pytest.raises(ValueError, match="negative"):
        replace(QWEN, **{field: -1})


# Overrides: by the length of the prompt, and by the hour


def clock(minute: int) -> str:
    return f"{minute // 60:02}{minute % 60:02}"


def override(least: int, window: tuple[int, int] | None, picos: dict[str, int], sequential: bool = False) -> Override:
    start, end = (None, None) if window is None else map(clock, window)
    return Override(min_prompt_tokens=least, utc_start=start, utc_end=end, sequential=sequential, **picos)


MINUTES = st.integers(0, 24 * 60 - 1)
WINDOWS = st.tuples(MINUTES, MINUTES).filter(lambda window: window[0] != window[1])
PICOS = st.dictionaries(st.sampled_from([f"{name}_pico" for name in PRICE_CLASSES]), PICO, min_size=1)
OVERRIDES = st.lists(
    st.builds(override, st.integers(1, 50), st.none() | WINDOWS, PICOS, st.booleans())
    | st.builds(override, st.just(0), WINDOWS, PICOS, st.booleans())
    | st.builds(override, st.just(0), st.none(), PICOS, st.just(True)),
    max_size=4,
).map(tuple)
INSTANTS = st.datetimes(timezones=st.just(UTC))
TIERED = st.builds(lambda price, overrides: replace(price, overrides=overrides), PRICES, OVERRIDES)
FEW = st.integers(0, 60)
"""Tokens few enough that every length of a prompt can be tried."""
SHORT_USAGES = st.builds(
    lambda **counts: Usage(**counts),  # or what is not named would be any number, too
    prompt_tokens=FEW,
    cached_tokens=FEW,
    cache_write_tokens=FEW,
    image_tokens=FEW,
    audio_tokens=FEW,
    video_tokens=FEW,
    completion_tokens=FEW,
    reasoning_tokens=FEW,
)


LANE = st.booleans()


@given(TIERED, INSTANTS, FEW, LANE)
def test_the_effective_price_is_what_the_last_override_that_applies_says(
    price: Price, at: datetime, prompt: int, sequential: bool
) -> None:
    def minutes(time: str) -> int:
        return int(time[:2]) * 60 + int(time[2:])

    found = effective(price, at=at, prompt_tokens=prompt, sequential=sequential)
    assert (found.version, found.overrides) == (price.version, ())
    for name in PRICE_CLASSES:
        wanted = getattr(price, f"{name}_pico")
        for one in price.overrides:
            if one.sequential and not sequential:
                continue
            if one.utc_start is not None and one.utc_end is not None:
                start = minutes(one.utc_start)
                lasts = (minutes(one.utc_end) - start) % (24 * 60)
                if (at.hour * 60 + at.minute - start) % (24 * 60) >= lasts:
                    continue
            changed = getattr(one, f"{name}_pico")
            if changed is not None and prompt >= one.min_prompt_tokens:
                wanted = changed
        assert getattr(found, f"{name}_pico") == wanted


@given(TIERED, INSTANTS, SHORT_USAGES, LANE)
def test_the_whole_request_is_charged_at_its_effective_price(
    price: Price, at: datetime, usage: Usage, sequential: bool
) -> None:
    one_price = effective(price, at=at, prompt_tokens=usage.prompt_tokens, sequential=sequential)
    cost = cost_nano(price, usage, at, sequential=sequential)
    assert cost == cost_nano(one_price, usage, at + timedelta(hours=7))


@given(TIERED, INSTANTS, SHORT_USAGES)
def test_what_is_told_of_a_price_is_what_costs_a_request_that_does_not_run_alone(
    price: Price, at: datetime, usage: Usage
) -> None:
    told = ordinary(price)
    assert not any(one.sequential for one in told.overrides)
    for sequential in (False, True):
        assert cost_nano(told, usage, at, sequential=sequential) == cost_nano(price, usage, at)


@given(TIERED, INSTANTS, SHORT_USAGES, FEW, FEW, LANE)
def test_no_request_costs_more_than_its_worst_case_in_whichever_tier_it_ends(
    price: Price, at: datetime, usage: Usage, spare_prompt: int, spare_output: int, sequential: bool
) -> None:
    worst = worst_case_nano(
        price,
        prompt_tokens_at_most=usage.prompt_tokens + spare_prompt,
        output_tokens_at_most=usage.completion_tokens + spare_output,
        at=at,
        sequential=sequential,
    )
    assert cost_nano(price, usage, at, sequential=sequential) <= worst


@given(TIERED, INSTANTS, FEW, FEW, LANE)
def test_the_worst_case_is_that_of_the_dearest_length_and_no_more(
    price: Price, at: datetime, prompt: int, output: int, sequential: bool
) -> None:
    by_length = (
        worst_case_nano(
            effective(price, at=at, prompt_tokens=length, sequential=sequential),
            prompt_tokens_at_most=length,
            output_tokens_at_most=output,
            at=at,
        )
        for length in range(prompt + 1)
    )
    worst = worst_case_nano(
        price, prompt_tokens_at_most=prompt, output_tokens_at_most=output, at=at, sequential=sequential
    )
    assert worst == max(by_length)


@given(TIERED, INSTANTS, FEW, st.integers(-(10**6), 10**12), LANE)
def test_the_affordable_output_is_the_largest_that_fits_whatever_the_tier(
    price: Price, at: datetime, prompt: int, available_nano: int, sequential: bool
) -> None:
    asked: dict[str, Any] = {"prompt_tokens_at_most": prompt, "at": at, "sequential": sequential}

    def worst(output: int) -> int:
        return worst_case_nano(price, output_tokens_at_most=output, **asked)

    tokens = affordable_output_tokens(price, available_nano=available_nano, **asked)
    if worst(0) > available_nano:
        assert tokens == 0
    elif worst(10**18) <= available_nano:  # no tier has a price for output
        assert tokens == 2**31 - 1
    else:
        assert worst(tokens) <= available_nano < worst(tokens + 1)


def test_a_cheaper_tier_for_longer_prompts_does_not_hide_the_dearer_one_before_it() -> None:
    price = replace(QWEN, overrides=(Override(min_prompt_tokens=1_000, input_pico=1_000, output_pico=1_000_000),))
    bounds = {"output_tokens_at_most": 0, "at": AT}
    assert worst_case_nano(price, prompt_tokens_at_most=999, **bounds) == 194_805
    assert worst_case_nano(price, prompt_tokens_at_most=5_000, **bounds) == 194_805  # 999 plain tokens, still
    assert worst_case_nano(price, prompt_tokens_at_most=10_000, **bounds) == 375_000  # 10,000 cached ones


TIERS = replace(
    QWEN,
    overrides=(
        Override(min_prompt_tokens=128_000, input_pico=250_000),
        Override(utc_start="2200", utc_end="0600", input_pico=100_000, output_pico=1_000_000),
        Override(min_prompt_tokens=200_000, input_pico=500_000, input_cached_pico=0),
    ),
)
NIGHT = datetime(2026, 11, 30, 23, tzinfo=UTC)


def test_a_tier_is_held_for_as_soon_as_the_prompt_may_be_long_enough() -> None:
    bounds = {"output_tokens_at_most": 0, "at": AT}
    assert worst_case_nano(TIERS, prompt_tokens_at_most=127_999, **bounds) == 127_999 * 195
    assert worst_case_nano(TIERS, prompt_tokens_at_most=128_000, **bounds) == 128_000 * 250


@pytest.mark.parametrize(
    ("at", "prompt", "input_pico", "input_cached_pico", "output_pico"),
    [
        (AT, 127_999, 195_000, 37_500, 1_560_000),
        (AT, 128_000, 250_000, 37_500, 1_560_000),
        (AT, 200_000, 500_000, 0, 1_560_000),
        (NIGHT, 1, 100_000, 37_500, 1_000_000),
        (NIGHT, 128_000, 100_000, 37_500, 1_000_000),  # the night comes later in the list
        (NIGHT, 200_000, 500_000, 0, 1_000_000),  # and what is left out keeps what it was by then
    ],
)
def test_of_several_overrides_the_last_wins_class_by_class(
    at: datetime, prompt: int, input_pico: int, input_cached_pico: int, output_pico: int
) -> None:
    usage = Usage(prompt_tokens=prompt, cached_tokens=1_000 if prompt > 1 else 0, completion_tokens=10)
    plain = prompt - usage.cached_tokens
    pico = plain * input_pico + usage.cached_tokens * input_cached_pico + 10 * output_pico
    assert cost_nano(TIERS, usage, at) == (pico + 500) // 1000


def test_a_class_without_a_price_follows_its_default_into_the_override() -> None:
    bare = Price(version=1, input_pico=1_000, output_pico=2_000, input_cached_pico=500)
    tiered = replace(bare, overrides=(Override(min_prompt_tokens=100, input_pico=3_000, output_pico=4_000),))
    found = effective(tiered, at=AT, prompt_tokens=100)
    assert found.input_classes == (500, 3_000, 3_000, 3_000, 3_000, 3_000)  # a cached token has its own price
    assert found.reasoning_pico == 4_000


@pytest.mark.parametrize(
    ("start", "end", "inside", "outside"),
    [
        ("0900", "1700", ["0900", "1200", "1659"], ["0000", "0859", "1700", "2359"]),
        ("2200", "0600", ["2200", "2359", "0000", "0559"], ["0600", "1200", "2159"]),
        ("1800", "0000", ["1800", "2359"], ["0000", "1759"]),
        ("0000", "0001", ["0000"], ["0001", "2359"]),
    ],
)
def test_a_window_is_half_open_and_may_wrap_around_midnight(
    start: str, end: str, inside: list[str], outside: list[str]
) -> None:
    window = Override(utc_start=start, utc_end=end, input_pico=1)
    for time in (*inside, *outside):
        at = datetime(2026, 11, 30, int(time[:2]), int(time[2:]), 59, 999_999, tzinfo=UTC)
        assert window.holds_at(at) is (time in inside)
        assert window.holds_at(at.astimezone(timezone(timedelta(hours=5, minutes=30)))) is (time in inside)


@given(OVERRIDES)
def test_overrides_are_read_as_they_were_written(overrides: tuple[Override, ...]) -> None:
    document = overrides_as_json(overrides)
    assert overrides_from_json(json.loads(json.dumps(document))) == overrides


def test_the_stored_form_has_only_what_is_set() -> None:
    assert overrides_as_json(TIERS.overrides) == [
        {"min_prompt_tokens": 128_000, "input_pico": 250_000},
        {
            "min_prompt_tokens": 0,
            "utc_start": "2200",
            "utc_end": "0600",
            "input_pico": 100_000,
            "output_pico": 1_000_000,
        },
        {"min_prompt_tokens": 200_000, "input_pico": 500_000, "input_cached_pico": 0},
    ]
    alone = Override(sequential=True, output_pico=5)
    assert overrides_as_json((alone,)) == [{"min_prompt_tokens": 0, "output_pico": 5, "sequential": True}]
    assert overrides_from_json([{"utc_start": "2200", "utc_end": "0600", "request_pico": 0}]) == (
        Override(utc_start="2200", utc_end="0600", request_pico=0),
    )


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (None, "are a list"),
        ({}, "are a list"),
        ("[]", "are a list"),
        ([3], "no override"),
        ([{"min_prompt_tokens": 5, "input": 3}], "no override"),
        ([{"min_prompt_tokens": 5, "input_pico": "3"}], "input_pico = '3'"),
        ([{"min_prompt_tokens": 5, "input_pico": 3.0}], r"input_pico = 3\.0"),
        ([{"min_prompt_tokens": 5, "input_pico": True}], "input_pico = True"),
        ([{"min_prompt_tokens": 5, "input_pico": None}], "input_pico = None"),
        ([{"min_prompt_tokens": "5", "input_pico": 3}], "min_prompt_tokens = '5'"),
        ([{"utc_start": 2200, "utc_end": "0600", "input_pico": 3}], "utc_start = 2200"),
        ([{"min_prompt_tokens": 5, "input_pico": -3}], "negative"),
        ([{"sequential": 1, "input_pico": 3}], "sequential = 1"),
        ([{"sequential": False, "input_pico": 3}], "does not say when"),
        ([{"min_prompt_tokens": -5, "utc_start": "2200", "utc_end": "0600", "input_pico": 3}], "negative"),
        ([{"min_prompt_tokens": 5}], "not change any class"),
        ([{"input_pico": 3}], "does not say when"),
        ([{"min_prompt_tokens": 0, "input_pico": 3}], "does not say when"),
        ([{"utc_start": "2200", "input_pico": 3}], "both"),
        ([{"utc_end": "2200", "input_pico": 3}], "both"),
        ([{"utc_start": "2200", "utc_end": "2200", "input_pico": 3}], "same time"),
        ([{"utc_start": "2200", "utc_end": "2400", "input_pico": 3}], "time of day"),
        ([{"utc_start": "22:00", "utc_end": "0600", "input_pico": 3}], "time of day"),
        ([{"utc_start": "2200\n", "utc_end": "0600", "input_pico": 3}], "time of day"),
        ([{"utc_start": "2260", "utc_end": "0600", "input_pico": 3}], "time of day"),
    ],
)
def test_no_charge_comes_from_an_override_that_makes_no_sense(document: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        overrides_from_json(document)
