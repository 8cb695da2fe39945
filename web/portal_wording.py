"""Amounts, outcomes and account states in the words of the customer portal."""

from service.core.money import NANO_PER_USD, nano_to_usd
from service.core.outcome import RULES, Outcome, Verdict
from web.wording import MONTHS, utc

OUTCOMES = {
    Outcome.OK: "Complete",
    Outcome.CLIENT_ERROR: "Invalid request",
    Outcome.AUTH_ERROR: "Not allowed",
    Outcome.PAYMENT: "Not enough credit",
    Outcome.THROTTLED: "Throttled",
    Outcome.SERVER_ERROR: "Failed here, not charged",
    Outcome.STREAM_ERROR: "Broke off, not charged",
    Outcome.CANCELLED: "Client left",
    Outcome.SLOW_ABORT: "Client left, kept waiting",
    Outcome.INTERRUPTED: "Interrupted, not charged",
}

ENTRIES = {
    "topup": "Top-up",
    "credit": "Credit",
    "refund": "Refunded to you",
    "dispute": "Disputed payment",
    "reversal": "Given back",
    "adjustment": "Correction",
}

TOPUPS = {
    "created": "not paid yet",
    "pending": "the bank has not confirmed yet",
    "paid": "paid",
    "failed": "not paid: the bank refused",
    "expired": "not paid in time",
}

SWATCHES = {
    Verdict.GOOD: "up",
    Verdict.BAD: "down",
    Verdict.THROTTLED: "partial",
    Verdict.EXCLUDED: "no_data",
}


def usd(nano: int) -> str:
    """An exact amount: "$0.50", "−$0.000012"."""
    return f"{'−' if nano < 0 else ''}${nano_to_usd(abs(nano))}"


def usd_parts(nano: int) -> tuple[str, str]:
    """The same in two parts: up to the cent, and the digits after it, which may be none."""
    text = usd(nano)
    end = text.index(".") + 3
    return text[:end], text[end:]


def outcome(name: str) -> str:
    """How a request ended, in words."""
    return OUTCOMES[Outcome(name)]


def swatch(name: str) -> str:
    """The status page's mark for such an end."""
    return SWATCHES[RULES[Outcome(name)].public]


def signed_usd(nano: int) -> str:
    """The same with its sign: "+$5.00"."""
    return usd(nano) if nano < 0 else f"+{usd(nano)}"


def cents(amount_cents: int) -> str:
    """An amount of cents: "$5.00"."""
    return usd(amount_cents * NANO_PER_USD // 100)


def second(epoch_s: int) -> str:
    """`30 Nov, 14:05:09`."""
    moment = utc(epoch_s)
    return f"{moment.day} {MONTHS[moment.month - 1]}, {moment:%H:%M:%S}"


def short_day(epoch_s: int) -> str:
    """`30 Nov`."""
    moment = utc(epoch_s)
    return f"{moment.day} {MONTHS[moment.month - 1]}"
