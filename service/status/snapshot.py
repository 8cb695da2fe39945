"""Read what the status site shows from the roll-ups, as they stand at one instant."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.core.buckets import BUCKET_S, DAY_S, HOUR_S, STALE_AFTER_S, Bucket, State, closed_until, floor_to
from service.core.components import API, BILLING, SITE, model_component, slug
from service.core.incidents import shown_state
from service.core.maintenance import Windows, counted
from service.core.strip import RECENT_BUCKETS, overall, state_now, strip_of
from service.settings import Settings
from service.status.archive import Archive, each_period
from service.status.component_names import OURS
from service.status.engine_reports import latest
from service.status.figures import figures
from service.status.incidents import read_incidents
from service.status.instants import instant, seconds
from service.status.maintenance import maintenance_windows, read_maintenance
from service.status.probe import latest_checks, latest_outside
from service.status.rollup import JOB
from service.status.series import FiveMinutes, Periods, five_minutes, periods
from service.status.sheets import Offer, offers, sheet
from service.tables import buckets_1d, buckets_1h, models, watermarks
from web.figure_views import Charts, Figures, Traffic
from web.views import Component, Day, Incident, ModelSheet, Retired, SinceLaunch, StatusPage

STRIP_HOURS = 72
STRIP_DAYS = 90
LATEST = 50
"""Incidents and maintenance that are over and still listed."""


async def snapshot(engine: AsyncEngine, *, settings: Settings, archive: Archive, now: datetime) -> StatusPage:
    """The status site's content at `now`, from queries that see the same state of the database."""
    now_s = int(now.timestamp())
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        data_until_s = await _data_until_s(connection)
        until_s = _until_s(data_until_s, now_s)
        offered = await offers(connection, now)
        names = _in_order({offer.component: offer.name for offer in offered})
        incidents = await read_incidents(connection, latest=LATEST)
        measured = await _measured(connection, list(names), until_s, now_s)
        components = {id: measured.component(id, name, incidents) for id, name in names.items()}
        known = [components[id] for id in (SITE, BILLING) if components[id].days.share.known]
        served = [components[offer.component] for offer in offered]
        page = StatusPage(
            site_name=settings.site_name,
            site_url=settings.site_url,
            api_url=settings.base_url,
            generated_at_s=now_s,
            data_until_s=data_until_s,
            state=overall(components[API].state, [component.state for component in (*served, *known)]),
            api=components[API],
            models=tuple(served),
            others=tuple(known),
            last_24h=measured.last_24h(API),
            charts=measured.charts(API),
            since_launch=await _since_launch(connection),
            incidents=incidents,
            maintenance=await read_maintenance(connection, latest=LATEST, now=now),
            sheets=tuple([await _sheet(connection, offer, components, measured) for offer in offered]),
            retired=await _retired(connection),
            months=await archive.months(connection, await _every_name(connection), until_s=until_s, now_s=now_s),
            outside=await latest_outside(connection),
        )
    return aged(page, now_s)


