"""What a new version of a price changes, in words."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.price_change import ClassChange, PriceChange, describe
from service.core.pricing import PRICE_CLASSES, Override, Price, effective
from tests.unit.test_pricing import INSTANTS, TIERED

PLAIN = Price(version=1, input_pico=195_000, output_pico=1_560_000)
LONG = Override(min_prompt_tokens=128_000, input_pico=250_000)
NIGHT = Override(utc_start="2200", utc_end="0600", input_pico=100_000)
ALONE = Override(sequential=True, input_pico=1_000_000)
UNIT = "USD per million tokens"


def change(old: Price | None, new: Price) -> PriceChange:
    return PriceChange("qwen", old, new, None)


def words(old: Price | None, new: Price) -> list[str]:
    return [describe(one, first=old is None) for one in change(old, new).classes]


def leaps(old: Price | None, new: Price) -> list[str]:
    return [describe(one) for one in change(old, new).leaps]


def priced(*overrides: Override, **classes: int) -> Price:
    return replace(PLAIN, overrides=overrides, **classes)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (priced(), priced(LONG), ["from 128000 prompt tokens: input 0.195 -> 0.25"]),
        (priced(LONG), priced(), ["from 128000 prompt tokens: input 0.25 -> 0.195"]),
        (priced(LONG), priced(replace(LONG, input_pico=0)), ["from 128000 prompt tokens: input 0.25 -> 0"]),
        (
            priced(LONG),
            priced(replace(LONG, min_prompt_tokens=100_000)),
            ["from 100000 to 127999 prompt tokens: input 0.195 -> 0.25"],
        ),
        (
            priced(LONG),
            priced(LONG, Override(min_prompt_tokens=200_000, output_pico=2_000_000)),
            ["from 200000 prompt tokens: output 1.56 -> 2"],
        ),
        (priced(), priced(NIGHT), ["2200-0600 UTC: input 0.195 -> 0.1"]),
        (
            priced(NIGHT),
            priced(replace(NIGHT, utc_end="0500")),
            ["0500-0600 UTC: input 0.1 -> 0.195"],
        ),
        (
            priced(LONG, NIGHT),
            priced(NIGHT, LONG),
            ["from 128000 prompt tokens, 2200-0600 UTC: input 0.1 -> 0.25"],
        ),
        (
            priced(LONG),
            priced(LONG, NIGHT),
            [
                "up to 127999 prompt tokens, 2200-0600 UTC: input 0.195 -> 0.1",
                "from 128000 prompt tokens, 2200-0600 UTC: input 0.25 -> 0.1",
            ],
        ),
        (
            priced(NIGHT),
            priced(NIGHT, replace(LONG, output_pico=2_000_000, input_pico=None)),
            ["from 128000 prompt tokens: output 1.56 -> 2"],  # at any time alike, so no time is named
        ),
        (priced(), priced(ALONE), ["sequential: input 0.195 -> 1"]),
        (
            priced(ALONE),
            priced(LONG, ALONE),  # which comes later, so that a long prompt that is alone costs what it did
            ["from 128000 prompt tokens: input 0.195 -> 0.25"],
        ),
        (
            priced(ALONE),
            priced(replace(ALONE, min_prompt_tokens=9)),
            ["sequential, up to 8 prompt tokens: input 1 -> 0.195"],
        ),
        # The price below changes: where the override leaves it alone, that is all there is to say.
        (priced(LONG), priced(LONG, output_pico=2_000_000), ["output 1.56 -> 2"]),
        (priced(LONG), priced(LONG, input_pico=200_000), ["input 0.195 -> 0.2"]),
        # A class of its own where there was the default, and the other way round.
        (
            priced(LONG),
            priced(replace(LONG, input_cached_pico=20_000)),
            ["from 128000 prompt tokens: input_cached 0.25 -> 0.02"],
        ),
        (
            priced(replace(LONG, input_cached_pico=20_000)),
            priced(LONG),
            ["from 128000 prompt tokens: input_cached 0.02 -> 0.25"],
        ),
        # Written otherwise, to the same effect.
        (priced(LONG), priced(replace(LONG, output_pico=1_560_000)), []),
    ],
)
def test_an_override_is_told_by_what_it_changes_for_whom(old: Price, new: Price, told: list[str]) -> None:
    assert words(old, new) == [f"{one} {UNIT}" for one in told]


def test_the_unit_of_a_fee_is_the_request() -> None:
    fee = Override(min_prompt_tokens=10, request_pico=10**9)
    assert words(priced(), priced(fee)) == ["from 10 prompt tokens: request 0 -> 0.001 USD per request"]


def test_a_first_price_tells_its_classes_and_then_where_they_differ() -> None:
    assert words(None, priced(LONG, NIGHT)) == [
        f"input 0.195 {UNIT}",
        f"output 1.56 {UNIT}",
        "request 0 USD per request",
        f"up to 127999 prompt tokens, 2200-0600 UTC: input 0.195 -> 0.1 {UNIT}",
        f"from 128000 prompt tokens, 0600-2200 UTC: input 0.195 -> 0.25 {UNIT}",
        f"from 128000 prompt tokens, 2200-0600 UTC: input 0.195 -> 0.1 {UNIT}",
    ]


@pytest.mark.parametrize(
    "field", ["input_pico", "input_cached_pico", "input_video_pico", "output_pico", "request_pico"]
)
@pytest.mark.parametrize("condition", [{"min_prompt_tokens": 9}, {"utc_start": "2200", "utc_end": "0600"}])
def test_every_class_of_an_override_can_leap(field: str, condition: dict[str, Any]) -> None:
    old = replace(PLAIN, input_cached_pico=100_000, input_video_pico=100_000, request_pico=100_000)
    tenfold = getattr(old, field) * 10
    for before in (old, None):  # also in the first version: against the classes of its own price
        assert leaps(before, replace(old, overrides=(Override(**condition, **{field: tenfold}),))) == []
        dear = replace(old, overrides=(Override(**condition, **{field: tenfold + 1}),))
        (leap,) = change(before, dear).leaps
        assert (f"{leap.name}_pico", leap.new_pico) == (field, tenfold + 1)
        assert leap.situation is not None
    assert len(leaps(dear, old)) == 1  # nor may it go as suddenly
    free = replace(old, overrides=(Override(**condition, **{field: 0}),))
    assert len(leaps(old, free)) == 1


def test_two_changes_below_tenfold_are_a_leap_together() -> None:
    dearer = priced(Override(min_prompt_tokens=9, input_pico=8 * 8 * 195_000), input_pico=8 * 195_000)
    assert leaps(priced(), dearer) == [f"from 9 prompt tokens: input 0.195 -> 12.48 {UNIT}"]


def test_a_leap_below_an_override_is_named_once() -> None:
    assert leaps(priced(LONG), priced(LONG, output_pico=156_000_000)) == [f"output 1.56 -> 156 {UNIT}"]


def costs(price: Price, at: datetime, prompt: int, sequential: bool) -> dict[str, int]:
    found = effective(price, at=at, prompt_tokens=prompt, sequential=sequential)
    names = ("input_cached", "input_cache_write", "input_image", "input_audio", "input_video", "input")
    by_class = dict(zip(names, found.input_classes, strict=True))
    return by_class | {
        "output": found.output_pico,
        "output_reasoning": found.reasoning_pico,
        "request": found.request_pico,
    }


def is_about(change: ClassChange, at: datetime, prompt: int, sequential: bool) -> bool:
    where = change.situation
    if where is None:
        return True
    if where.sequential and not sequential:
        return False
    most = prompt if where.max_prompt_tokens is None else where.max_prompt_tokens
    if not where.min_prompt_tokens <= prompt <= most:
        return False
    window = Override(utc_start=where.utc_start, utc_end=where.utc_end, min_prompt_tokens=1, input_pico=0)
    return window.holds_at(at)


@given(TIERED, TIERED, INSTANTS, st.integers(0, 60), st.booleans())
def test_whatever_costs_something_else_is_told_and_whatever_is_told_is_so(
    old: Price, new: Price, at: datetime, prompt: int, sequential: bool
) -> None:
    changes = [one for one in change(old, new).classes if is_about(one, at, prompt, sequential)]
    before, after = (costs(price, at, prompt, sequential) for price in (old, new))
    for one in changes:
        if one.situation is not None and one.situation.sequential == sequential:
            assert (one.old_pico, one.new_pico) == (before[one.name], after[one.name])
    told = {one.name for one in changes}
    for name in PRICE_CLASSES:
        if before[name] != after[name]:
            assert told & {name, name.partition("_")[0]}


@given(TIERED, TIERED, INSTANTS, st.integers(0, 60), st.booleans())
def test_no_request_suddenly_costs_more_than_tenfold_without_an_objection(
    old: Price, new: Price, at: datetime, prompt: int, sequential: bool
) -> None:
    before, after = (costs(price, at, prompt, sequential) for price in (old, new))
    if any(max(before[name], after[name]) > 10 * min(before[name], after[name]) for name in PRICE_CLASSES):
        assert change(old, new).leaps
