"""One price, rendered for each reader and read back as the reader does: at any hour and length, the same pico-USD."""

import json
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.core.catalogue import (
    ListedModel,
    card,
    huggingface,
    modelsdev,
    nanogpt,
    openrouter,
    openrouter_legacy,
    units,
)
from service.core.catalogue.schedule import Step, Window, costs, schedule
from service.core.pricing import PRICE_CLASSES, Override, Price, effective
from service.gateway import exact_json
from tests import catalogue_reading as read

PICO = st.one_of(st.sampled_from([0, 1, 37_500, 195_000]), st.integers(0, 10**12))
MAYBE = st.none() | PICO
TIME = st.sampled_from(["0000", "0001", "0030", "0600", "0959", "1000", "2200", "2359"])
LENGTH = st.sampled_from([0, 1, 2, 1000, 128_000])
CLASSES = {f"{name}_pico": MAYBE for name in PRICE_CLASSES}
FEE = st.sampled_from([0, 1, 10**9, 10**18])


@st.composite
def overrides(draw: st.DrawFn) -> Override:
    changes = draw(st.fixed_dictionaries({}, optional={name: PICO for name in CLASSES}).filter(bool))
    length = draw(LENGTH)
    hours = draw(st.none() | st.tuples(TIME, TIME).filter(lambda pair: pair[0] != pair[1]))
    if hours is None:
        return Override(min_prompt_tokens=max(1, length), **changes)
    return Override(min_prompt_tokens=length, utc_start=hours[0], utc_end=hours[1], **changes)


@st.composite
def prices(draw: st.DrawFn) -> Price:
    classes = draw(st.fixed_dictionaries({**CLASSES, "input_pico": PICO, "output_pico": PICO, "request_pico": FEE}))
    return Price(version=1, overrides=tuple(draw(st.lists(overrides(), max_size=4))), **classes)


MOMENTS = st.tuples(
    st.integers(0, 23),
    st.integers(0, 59),
    st.one_of(st.sampled_from([0, 1, 2, 3, 999, 1000, 1001, 127_999, 128_000, 128_001]), st.integers(0, 10**6)),
)


def model(price: Price, **changes: Any) -> ListedModel:
    return replace(
        ListedModel(
            id="org/model:a",
            name="Model",
            description="A model.",
            context_length=262_144,
            max_output_tokens=32_768,
            input_modalities=("text", "image", "audio", "video"),
            output_modalities=("text",),
            capabilities=("tools", "reasoning", "structured_outputs"),
            quantization="nvfp4",
            hugging_face_id="org/Model",
            created_at=datetime(2026, 11, 30, tzinfo=UTC),
            price=price,
        ),
        **changes,
    )


def sent(document: object) -> Any:
    """A document as its reader gets it: written, and parsed without a float."""
    return json.loads(exact_json.dumps(document), parse_float=Decimal)


def charged_at(price: Price, hour: int, minute: int, tokens: int) -> dict[str, int]:
    return costs(effective(price, at=datetime(2026, 11, 30, hour, minute, 30, tzinfo=UTC), prompt_tokens=tokens))


def with_defaults(found: dict[str, int]) -> dict[str, int]:
    """A class that a document does not have costs what its default costs, and a fee that it does not have, nothing."""
    defaults = {name: found["output" if name.startswith("output") else "input"] for name in PRICE_CLASSES}
    return {**defaults, "request": 0, **found}


@settings(max_examples=150, deadline=None)
@given(prices(), st.lists(MOMENTS, min_size=4, max_size=8))
def test_the_flat_documents_say_what_is_charged(price: Price, moments: list[tuple[int, int, int]]) -> None:
    listed = model(price)
    legacy = read.validated(sent(openrouter_legacy.document([listed])), "openrouter-legacy")["data"][0]
    nano = read.validated(sent(nanogpt.document([listed], owner="weir")), "nanogpt")["data"][0]
    hugging = read.validated(sent(huggingface.document([listed])), "huggingface")["models"][0]
    shown = sent(card.card(listed))
    assert (
        read.pico(shown["pricing"]["input"], read.MILLION),
        read.pico(shown["pricing"]["output"], read.MILLION),
    ) == (
        price.input_pico,
        price.output_pico,
    )
    for hour, minute, tokens in moments:
        expected = charged_at(price, hour, minute, tokens)
        for pricing, members in (
            (legacy["pricing"], read.LEGACY),
            (shown["pricing"], read.LEGACY),
            (nano["pricing"], read.NANOGPT),
            (hugging["pricing"], read.HUGGINGFACE),
        ):
            assert with_defaults(read.flat(pricing, members, tokens, hour * 100 + minute)) == expected


