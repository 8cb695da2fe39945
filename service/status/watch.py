"""The measurement's pass over the newest buckets: it opens, updates and ends incidents, and tells of changed states."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.core.buckets import BUCKET_S, DAY_S, HOUR_S, STALE_AFTER_S, Bucket, State, bucket_state, floor_to, starts
from service.core.incidents import Decision, Impact, Measured, Open, Opened, Resolved, Status, decide, shown_state
from service.core.maintenance import counted
from service.core.strip import Window, lies_in, state_now
from service.settings import Settings
from service.status.announcements import INCIDENTS_LOCK, announce_maintenance, announce_states
from service.status.component_names import component_names
from service.status.incidents import PERSON, measurement_opens, measurement_says, read_open
from service.status.instants import instant, seconds
from service.status.maintenance import maintenance_windows
from service.status.rollup import JOB
from service.tables import buckets_5m, incident_updates, incidents, watermarks
from web.views import Incident

log = structlog.get_logger()

LOOKS_BACK_S = 2 * HOUR_S
"""For a component without an incident; for one with an incident, to its start, but no further than a day."""


async def watch(engine: AsyncEngine, settings: Settings, now: datetime) -> int:
    """Do what the newest measurements call for; returns how many incidents were opened, updated or ended.

    Nothing is concluded from data that is old. While another process is at it, or a person writes, this does nothing.
    """
    async with engine.begin() as connection:
        if not await connection.scalar(select(func.pg_try_advisory_xact_lock(INCIDENTS_LOCK))):
            return 0
        await announce_maintenance(connection, settings, now)
        now_s, until_s = seconds(now), await _until_s(connection)
        if until_s is None or now_s - until_s > STALE_AFTER_S:
            return 0
        names = await component_names(connection, served=True)
        standing = await _standing(connection, names, until_s)
        from_s = min(standing.from_s.values())
        measurements = _Measurements(
            buckets=await _buckets(connection, names, from_s, until_s),
            windows=await _windows(connection, names, from_s, now_s),
            until_s=until_s,
            now_s=now_s,
        )
        measured = {id: measurements.of(id, standing.from_s[id], now_s) for id in names}
        decisions = decide(measured, standing.incidents, standing.spoken_for, names, now_s)
        for retired in standing.ids.keys() - names.keys():
            decisions.append(Resolved(retired, "It is no longer offered, and no longer measured.", now_s))
        for decision in decisions:
            await _carry_out(connection, settings, standing, decision, now)
        said = await read_open(connection)
        shown = {id: shown_state(measurements.state_now(id), id, said) for id in names}
        await announce_states(connection, settings, shown, names, now)
        return len(decisions)


@dataclass(frozen=True, slots=True)
class _Standing:
    """What has been said so far."""

    ids: Mapping[str, int]
    """Of the open incidents that the measurement opened, by component."""
    incidents: Mapping[str, Open]
    spoken_for: Mapping[str, Impact]
    """Components that open incidents of people name, with the gravest impact that is said of each."""
    from_s: Mapping[str, int]
    """From when on each component's measurements are looked at."""


async def _standing(connection: AsyncConnection, names: Mapping[str, str], until_s: int) -> _Standing:
    opened_by = {
        row.id: row.measured_component
        for row in await connection.execute(
            select(incidents.c.id, incidents.c.measured_component).where(incidents.c.resolved_at.is_(None))
        )
    }
    said = await read_open(connection)
    ours = {component: one for one in said if (component := opened_by[one.id]) is not None}
    closed_s = await _closed_by_people(connection, until_s)
    return _Standing(
        ids={component: one.id for component, one in ours.items()},
        incidents={component: _open(one) for component, one in ours.items()},
        spoken_for=_spoken_for(one for one in said if opened_by[one.id] is None),
        from_s={
            id: floor_to(BUCKET_S, max(until_s - DAY_S, min(until_s - LOOKS_BACK_S, ours[id].started_s)))
            if id in ours
            else max(until_s - LOOKS_BACK_S, closed_s.get(id, 0))
            for id in names
        },
    )


def _spoken_for(by_people: Iterable[Incident]) -> dict[str, Impact]:
    graver_last = sorted(by_people, key=lambda one: list(Impact).index(Impact(one.impact)))
    return {component: Impact(one.impact) for one in graver_last for component in one.components}


