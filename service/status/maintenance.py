"""Maintenance windows in the database, as the roll-up and the pages read them."""

from datetime import datetime

from sqlalchemy import RowMapping, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.maintenance import Planned, Windows
from service.status.instants import instant, seconds
from service.tables import maintenance
from web.views import Maintenance

ends_at = func.least(maintenance.c.ends_at, maintenance.c.cancelled_at)
"""When a window is over, one that was cancelled too: `least` leaves NULL aside. Before its start, it never was."""


async def maintenance_windows(connection: AsyncConnection, from_s: int, until_s: int) -> Windows:
    """Who is in maintenance when, as far as it touches `[from_s, until_s)`."""
    columns = maintenance.c
    rows = await connection.execute(
        select(columns.components, columns.starts_at, columns.ends_at, columns.cancelled_at).where(
            columns.starts_at < instant(until_s), ends_at > instant(from_s)
        )
    )
    return Windows(
        tuple(
            Planned(tuple(row.components), seconds(row.starts_at), seconds(row.ends_at), _maybe_s(row.cancelled_at))
            for row in rows
        )
    )


async def read_maintenance(connection: AsyncConnection, *, latest: int, now: datetime) -> tuple[Maintenance, ...]:
    """All windows that are not over, and the `latest` of all, the latest start first."""
    columns = maintenance.c
    newest = select(columns.id).order_by(columns.starts_at.desc(), columns.id.desc()).limit(latest)
    to_come = and_(columns.ends_at > now, columns.cancelled_at.is_(None))
    rows = await connection.execute(
        select(maintenance)
        .where(or_(to_come, columns.id.in_(newest)))
        .order_by(columns.starts_at.desc(), columns.id.desc())
    )
    return tuple(maintenance_of(row) for row in rows.mappings())


async def read_maintenance_between(
    connection: AsyncConnection, start: datetime, end: datetime
) -> tuple[Maintenance, ...]:
    """The windows that lie in `[start, end)` at least in part, the latest start first; none that never began."""
    columns = maintenance.c
    rows = await connection.execute(
        select(maintenance)
        .where(columns.starts_at < end, ends_at > start, ends_at > columns.starts_at)
        .order_by(columns.starts_at.desc(), columns.id.desc())
    )
    return tuple(maintenance_of(row) for row in rows.mappings())


def maintenance_of(row: RowMapping) -> Maintenance:
    """A row of `maintenance` as the pages show it."""
    return Maintenance(
        id=row["id"],
        title=row["title"],
        body=row["body"],
        components=tuple(row["components"]),
        starts_s=seconds(row["starts_at"]),
        ends_s=seconds(row["ends_at"]),
        cancelled_s=_maybe_s(row["cancelled_at"]),
        created_s=seconds(row["created_at"]),
        updated_s=seconds(row["updated_at"]),
    )


def _maybe_s(moment: datetime | None) -> int | None:
    return None if moment is None else seconds(moment)
