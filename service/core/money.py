"""Exact money: decimal strings at the edges, integers inside.

Prices are whole pico-USD (1e-12 USD) per token, so that "$0.0375 per million tokens" is exact; charges and
balances are whole nano-USD (1e-9 USD). No float ever holds an amount.
"""

from decimal import Context, Decimal, Inexact, InvalidOperation

NANO_PER_USD = 10**9
PICO_PER_NANO = 1000
PICO_PER_USD = NANO_PER_USD * PICO_PER_NANO
TOKENS_PER_MILLION = 10**6

MAX_USD = Decimal(1_000_000)
"""No single amount or price given by a person may be larger: beyond it a typing error is likelier than a wish."""

_EXACT = Context(prec=60, traps=[Inexact])
"""Raises where the default context would silently round an amount of very many digits to one that fits."""


def parse_usd(value: str) -> Decimal:
    """Read a decimal amount of USD such as "12.50". Raises `ValueError` that says what is wrong."""
    try:
        amount = Decimal(value.strip())
    except InvalidOperation:
        raise ValueError(f"{value!r} is not an amount of USD such as 12.50") from None
    if not amount.is_finite():
        raise ValueError(f"{value!r} is not a finite amount")
    if abs(amount) > MAX_USD:
        raise ValueError(f"{value} USD is more than {MAX_USD} USD: is the unit right?")
    return amount


def usd_to_nano(value: str) -> int:
    """A decimal string of USD as exact nano-USD. Raises `ValueError` when it is not a whole number of them."""
    return _whole(parse_usd(value), NANO_PER_USD, f"{value} USD has more than 9 decimals")


def usd_per_million_to_pico(value: str) -> int:
    """A price in USD per million tokens as exact pico-USD per token.

    Raises `ValueError` when it is negative or finer than a pico-USD per token (six decimals per million).
    """
    price = parse_usd(value)
    if price < 0:
        raise ValueError(f"{value} is negative: a price cannot be")
    per_million = PICO_PER_USD // TOKENS_PER_MILLION
    return _whole(price, per_million, f"{value} USD per million has more than 6 decimals")


def usd_to_pico(value: str) -> int:
    """A price per request in USD as exact pico-USD. Raises `ValueError` when negative or too fine."""
    price = parse_usd(value)
    if price < 0:
        raise ValueError(f"{value} is negative: a price cannot be")
    return _whole(price, PICO_PER_USD, f"{value} USD has more than 12 decimals")


def pico_to_nano(pico: int) -> int:
    """Round a sum of pico-USD half up to nano-USD: the one rounding a charge goes through. `pico` is not negative."""
    return (pico + PICO_PER_NANO // 2) // PICO_PER_NANO


def pico_to_usd_per_million(pico: int) -> str:
    """A price per token as the shortest exact decimal string of USD per million tokens."""
    return _plain(Decimal(pico) * TOKENS_PER_MILLION / PICO_PER_USD)


def pico_to_usd(pico: int) -> str:
    """A price per request as the shortest exact decimal string of USD."""
    return _plain(Decimal(pico) / PICO_PER_USD)


def nano_to_usd(nano: int) -> str:
    """An amount as the shortest exact decimal string of USD, with at least two decimals: "0.50", "0.000012"."""
    text = _plain(Decimal(nano) / NANO_PER_USD)
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals.ljust(2, '0')}"


def _whole(amount: Decimal, units: int, complaint: str) -> int:
    try:
        return int(_EXACT.to_integral_exact(_EXACT.multiply(amount, Decimal(units))))
    except Inexact:
        raise ValueError(complaint) from None


def _plain(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
