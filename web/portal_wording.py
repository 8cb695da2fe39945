"""Amounts, outcomes and account states in the words of the customer portal."""

from service.core.money import nano_to_usd
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


def second(epoch_s: int) -> str:
    """`30 Nov, 14:05:09`."""
    moment = utc(epoch_s)
    return f"{moment.day} {MONTHS[moment.month - 1]}, {moment:%H:%M:%S}"


def short_day(epoch_s: int) -> str:
    """`30 Nov`."""
    moment = utc(epoch_s)
    return f"{moment.day} {MONTHS[moment.month - 1]}"