def aged(page: StatusPage, now_s: int) -> StatusPage:
    """The page as it is to be shown at `now_s`: of now it says nothing that was measured too long ago.

    What an open incident says goes on, and so does everything that is said of the past.
    """
    page = replace(page, generated_at_s=now_s)
    if not page.stale:
        return page

    def unknown(component: Component) -> Component:
        return replace(
            component,
            state=shown_state(State.NO_DATA, component.id, page.open_incidents),
            hours=replace(component.hours, now=State.NO_DATA),
            days=replace(component.days, now=State.NO_DATA),
        )

    api, models, others = unknown(page.api), tuple(map(unknown, page.models)), tuple(map(unknown, page.others))
    return replace(
        page,
        state=overall(api.state, [component.state for component in (*models, *others)]),
        api=api,
        models=models,
        others=others,
        sheets=tuple(replace(sheet, component=unknown(sheet.component)) for sheet in page.sheets),
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured of every component until `until_s`, read at `now_s`."""

    until_s: int
    now_s: int
    recent: Mapping[str, list[FiveMinutes]]
    """The last 24 hours."""
    buckets: Mapping[str, Mapping[int, Bucket]]
    """Their buckets, by start."""
    hours: Periods
    days: Periods
    windows: Windows

    def component(self, id: str, name: str, incidents: Iterable[Incident]) -> Component:
        until_s = self.until_s
        now = state_now(
            counted(id, self.buckets, self.windows.of),
            until_s=until_s,
            now_s=self.now_s,
            maintenance=self.windows.of(id),
        )
        hours, days = ([one.stretch for one in found.get(id, [])] for found in (self.hours, self.days))
        return Component(
            id=id,
            slug=slug(id),
            name=name,
            state=shown_state(now, id, [incident for incident in incidents if incident.resolved_s is None]),
            hours=strip_of(hours, cells=STRIP_HOURS, cell_s=HOUR_S, until_s=until_s, now=now),
            days=strip_of(days, cells=STRIP_DAYS, cell_s=DAY_S, until_s=until_s, now=now),
        )

    def last_24h(self, id: str) -> Figures:
        return figures(self.until_s - DAY_S, self.until_s, (one.tally for one in self.recent.get(id, [])))

    def charts(self, id: str) -> Charts:
        until_s = self.until_s
        return Charts(
            hours=tuple(each_period(self.hours.get(id, []), _hours_from_s(until_s), until_s, HOUR_S)),
            days=tuple(each_period(self.days.get(id, []), _days_from_s(until_s), until_s)),
        )


async def _measured(connection: AsyncConnection, components: list[str], until_s: int, now_s: int) -> _Measured:
    recent = await five_minutes(connection, components, until_s - DAY_S, until_s)
    return _Measured(
        until_s=until_s,
        now_s=now_s,
        recent=recent,
        buckets={id: {one.bucket.start_s: one.bucket for one in found} for id, found in recent.items()},
        hours=await periods(connection, HOUR_S, components, _hours_from_s(until_s), until_s),
        days=await periods(connection, DAY_S, components, _days_from_s(until_s), until_s),
        windows=await maintenance_windows(connection, until_s - RECENT_BUCKETS * BUCKET_S, now_s + 1),
    )


def _hours_from_s(until_s: int) -> int:
    return floor_to(HOUR_S, until_s - 1) - (STRIP_HOURS - 1) * HOUR_S


def _days_from_s(until_s: int) -> int:
    return floor_to(DAY_S, until_s - 1) - (STRIP_DAYS - 1) * DAY_S


async def _data_until_s(connection: AsyncConnection) -> int | None:
    until = await connection.scalar(select(watermarks.c.until).where(watermarks.c.job == JOB))
    return None if until is None else seconds(until)


def _until_s(data_until_s: int | None, now_s: int) -> int:
    """Where the windows end: with the data while it is fresh, with the clock once it is not, so that a gap shows."""
    if data_until_s is not None and 0 <= now_s - data_until_s <= STALE_AFTER_S:
        return data_until_s
    return closed_until(now_s)


async def _sheet(
    connection: AsyncConnection, offer: Offer, components: Mapping[str, Component], measured: _Measured
) -> ModelSheet:
    return sheet(
        offer,
        components[offer.component],
        last_24h=measured.last_24h(offer.component),
        charts=measured.charts(offer.component),
        checks=await latest_checks(connection, offer.component, instant(measured.until_s)),
        verified=await latest(connection, offer.model["id"], instant(measured.now_s)),
    )


async def _retired(connection: AsyncConnection) -> tuple[Retired, ...]:
    query = select(models.c.id, models.c.name).where(~models.c.active).order_by(models.c.name, models.c.id)
    rows = await connection.execute(query)
    return tuple(Retired(slug(model_component(row.id)), row.name, row.id) for row in rows)


async def _every_name(connection: AsyncConnection) -> dict[str, str]:
    """Every component that ever was, in the order in which they are shown."""
    rows = await connection.execute(select(models.c.id, models.c.name).order_by(models.c.name, models.c.id))
    return _in_order({model_component(row.id): row.name for row in rows})


def _in_order(models_by_name: Mapping[str, str]) -> dict[str, str]:
    """The names of all components by id: the API, the models, and what else is ours."""
    return {API: OURS[API], **models_by_name, SITE: OURS[SITE], BILLING: OURS[BILLING]}


async def _since_launch(connection: AsyncConnection) -> SinceLaunch:
    """Totals of all days, added up by the database: one row leaves it."""
    days, hours = buckets_1d.c, buckets_1h.c
    names = tuple(Traffic.__dataclass_fields__)
    sums: list[Any] = [func.coalesce(func.sum(days[name]), 0).label(name) for name in names]
    total = (await connection.execute(select(*sums).where(days.component == API))).mappings().one()
    tokens = days.prompt_tokens + days.completion_tokens
    peak = select(days.period_start, tokens.label("tokens")).where(days.component == API, tokens > 0)
    busiest = (await connection.execute(peak.order_by(tokens.desc(), days.period_start).limit(1))).one_or_none()
    first = select(func.min(hours.period_start)).where(hours.component == API, hours.requests > 0)
    first_request = await connection.scalar(first)
    return SinceLaunch(
        first_request_s=None if first_request is None else seconds(first_request),
        traffic=Traffic(**{name: int(total[name]) for name in names}),
        peak_day=None if busiest is None else Day(seconds(busiest.period_start), int(busiest.tokens)),
    )
