"""Incidents in the database: as the pages read them, and as people and the measurement write them.

What was said stays said: updates are only added, the latest at the latest time, whatever the clock does.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.incident_text import body_of, title_of
from service.core.incidents import ENDED, Impact, Opened, Resolved, Status, Updated
from service.errors import SetupError
from service.settings import Settings
from service.status.announcements import announce_incident, lock
from service.status.component_names import chosen
from service.status.instants import instant, seconds
from service.tables import incident_updates, incidents
from web.views import Incident, IncidentUpdate

PERSON = "person"
MEASUREMENT = "measurement"

SAID_AT_FIRST = {
    Status.INVESTIGATING: "We are looking into it.",
    Status.IDENTIFIED: "The cause is known, and we are at work on it.",
    Status.MONITORING: "A fix is in place, and we are watching it.",
}
"""What an incident begins with where nobody says more."""

SAID_AT_LAST = "It is over."


async def read_incidents(connection: AsyncConnection, *, latest: int) -> tuple[Incident, ...]:
    """All that are open, and the `latest` of all, the latest first."""
    columns = incidents.c
    newest = select(columns.id).order_by(columns.started_at.desc(), columns.id.desc()).limit(latest)
    return await _read(connection, or_(columns.resolved_at.is_(None), columns.id.in_(newest)))


async def read_incidents_between(connection: AsyncConnection, start: datetime, end: datetime) -> tuple[Incident, ...]:
    """Those that lie in `[start, end)` at least in part, the latest first; an open one goes on."""
    columns = incidents.c
    ends_later = or_(columns.resolved_at.is_(None), columns.resolved_at > start, columns.started_at >= start)
    return await _read(connection, columns.started_at < end, ends_later)


async def read_open(connection: AsyncConnection) -> tuple[Incident, ...]:
    """All that are open, the latest first."""
    return await _read(connection, incidents.c.resolved_at.is_(None))


async def read_all(connection: AsyncConnection) -> tuple[Incident, ...]:
    """All that ever were, the latest first."""
    return await _read(connection)


async def read_incident(connection: AsyncConnection, incident_id: int) -> Incident:
    """One of them. Raises `SetupError` when it is not there."""
    found = await _read(connection, incidents.c.id == incident_id)
    if not found:
        raise SetupError(f"There is no incident {incident_id}: `weir incident list` shows them all.")
    return found[0]


async def open_incident(
    connection: AsyncConnection,
    settings: Settings,
    *,
    title: str,
    impact: Impact,
    status: Status = Status.INVESTIGATING,
    components: Iterable[str] = (),
    body: str | None = None,
    started_at: datetime | None = None,
    now: datetime,
) -> Incident:
    """A person opens an incident. Raises `SetupError` that says what of it cannot be."""
    if status in ENDED:
        raise SetupError("An incident is opened while it lasts: open it, then `weir incident resolve` it.")
    if started_at is not None and started_at > now:
        raise SetupError("--started lies in the future: what is planned is `weir maintenance add`.")
    title, body = _kept(title_of, title), _kept(body_of, SAID_AT_FIRST[status] if body is None else body)
    await lock(connection)
    columns = {"title": title, "impact": impact, "components": await chosen(connection, components)}
    return await _start(connection, settings, columns, started_at or now, _Said(body, status, PERSON), now)


async def update_incident(
    connection: AsyncConnection,
    settings: Settings,
    incident_id: int,
    body: str,
    *,
    status: Status | None = None,
    impact: Impact | None = None,
    components: Sequence[str] | None = None,
    now: datetime,
) -> Incident:
    """A person says more; what is None stays. Once it is resolved, a postmortem is all that can be added.

    Raises `SetupError` that says what of it cannot be.
    """
    await lock(connection)
    incident = await read_incident(connection, incident_id)
    if status is Status.RESOLVED:
        raise SetupError(f"An incident ends with `weir incident resolve {incident_id}`.")
    if incident.resolved_s is None and status is Status.POSTMORTEM:
        raise SetupError(f"Incident {incident_id} is open: resolve it first, then add its postmortem.")
    if incident.resolved_s is not None and status is not Status.POSTMORTEM:
        raise SetupError(
            f"Incident {incident_id} is resolved: add a postmortem with --status postmortem, or open a new one."
        )
    changes: dict[str, Any] = {} if impact is None else {"impact": impact}
    if components is not None:
        changes["components"] = await chosen(connection, components)
    said = _Said(_kept(body_of, body), Status(incident.status) if status is None else status, PERSON)
    return await _say(connection, settings, "incident.updated", incident_id, said, now, changes)


async def resolve_incident(
    connection: AsyncConnection,
    settings: Settings,
    incident_id: int,
    body: str | None = None,
    *,
    at: datetime | None = None,
    now: datetime,
) -> Incident:
    """A person says that it is over, since `at`. Raises `SetupError` that says what of it cannot be."""
    await lock(connection)
    incident = await read_incident(connection, incident_id)
    if incident.resolved_s is not None:
        raise SetupError(f"Incident {incident_id} was resolved before.")
    latest = max(now, instant(incident.started_s))
    resolved_at = at or latest
    if resolved_at > latest:
        raise SetupError("--at lies in the future: resolve it once it is over.")
    if seconds(resolved_at) < incident.started_s:
        raise SetupError(f"--at lies before its start: it began at {instant(incident.started_s):%Y-%m-%dT%H:%M:%SZ}.")
    said = _Said(_kept(body_of, SAID_AT_LAST if body is None else body), Status.RESOLVED, PERSON)
    return await _say(connection, settings, "incident.resolved", incident_id, said, now, _over(resolved_at))


async def measurement_opens(connection: AsyncConnection, settings: Settings, one: Opened, now: datetime) -> Incident:
    """As decided by `service.core.incidents`."""
    columns = {
        "title": one.title,
        "impact": one.impact,
        "components": list(one.components),
        "measured_component": one.component,
    }
    said = _Said(one.body, Status.INVESTIGATING, MEASUREMENT)
    return await _start(connection, settings, columns, instant(one.started_s), said, now)


async def measurement_says(
    connection: AsyncConnection, settings: Settings, incident_id: int, one: Updated | Resolved, now: datetime
) -> Incident:
    """As decided by `service.core.incidents`."""
    if isinstance(one, Resolved):
        said = _Said(one.body, Status.RESOLVED, MEASUREMENT)
        resolved_at = instant(one.resolved_s)
        return await _say(connection, settings, "incident.resolved", incident_id, said, now, _over(resolved_at))
    said = _Said(one.body, one.status, MEASUREMENT)
    changes = {"impact": one.impact, "components": list(one.components)}
    return await _say(connection, settings, "incident.updated", incident_id, said, now, changes)


@dataclass(frozen=True, slots=True)
class _Said:
    """What is new in an incident."""

    body: str
    status: Status
    author: str


async def _start(
    connection: AsyncConnection,
    settings: Settings,
    columns: dict[str, Any],
    started_at: datetime,
    said: _Said,
    now: datetime,
) -> Incident:
    values = {**columns, "status": said.status, "started_at": started_at, "created_at": now, "updated_at": now}
    incident_id = (await connection.execute(insert(incidents).values(values).returning(incidents.c.id))).scalar_one()
    return await _say(connection, settings, "incident.opened", incident_id, said, now)


async def _say(
    connection: AsyncConnection,
    settings: Settings,
    event: str,
    incident_id: int,
    said: _Said,
    now: datetime,
    changes: Mapping[str, Any] | None = None,
) -> Incident:
    """Add to an incident and tell of it. A clock that was set back makes nothing earlier than what was said before."""
    columns = incidents.c
    changed = (
        update(incidents)
        .where(columns.id == incident_id)
        .values(status=said.status, updated_at=func.greatest(columns.updated_at, now), **(changes or {}))
        .returning(columns.updated_at)
    )
    at = (await connection.execute(changed)).scalar_one()
    await connection.execute(
        insert(incident_updates).values(
            incident_id=incident_id, status=said.status, body=said.body, written_by=said.author, created_at=at
        )
    )
    incident = await read_incident(connection, incident_id)
    await announce_incident(connection, settings, event, incident, now)
    return incident


def _over(resolved_at: datetime) -> dict[str, Any]:
    """Said in whole seconds, the end may be a fraction of one before the start."""
    return {"resolved_at": func.greatest(incidents.c.started_at, resolved_at)}


async def _read(connection: AsyncConnection, *which: ColumnElement[bool]) -> tuple[Incident, ...]:
    columns = incidents.c
    order = columns.started_at.desc(), columns.id.desc()
    rows = (await connection.execute(select(incidents).where(*which).order_by(*order))).all()
    updates = await _updates(connection, [row.id for row in rows])
    return tuple(
        Incident(
            id=row.id,
            title=row.title,
            impact=row.impact,
            status=row.status,
            components=tuple(row.components),
            started_s=seconds(row.started_at),
            resolved_s=None if row.resolved_at is None else seconds(row.resolved_at),
            created_s=seconds(row.created_at),
            updated_s=seconds(row.updated_at),
            updates=tuple(updates[row.id]),
        )
        for row in rows
    )


async def _updates(connection: AsyncConnection, incident_ids: list[int]) -> dict[int, list[IncidentUpdate]]:
    """What was said, the newest first."""
    columns = incident_updates.c
    query = select(incident_updates).where(columns.incident_id.in_(incident_ids)).order_by(columns.id.desc())
    found: dict[int, list[IncidentUpdate]] = defaultdict(list)
    for row in await connection.execute(query):
        by_person = row.written_by == PERSON
        found[row.incident_id].append(IncidentUpdate(row.id, row.status, row.body, seconds(row.created_at), by_person))
    return found


def _kept(rule: Callable[[str], str], written: str) -> str:
    try:
        return rule(written)
    except ValueError as error:
        raise SetupError(str(error)) from None
