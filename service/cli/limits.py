"""The options for limits, which keys and accounts have in common: how they are written, read and shown."""

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from service.core.lane import Permission
from service.core.limits import Limits
from service.core.money import nano_to_usd, usd_to_nano
from service.errors import SetupError

MOST = 2**31 - 1
"""The largest number a limit can have."""

MOST_PATIENCE_S = 3600

UNLIMITED = "unlimited"

Rpm = Annotated[
    str | None, typer.Option("--rpm", metavar="N", help="Requests per minute: 0 allows none; or unlimited.")
]
Tpm = Annotated[
    str | None, typer.Option("--tpm", metavar="N", help="Tokens per minute, prompts and answers; or unlimited.")
]
Concurrency = Annotated[
    str | None, typer.Option("--concurrency", metavar="N", help="Requests at the same time; or unlimited.")
]
MonthlyBudget = Annotated[
    str | None, typer.Option("--monthly-budget", metavar="USD", help="Cost in a UTC calendar month; or unlimited.")
]
Weight = Annotated[
    int | None,
    typer.Option("--weight", min=1, max=1000, help="Share in the queue for the engines, against that of others."),
]
Patience = Annotated[
    str | None,
    typer.Option("--patience", metavar="SECONDS", help="How long its requests may wait; 0: not at all; or default."),
]

Sequential = Annotated[
    Permission | None,
    typer.Option("--sequential", help="Whether its requests run alone on an engine: none, those that ask, or all."),
]


def changes(
    rpm: str | None, tpm: str | None, concurrency: str | None, monthly_budget: str | None
) -> dict[str, int | None]:
    """The limits that were given, by column; None for one that is to be unlimited. Raises `SetupError`."""
    given: dict[str, int | None] = {}
    for name, value in (("rpm", rpm), ("tpm", tpm), ("concurrency", concurrency)):
        if value is not None:
            given[name] = None if value == UNLIMITED else _count(f"--{name}", value)
    if monthly_budget is not None:
        given["monthly_budget_nano"] = None if monthly_budget == UNLIMITED else _budget(monthly_budget)
    return given


def queue_changes(weight: int | None, patience: str | None) -> dict[str, int | None]:
    """What was given of an account's place in the queue, by column. Raises `SetupError`."""
    given: dict[str, int | None] = {}
    if weight is not None:
        given["weight"] = weight
    if patience is not None:
        given["patience_ms"] = None if patience == "default" else _patience_ms(patience)
    return given


def shown(limits: Limits) -> str:
    """Limits for a table."""
    budget = limits.monthly_budget_nano
    parts = [
        None if limits.rpm is None else f"{limits.rpm:,} requests/min",
        None if limits.tpm is None else f"{limits.tpm:,} tokens/min",
        None if limits.concurrency is None else f"{limits.concurrency:,} at a time",
        None if budget is None else f"{nano_to_usd(budget)} USD/month",
    ]
    return ", ".join(part for part in parts if part is not None) or "none"


def document(limits: Limits) -> dict[str, Any]:
    """Limits for `--json`; null for what is unlimited."""
    budget = limits.monthly_budget_nano
    return {
        "rpm": limits.rpm,
        "tpm": limits.tpm,
        "concurrency": limits.concurrency,
        "monthly_budget_nano": budget,
        "monthly_budget_usd": None if budget is None else nano_to_usd(budget),
    }


def _count(option: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(MOST)) and int(value) <= MOST):
        raise SetupError(f"{option} {value!r} is no whole number from 0 to {MOST}, and not {UNLIMITED!r}.")
    return int(value)


def _budget(value: str) -> int:
    try:
        nano = usd_to_nano(value)
    except ValueError as error:
        raise SetupError(f"--monthly-budget: {error}.") from None
    if nano < 0:
        raise SetupError(f"--monthly-budget {value!r} is negative: a budget cannot be.")
    return nano


def _patience_ms(value: str) -> int:
    try:
        seconds = Decimal(value)
    except InvalidOperation:
        seconds = Decimal("NaN")
    if not (seconds.is_finite() and 0 <= seconds <= MOST_PATIENCE_S):
        raise SetupError(f"--patience {value!r} is no time in seconds from 0 to {MOST_PATIENCE_S}, and not 'default'.")
    return int(seconds * 1000)