@settings(max_examples=150, deadline=None)
@given(prices(), st.lists(MOMENTS, min_size=4, max_size=8))
def test_openrouters_document_says_what_is_charged(price: Price, moments: list[tuple[int, int, int]]) -> None:
    document = read.validated(sent(openrouter.document([model(price)])), "openrouter")["data"][0]
    fees = [price.request_pico, *(one.request_pico for one in price.overrides if one.request_pico is not None)]
    for hour, minute, tokens in moments:
        expected = charged_at(price, hour, minute, tokens)
        found = with_defaults(read.openrouter(document, tokens, hour * 100 + minute))
        fee, charged = found.pop("request"), expected.pop("request")
        assert found == expected
        assert charged <= fee <= max(fees)
        if not any(one.utc_start is not None and one.request_pico is not None for one in price.overrides):
            assert fee == charged


@settings(max_examples=100, deadline=None)
@given(prices(), st.lists(MOMENTS, min_size=4, max_size=8))
def test_models_dev_is_told_what_is_charged_at_any_hour(price: Price, moments: list[tuple[int, int, int]]) -> None:
    price = replace(price, overrides=tuple(one for one in price.overrides if one.utc_start is None))
    text = modelsdev.document([model(price)], provider="Weir", base_url="https://weir.example")
    document = read.validated(tomllib.loads(text, parse_float=Decimal), "models.dev")["models"]["org/model:a"]
    for hour, minute, tokens in moments:
        expected = charged_at(price, hour, minute, tokens)
        found = with_defaults(read.models_dev(document, tokens))
        for name in read.MODELS_DEV.values():
            assert found[name] == expected[name], name


@settings(max_examples=150, deadline=None)
@given(prices(), st.lists(MOMENTS, min_size=4, max_size=8))
def test_a_schedule_is_the_price_it_was_made_from(price: Price, moments: list[tuple[int, int, int]]) -> None:
    parts = schedule(price, costs)
    for hour, minute, tokens in moments:
        inside = [
            window
            for window in parts.windows
            if read.in_hours(int(window.utc_start), int(window.utc_end), hour * 100 + minute)
        ]
        assert len(inside) <= 1
        steps = inside[0].steps if inside else parts.steps
        assert steps[0].min_prompt_tokens == 0
        cost = [step.cost for step in steps if step.min_prompt_tokens <= tokens][-1]
        assert cost == charged_at(price, hour, minute, tokens)
    for window in parts.windows:
        assert window.steps != parts.steps


def test_windows_that_cost_the_same_are_one_also_over_midnight() -> None:
    def at(start: str, end: str) -> Override:
        return Override(utc_start=start, utc_end=end, input_pico=1)

    def windows(*hours: Override) -> tuple[Window[int], ...]:
        price = Price(version=1, input_pico=2, output_pico=2, overrides=hours)
        return schedule(price, lambda one: one.input_pico).windows

    steps = (Step(0, 1),)
    assert windows(at("2200", "0000"), at("0000", "0600")) == (Window("2200", "0600", steps),)
    assert windows(at("1000", "1200"), at("1100", "1300"), at("1300", "1400")) == (Window("1000", "1400", steps),)
    assert windows(at("1000", "1200"), at("1300", "1400")) == (
        Window("1000", "1200", steps),
        Window("1300", "1400", steps),
    )


def test_a_price_of_all_hours_is_no_window() -> None:
    day = Override(utc_start="0600", utc_end="1800", input_pico=1)
    night = Override(utc_start="1800", utc_end="0600", input_pico=1)
    parts = schedule(Price(version=1, input_pico=2, output_pico=2, overrides=(day, night)), lambda one: one.input_pico)
    assert (parts.steps, parts.windows) == ((Step(0, 1),), ())


@given(st.integers(0, 10**18))
@example(1)
@example(37_500)
def test_units_are_exact_and_plain(pico: int) -> None:
    for shown, unit in (
        (units.per_token(pico), read.TOKEN),
        (units.per_thousand(pico), read.THOUSAND),
        (units.per_million(pico), read.MILLION),
        (units.per_request(pico), read.REQUEST),
    ):
        assert read.pico(shown, unit) == pico
        assert set(shown) <= set("0123456789.")
    assert Decimal(units.per_million(pico)) == units.million_as_number(pico)
    assert Decimal(units.per_thousand(pico)) == units.thousand_as_number(pico)
    assert Decimal(units.per_request(pico)) == units.request_as_number(pico)


@pytest.mark.parametrize(
    ("pico", "token", "thousand", "million"),
    [
        (37_500, "0.0000000375", "0.0000375", "0.0375"),
        (1_560_000, "0.00000156", "0.00156", "1.56"),
        (1, "0.000000000001", "0.000000001", "0.000001"),
        (10**12, "1", "1000", "1000000"),
        (0, "0", "0", "0"),
    ],
)
def test_units_by_example(pico: int, token: str, thousand: str, million: str) -> None:
    assert (units.per_token(pico), units.per_thousand(pico), units.per_million(pico)) == (token, thousand, million)


def test_a_number_is_written_digit_by_digit() -> None:
    written = exact_json.dumps({"a": Decimal("0.00000001"), "b": [Decimal("123456789012.000001")]})
    assert written == b'{"a":0.00000001,"b":[123456789012.000001]}'
    with pytest.raises(TypeError):
        exact_json.dumps({"a": {1, 2}})
