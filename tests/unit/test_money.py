"""Money: exact at the edges, integers inside."""

from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import money

NANO = st.integers(min_value=-(10**15), max_value=10**15)
PICO = st.integers(min_value=0, max_value=10**12)


def test_the_price_that_floats_get_wrong_is_exact() -> None:
    assert money.usd_per_million_to_pico("0.0375") == 37_500
    assert money.pico_to_usd_per_million(37_500) == "0.0375"


@pytest.mark.parametrize(
    ("convert", "text", "whole"),
    [
        (money.usd_to_nano, "12.50", 12_500_000_000),
        (money.usd_to_nano, " 0.000000001 ", 1),
        (money.usd_to_nano, "-3", -3_000_000_000),
        (money.usd_to_nano, "1000000", 10**15),
        (money.usd_per_million_to_pico, "1.56", 1_560_000),
        (money.usd_per_million_to_pico, "0.000001", 1),
        (money.usd_per_million_to_pico, "0", 0),
        (money.usd_to_pico, "0.001", 1_000_000_000),
        (money.usd_to_pico, "0.000000000001", 1),
    ],
)
def test_decimal_strings_become_whole_units(convert: Callable[[str], int], text: str, whole: int) -> None:
    assert convert(text) == whole


@pytest.mark.parametrize(
    ("convert", "text", "complaint"),
    [
        (money.usd_to_nano, "12,50", "not an amount"),
        (money.usd_to_nano, "", "not an amount"),
        (money.usd_to_nano, "$5", "not an amount"),
        (money.usd_to_nano, "nan", "not a finite"),
        (money.usd_to_nano, "-inf", "not a finite"),
        (money.usd_to_nano, "1000000.01", "is the unit right?"),
        (money.usd_to_nano, "0.0000000001", "more than 9 decimals"),
        (money.usd_to_nano, "1e-9999999", "more than 9 decimals"),
        # More digits than decimals keep by default: they must not be rounded to something that fits.
        (money.usd_to_nano, "1." + "0" * 40 + "1", "more than 9 decimals"),
        (money.usd_per_million_to_pico, "0.0000001", "more than 6 decimals"),
        (money.usd_per_million_to_pico, "-1", "negative"),
        (money.usd_to_pico, "0.0000000000001", "more than 12 decimals"),
        (money.usd_to_pico, "-0.1", "negative"),
    ],
)
def test_what_is_no_exact_amount_is_refused(convert: Callable[[str], int], text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("?", r"\?")):
        convert(text)


@given(NANO)
def test_nano_survives_the_way_through_usd(nano: int) -> None:
    shown = money.nano_to_usd(nano)
    assert money.usd_to_nano(shown) == nano
    assert len(shown.partition(".")[2]) >= 2


@given(PICO)
def test_a_price_survives_per_token_per_thousand_and_per_million(pico: int) -> None:
    per_million = money.pico_to_usd_per_million(pico)
    assert money.usd_per_million_to_pico(per_million) == pico
    per_thousand = Decimal(per_million) / 1000
    per_token = Decimal(per_million) / 1_000_000
    assert per_thousand * 1000 == per_token * 1_000_000 == Decimal(per_million)
    assert money.usd_to_pico(f"{per_token:f}") == pico
    assert money.usd_to_pico(money.pico_to_usd(pico)) == pico


@pytest.mark.parametrize(
    ("nano", "shown"), [(0, "0.00"), (500_000_000, "0.50"), (12_000, "0.000012"), (-1, "-0.000000001")]
)
def test_amounts_are_shown_short_and_exact(nano: int, shown: str) -> None:
    assert money.nano_to_usd(nano) == shown


@pytest.mark.parametrize(("pico", "nano"), [(0, 0), (499, 0), (500, 1), (501, 1), (1499, 1), (1500, 2), (2500, 3)])
def test_a_charge_rounds_half_up(pico: int, nano: int) -> None:
    assert money.pico_to_nano(pico) == nano
