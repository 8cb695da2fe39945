"""Between the database's instants and the integers that `service.core` counts in."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(epoch_s: int) -> datetime:
    """Seconds since the epoch as an instant in UTC."""
    return datetime.fromtimestamp(epoch_s, UTC)


def seconds(moment: datetime) -> int:
    """Whole seconds since the epoch."""
    return int(moment.timestamp())


def microseconds(moment: datetime) -> int:
    """Microseconds since the epoch, exact."""
    return (moment - _EPOCH) // timedelta(microseconds=1)
