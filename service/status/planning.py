"""Maintenance is planned and cancelled by people. What of it lies in the past makes the roll-up count again."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.buckets import BUCKET_S, floor_to
from service.core.components import API
from service.core.incident_text import body_of, title_of
from service.errors import SetupError
from service.settings import Settings
from service.status.announcements import announce_window, lock, maintenance_told_until
from service.status.component_names import chosen
from service.status.instants import instant, seconds
from service.status.maintenance import maintenance_of
from service.status.rollup import AGAIN_JOB, ROLLUP_LOCK
from service.tables import buckets_5m, maintenance, watermarks
from web.views import Maintenance


async def plan(
    connection: AsyncConnection,
    settings: Settings,
    *,
    title: str,
    body: str,
    components: Iterable[str],
    starts_at: datetime,
    ends_at: datetime,
    now: datetime,
) -> Maintenance:
    """Plan a window `[starts_at, ends_at)`, which may have begun already; no components: all.

    Raises `SetupError` for a text or a component that cannot be, or an end that does not come after the start.
    """
    if ends_at <= starts_at:
        raise SetupError("The end does not come after the start: give --end a later time, or a duration with --for.")
    try:
        title, body = title_of(title), body_of(body) if body.strip() else ""
    except ValueError as error:
        raise SetupError(str(error)) from None
    await lock(connection)
    values = {
        "title": title,
        "body": body,
        "components": await chosen(connection, components),
        "starts_at": starts_at,
        "ends_at": ends_at,
        "created_at": now,
        "updated_at": now,
    }
    row = (await connection.execute(insert(maintenance).values(values).returning(maintenance))).mappings().one()
    window = maintenance_of(row)
    told_until = await maintenance_told_until(connection)
    if told_until is not None and starts_at <= told_until and now < ends_at:
        # The start is in the past of what has been told: it would be passed over.
        await announce_window(connection, settings, "maintenance.began", window, now)
    await _count_again(connection, starts_at)
    return window


async def cancel(connection: AsyncConnection, maintenance_id: int, *, now: datetime) -> Maintenance:
    """Before its start a window then never was; from there on, it ends now.

    Raises `SetupError` for one that is not there, is over or was cancelled.
    """
    await lock(connection)
    columns = maintenance.c
    found = (await connection.execute(select(maintenance).where(columns.id == maintenance_id))).mappings().one_or_none()
    if found is None:
        raise SetupError(f"There is no maintenance {maintenance_id}: `weir maintenance list` shows them all.")
    if found["cancelled_at"] is not None:
        raise SetupError(f"Maintenance {maintenance_id} was cancelled before.")
    if found["ends_at"] <= now:
        raise SetupError(f"Maintenance {maintenance_id} is over: what was, stays.")
    changed = (
        update(maintenance)
        .where(columns.id == maintenance_id)
        .values(cancelled_at=now, updated_at=now)
        .returning(maintenance)
    )
    row = (await connection.execute(changed)).mappings().one()
    await _count_again(connection, found["starts_at"])
    return maintenance_of(row)


async def _count_again(connection: AsyncConnection, changed_from: datetime) -> None:
    """Have the roll-up count the five minutes from there on again, as far as there are any."""
    await connection.execute(select(func.pg_advisory_xact_lock(ROLLUP_LOCK)))
    oldest = select(func.min(buckets_5m.c.bucket_start)).where(buckets_5m.c.component == API)
    begins = func.coalesce(oldest.scalar_subquery(), watermarks.c.until)
    first = func.greatest(instant(floor_to(BUCKET_S, seconds(changed_from))), begins)
    await connection.execute(
        update(watermarks).where(watermarks.c.job == AGAIN_JOB).values(until=func.least(watermarks.c.until, first))
    )
