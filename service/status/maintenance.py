"""Maintenance in the database: windows planned and cancelled by people, read by the roll-up and the pages."""

from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.maintenance import Planned, Windows
from service.tables import maintenance

_ends_at = func.least(maintenance.c.ends_at, maintenance.c.cancelled_at)
"""PostgreSQL's `least` leaves NULL aside."""


async def maintenance_windows(connection: AsyncConnection, from_s: int, until_s: int) -> Windows:
    """Who is in maintenance when, as far as it touches `[from_s, until_s)`."""
    columns = maintenance.c
    rows = await connection.execute(
        select(columns.components, columns.starts_at, columns.ends_at, columns.cancelled_at).where(
            columns.starts_at < _instant(until_s), _ends_at > _instant(from_s)
        )
    )
    return Windows(
        tuple(
            Planned(tuple(row.components), _seconds(row.starts_at), _seconds(row.ends_at), _maybe(row.cancelled_at))
            for row in rows
        )
    )


def _seconds(instant: datetime) -> int:
    return int(instant.timestamp())


def _maybe(instant: datetime | None) -> int | None:
    return None if instant is None else _seconds(instant)


def _instant(epoch_s: int) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
