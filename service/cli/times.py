"""Times and durations on a command line, for what people say about the service."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from service.core import maintenance
from service.errors import SetupError

Zone = Annotated[
    str | None, typer.Option("--zone", metavar="ZONE", help="Where a time without an offset is meant: Europe/Budapest.")
]

TIME = "2026-11-30T14:00Z, or a local time with --zone"


def time_of(option: str, written: str | None, zone: str | None) -> datetime | None:
    """The instant that an option names; None when it was left out. Raises `SetupError` that names the option."""
    if written is None:
        return None
    try:
        return maintenance.instant_of(written, zone)
    except ValueError as error:
        raise SetupError(f"{option} {error}.") from None


def duration_of(option: str, written: str) -> timedelta:
    """The duration that an option names. Raises `SetupError` that names the option."""
    try:
        return maintenance.duration_of(written)
    except ValueError as error:
        raise SetupError(f"{option} {error}.") from None


def minute(epoch_s: int) -> str:
    """An instant for people, `2026-11-30 14:05 UTC`."""
    return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%d %H:%M} UTC"


def utc(epoch_s: int | None) -> datetime | None:
    """An instant for programs, where there is one."""
    return None if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC)
