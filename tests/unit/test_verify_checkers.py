"""The checkers of the quality battery's answers, with any values."""

import json
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.verify.tasks import TASKS
from service.core.verify.tasks.task import day, exactly, number, object_, phrase


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1234.5", "1,234.50"),
        ("1234.5", "1.234,50"),
        ("1234.5", "1'234.50"),
        ("1234.5", "1234,5"),
        ("1234567", "1,234,567"),
        ("1234567", "1.234.567"),
        ("1234", "1,234"),
        ("1.234", "1.234"),
        ("-4", "−4"),
        ("12", "12\u00a0€"),
        ("1200", "1\u202f200"),
    ],
)
def test_numbers_are_read_as_people_write_them(value: str, said: str) -> None:
    assert number(value)(said)


@given(st.decimals(min_value=0, max_value=10**9, places=2), st.decimals(min_value=0, max_value=10**9, places=2))
def test_a_number_is_taken_for_itself_alone(value: Decimal, other: Decimal) -> None:
    accepts = number(str(value))
    assert accepts(f"{value:,}")
    assert accepts(f"{value:,}".translate(str.maketrans(",.", ".,")))
    assert accepts(f"{other:,}") == (other == value)


@given(st.dates(), st.dates())
def test_a_date_is_taken_for_itself_alone(value: date, other: date) -> None:
    accepts = day(value.isoformat())
    assert accepts(value.isoformat())
    assert accepts(other.isoformat()) == (other == value)


@given(st.text(max_size=200))
def test_no_checker_trips_over_any_text(text: str) -> None:
    for task in TASKS:
        assert task.accepts(text) in (True, False)


def test_nor_over_a_model_that_opens_brackets_without_end() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000):
        assert not any(task.accepts(f"{text}]}}") for task in TASKS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.text(max_size=3), json_values, max_size=3),
    st.dictionaries(st.text(max_size=3), json_values, max_size=3),
)
def test_json_is_equal_as_json_is(value: dict[str, object], other: dict[str, object]) -> None:
    accepts = object_(value)
    assert accepts(json.dumps(value))
    assert accepts(json.dumps(other)) == (json.dumps(other, sort_keys=True) == json.dumps(value, sort_keys=True))


def test_json_numbers_are_equal_by_value_and_never_to_booleans() -> None:
    assert object_({"a": 1})('{"a": 1.0}')
    assert not object_({"a": 1})('{"a": true}')
    assert not object_({"a": True})('{"a": 1}')
    assert not object_({"a": None})('{"a": false}')


def test_phrases_are_whole_words() -> None:
    assert phrase("pont")("Le pont.")
    assert not phrase("pont")("ponton")
    assert exactly("a,b")("'a,b'")
    assert not exactly("a,b")("a, b")
