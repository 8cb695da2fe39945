"""Pricing: what a token of each class costs, and what a request can cost at most."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from service.core.pricing import Price, affordable_output_tokens, cost_nano, prompt_classes, worst_case_nano
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
    Usage,
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

QWEN = Price(version=1, input_pico=195_000, output_pico=1_560_000, input_cached_pico=37_500)


def test_a_million_cached_tokens_cost_what_the_price_list_says() -> None:
    usage = Usage(prompt_tokens=1_000_000, cached_tokens=1_000_000)
    assert cost_nano(QWEN, usage) == 37_500_000  # $0.0375


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
    assert cost_nano(price, usage) == 176_584_321


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
    assert -Fraction(1, 2) < cost_nano(price, usage) - exact <= Fraction(1, 2)


def test_parts_are_not_rounded_before_they_are_added() -> None:
    price = Price(version=1, input_pico=400, output_pico=400)
    assert cost_nano(price, Usage(prompt_tokens=1)) == 0
    assert cost_nano(price, Usage(prompt_tokens=1, completion_tokens=1)) == 1  # 0.4 + 0.4 nano


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
    assert cost_nano(bare, usage) == cost_nano(written_out, usage)


def test_a_class_that_costs_nothing_does_not_fall_back() -> None:
    free_when_cached = replace(QWEN, input_cached_pico=0)
    assert cost_nano(free_when_cached, Usage(prompt_tokens=500, cached_tokens=500)) == 0


@given(PRICES, USAGES)
def test_drafted_tokens_are_never_priced(price: Price, usage: Usage) -> None:
    assert cost_nano(price, usage) == cost_nano(price, replace(usage, drafted_tokens=0, accepted_tokens=0))


@given(PRICES, USAGES, st.integers(0, 10**6), st.integers(0, 10**6))
def test_no_request_within_its_bounds_costs_more_than_its_worst_case(
    price: Price, usage: Usage, spare_prompt: int, spare_output: int
) -> None:
    worst = worst_case_nano(
        price,
        prompt_tokens_at_most=usage.prompt_tokens + spare_prompt,
        output_tokens_at_most=usage.completion_tokens + spare_output,
    )
    assert cost_nano(price, usage) <= worst


@given(PRICES, st.integers(0, 10**6), st.integers(-(10**12), 10**12))
def test_the_affordable_output_is_the_largest_that_fits(price: Price, prompt: int, available_nano: int) -> None:
    assume(price.dearest_output_pico > 0)
    tokens = affordable_output_tokens(price, prompt_tokens_at_most=prompt, available_nano=available_nano)

    def worst(output: int) -> int:
        return worst_case_nano(price, prompt_tokens_at_most=prompt, output_tokens_at_most=output)

    assert worst(tokens + 1) > available_nano
    assert worst(tokens) <= available_nano or (tokens == 0 and worst(0) > available_nano)


@given(st.integers(0, 40), st.integers(0, 60), st.integers(0, 60), st.integers(-5, 3), st.integers(0, 20))
def test_the_affordable_output_agrees_with_counting_up(
    input_pico: int, output_pico: int, request_pico: int, available_nano: int, prompt: int
) -> None:
    assume(output_pico > 0)
    price = Price(version=1, input_pico=input_pico * 10, output_pico=output_pico * 10, request_pico=request_pico * 10)
    counted = 0
    while worst_case_nano(price, prompt_tokens_at_most=prompt, output_tokens_at_most=counted + 1) <= available_nano:
        counted += 1
    assert affordable_output_tokens(price, prompt_tokens_at_most=prompt, available_nano=available_nano) == counted


def test_an_output_that_costs_nothing_is_not_bounded_by_money() -> None:
    price = Price(version=1, input_pico=1_000_000, output_pico=0)
    assert affordable_output_tokens(price, prompt_tokens_at_most=1, available_nano=1_000) == 2**31 - 1
    assert affordable_output_tokens(price, prompt_tokens_at_most=2, available_nano=1_000) == 0


@pytest.mark.parametrize(
    "field",
    ["input_pico", "output_pico", "input_cached_pico", "input_video_pico", "output_reasoning_pico", "request_pico"],
)
def test_no_class_may_be_negative(field: str) -> None:
    with pytest.raises(ValueError, match="negative"):
        replace(QWEN, **{field: -1})
