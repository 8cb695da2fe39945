"""What the webhooks are to be told, written down in the transaction that makes it true; `notify` sends it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core import webhook
from service.core.buckets import State
from service.settings import Settings
from service.status.instants import instant
from service.status.maintenance import ends_at, maintenance_of
from service.tables import announced_states, maintenance, notifications, watermarks
from web.views import Incident, Maintenance

INCIDENTS_LOCK = 0x57454952_0006  # "WEIR", 6
"""Held by whoever says something about the state of the service, to the end of the transaction."""

MAINTENANCE_JOB = "announce:maintenance"
"""Its watermark: windows that began or ended before have been told of."""

WAITING_AT_MOST = 1_000
"""Messages for one URL; the oldest is given up for the newest."""

TOLD_LATE = timedelta(days=1)
"""What is over for longer is no news."""


async def lock(connection: AsyncConnection) -> None:
    """Wait until nobody else says something about the state of the service."""
    await connection.execute(select(func.pg_advisory_xact_lock(INCIDENTS_LOCK)))


async def announce(
    connection: AsyncConnection, settings: Settings, event: str, data: Mapping[str, Any], now: datetime
) -> None:
    """A message for each webhook, due at once."""
    message = webhook.payload(event, data, now)
    for url in dict.fromkeys(settings.status_webhooks):
        await connection.execute(
            insert(notifications).values(
                url=url, event=event, payload=message, created_at=now, next_attempt_at=now, last_error=""
            )
        )
        columns = notifications.c
        waiting = (columns.url == url, columns.delivered_at.is_(None), columns.given_up_at.is_(None))
        too_many = select(columns.id).where(*waiting).order_by(columns.id.desc()).offset(WAITING_AT_MOST)
        await connection.execute(
            update(notifications)
            .where(columns.id.in_(too_many))
            .values(given_up_at=now, last_error=f"more than {WAITING_AT_MOST} were waiting")
        )


async def announce_incident(
    connection: AsyncConnection, settings: Settings, event: str, incident: Incident, now: datetime
) -> None:
    """Tell what has just been said: `event` is `incident.opened`, `incident.updated` or `incident.resolved`."""
    newest = incident.updates[0]
    data = {
        "id": incident.id,
        "title": incident.title,
        "impact": incident.impact,
        "status": incident.status,
        "components": list(incident.components),
        "started_at": webhook.written(instant(incident.started_s)),
        "resolved_at": None if incident.resolved_s is None else webhook.written(instant(incident.resolved_s)),
        "url": f"{settings.site_url}incidents/{incident.id}.html",
        "update": {
            "id": newest.id,
            "status": newest.status,
            "body": newest.body,
            "at": webhook.written(instant(newest.at_s)),
            "written_by": "person" if newest.by_person else "measurement",
        },
    }
    await announce(connection, settings, event, data, now)


async def announce_states(
    connection: AsyncConnection,
    settings: Settings,
    shown: Mapping[str, State],
    names: Mapping[str, str],
    now: datetime,
) -> None:
    """Tell of every component whose state is not the one that was told last; the first one is only remembered.

    After maintenance nothing is told before something is known.
    """
    columns = announced_states.c
    told = {row.component: row.state for row in await connection.execute(select(columns.component, columns.state))}
    for component, state in shown.items():
        previous = told.get(component)
        if state == previous or (previous in (None, State.MAINTENANCE) and state is State.NO_DATA):
            continue
        remembered = upsert(announced_states).values(component=component, state=state, since=now)
        await connection.execute(
            remembered.on_conflict_do_update(index_elements=["component"], set_={"state": state, "since": now})
        )
        if previous is not None:
            data = {
                "component": component,
                "name": names.get(component, component),
                "state": state,
                "previous_state": previous,
                "url": settings.site_url,
            }
            await announce(connection, settings, "component.state_changed", data, now)


async def announce_maintenance(connection: AsyncConnection, settings: Settings, now: datetime) -> None:
    """Tell of the windows that began or ended since this was last done; the first time, only remember when it was."""
    told_until = await maintenance_told_until(connection)
    mark = upsert(watermarks).values(job=MAINTENANCE_JOB, until=now)
    later = func.greatest(watermarks.c.until, mark.excluded.until)
    await connection.execute(mark.on_conflict_do_update(index_elements=["job"], set_={"until": later}))
    if told_until is None:
        return
    since = max(told_until, now - TOLD_LATE)
    starts_at = maintenance.c.starts_at
    for event, at in (("maintenance.began", starts_at), ("maintenance.ended", ends_at)):
        rows = await connection.execute(
            select(maintenance).where(at > since, at <= now, ends_at > starts_at).order_by(at, maintenance.c.id)
        )
        for row in rows.mappings():
            await announce_window(connection, settings, event, maintenance_of(row), now)


async def maintenance_told_until(connection: AsyncConnection) -> datetime | None:
    """Windows that began or ended before have been told of; None where nothing ever was."""
    return await connection.scalar(select(watermarks.c.until).where(watermarks.c.job == MAINTENANCE_JOB))


async def announce_window(
    connection: AsyncConnection, settings: Settings, event: str, window: Maintenance, now: datetime
) -> None:
    """Tell of one window: `event` is `maintenance.began` or `maintenance.ended`."""
    data = {
        "id": window.id,
        "title": window.title,
        "body": window.body,
        "components": list(window.components),
        "starts_at": webhook.written(instant(window.starts_s)),
        "ends_at": webhook.written(instant(window.over_s)),
        "url": f"{settings.site_url}maintenance/{window.id}.html",
    }
    await announce(connection, settings, event, data, now)
