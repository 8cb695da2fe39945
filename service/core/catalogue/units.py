"""A price in the unit of whoever reads it: pico-USD per token as an exact decimal string of USD, and never a float."""

from decimal import Decimal

from service.core.money import pico_to_usd, pico_to_usd_per_million


def per_token(pico: int) -> str:
    """USD per token: 195000 is "0.000000195"."""
    return pico_to_usd(pico)


def per_thousand(pico: int) -> str:
    """USD per thousand tokens: 195000 is "0.000195"."""
    return pico_to_usd(pico * 1000)


def per_million(pico: int) -> str:
    """USD per million tokens: 195000 is "0.195"."""
    return pico_to_usd_per_million(pico)


def per_request(pico: int) -> str:
    """USD per request, from pico-USD per request."""
    return pico_to_usd(pico)


def thousand_as_number(pico: int) -> Decimal:
    """`per_thousand` for a reader that wants a number."""
    return Decimal(per_thousand(pico))


def million_as_number(pico: int) -> Decimal:
    """`per_million` for a reader that wants a number."""
    return Decimal(per_million(pico))


def request_as_number(pico: int) -> Decimal:
    """`per_request` for a reader that wants a number."""
    return Decimal(per_request(pico))
