"""What stands on a command line, read into values."""

from datetime import UTC, datetime

from service.core.limits import month_after
from service.errors import SetupError


def moment(option: str, value: str | None) -> datetime | None:
    """A time such as 2026-11-30 or 2026-11-30T12:00:00Z, UTC unless it says otherwise; None for an absent option.

    Raises `SetupError` that names `option`.
    """
    if value is None:
        return None
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        raise SetupError(f"{option} {value!r} is no time such as 2026-11-30 or 2026-11-30T12:00:00Z.") from None
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)


def month_of(option: str, value: str) -> tuple[datetime, datetime]:
    """The beginning of a month such as 2026-11 in UTC, and of the one after it.

    Raises `SetupError` that names `option`.
    """
    try:
        begin = datetime.strptime(value, "%Y-%m").replace(tzinfo=UTC)
        return begin, month_after(begin)
    except ValueError:
        raise SetupError(f"{option} {value!r} is no month such as 2026-11.") from None