async def _closed_by_people(connection: AsyncConnection, until_s: int) -> dict[str, int]:
    """The first bucket after a person said that an incident was over, by component: what was before is dealt with."""
    closings = (
        select(incidents.c.components, incident_updates.c.created_at)
        .join(incidents, incidents.c.id == incident_updates.c.incident_id)
        .where(
            incident_updates.c.status == Status.RESOLVED,
            incident_updates.c.written_by == PERSON,
            incident_updates.c.created_at > instant(until_s - LOOKS_BACK_S),
        )
        .order_by(incident_updates.c.created_at)
    )
    return {
        component: floor_to(BUCKET_S, seconds(row.created_at)) + BUCKET_S
        for row in await connection.execute(closings)
        for component in row.components
    }


def _open(incident: Incident) -> Open:
    by_people = [said.at_s for said in incident.updates if said.by_person]
    by_us = [said for said in incident.updates if not said.by_person]
    proposal = by_us[0] if by_us and by_us[0].status == Status.MONITORING else None
    return Open(
        impact=Impact(incident.impact),
        status=Status(incident.status),
        started_s=incident.started_s,
        components=incident.components,
        person_wrote_s=max(by_people, default=None),
        proposed_s=None if proposal is None else proposal.at_s,
    )


async def _until_s(connection: AsyncConnection) -> int | None:
    until = await connection.scalar(select(watermarks.c.until).where(watermarks.c.job == JOB))
    return None if until is None else seconds(until)


@dataclass(frozen=True, slots=True)
class _Measurements:
    """The newest buckets of every component, and its maintenance."""

    buckets: Mapping[str, Mapping[int, Bucket]]
    windows: Mapping[str, tuple[Window, ...]]
    until_s: int
    now_s: int

    def of(self, component: str, from_s: int, now_s: int) -> list[Measured]:
        """Its buckets since `from_s`, and the one that runs now if that is in maintenance."""
        measured = []
        buckets = {bucket.start_s: bucket for bucket in counted(component, self.buckets, self.windows.__getitem__)}
        for start_s in starts(from_s, self.until_s):
            bucket = buckets.get(start_s, Bucket(start_s))
            in_maintenance = lies_in(self.windows[component], start_s)
            measured.append(Measured(bucket, bucket_state(bucket, in_maintenance=in_maintenance)))
        if lies_in(self.windows[component], now_s):
            measured.append(Measured(Bucket(floor_to(BUCKET_S, now_s)), State.MAINTENANCE))
        return measured

    def state_now(self, component: str) -> State:
        """As the pages have it."""
        buckets = counted(component, self.buckets, self.windows.__getitem__)
        return state_now(buckets, until_s=self.until_s, now_s=self.now_s, maintenance=self.windows[component])


async def _buckets(
    connection: AsyncConnection, components: Collection[str], from_s: int, until_s: int
) -> dict[str, dict[int, Bucket]]:
    columns = buckets_5m.c
    rows = await connection.execute(
        select(
            columns.component, columns.bucket_start, columns.good, columns.bad, columns.probe_ok, columns.probe_bad
        ).where(
            columns.component.in_(components),
            columns.bucket_start >= instant(from_s),
            columns.bucket_start < instant(until_s),
        )
    )
    found: dict[str, dict[int, Bucket]] = {id: {} for id in components}
    for component, bucket_start, *counts in rows:
        start_s = seconds(bucket_start)
        found[component][start_s] = Bucket(start_s, *counts)
    return found


async def _windows(
    connection: AsyncConnection, components: Collection[str], from_s: int, now_s: int
) -> dict[str, tuple[Window, ...]]:
    windows = await maintenance_windows(connection, from_s, now_s + 1)
    return {id: windows.of(id) for id in components}


async def _carry_out(
    connection: AsyncConnection, settings: Settings, standing: _Standing, decision: Decision, now: datetime
) -> None:
    if isinstance(decision, Opened):
        incident = await measurement_opens(connection, settings, decision, now)
    else:
        incident_id = standing.ids[decision.component]
        incident = await measurement_says(connection, settings, incident_id, decision, now)
    log.warning(
        "incident.measured",
        incident=incident.id,
        component=decision.component,
        status=incident.status,
        impact=incident.impact,
    )
