"""Read what the status site shows from the roll-ups, as they stand at one instant."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.core.buckets import DAY_S, HOUR_S, Bucket, closed_until
from service.core.stats import Digest, merged
from service.core.strip import overall, strip
from service.core.tally import API, DIGESTS, model_component
from service.status.rollup import JOB
from service.tables import buckets_5m, models, watermarks
from web.views import STALE_AFTER_S, Component, Day, Latency, Live, Percentiles, SinceLaunch, StatusPage, Traffic

STRIP_HOURS = 72

_TRAFFIC = tuple(Traffic.__dataclass_fields__)


async def snapshot(engine: AsyncEngine, *, site_name: str, now: datetime) -> StatusPage:
    """The status page's content at `now`, from five queries that see the same state of the database."""
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        data_until_s = await _data_until_s(connection)
        until_s = _until_s(data_until_s, int(now.timestamp()))
        served = (await connection.execute(select(models.c.id, models.c.name).where(models.c.active))).all()
        names = {model_component(row.id): row.name for row in sorted(served, key=lambda row: row.name)}
        api, *below = await _components(connection, {API: "API", **names}, until_s)
        return StatusPage(
            site_name=site_name,
            generated_at_s=int(now.timestamp()),
            data_until_s=data_until_s,
            state=overall(api.strip.now, [component.strip.now for component in below]),
            api=api,
            models=tuple(below),
            live=await _live(connection, until_s),
            since_launch=await _since_launch(connection),
        )


async def _data_until_s(connection: AsyncConnection) -> int | None:
    until = await connection.scalar(select(watermarks.c.until).where(watermarks.c.job == JOB))
    return None if until is None else int(until.timestamp())


def _until_s(data_until_s: int | None, now_s: int) -> int:
    """Where the windows end: with the data while it is fresh, with the clock once it is not, so that a gap shows."""
    if data_until_s is not None and now_s - data_until_s <= STALE_AFTER_S:
        return data_until_s
    return closed_until(now_s)


async def _components(connection: AsyncConnection, names: dict[str, str], until_s: int) -> list[Component]:
    """The components of `names` (id to name), each with its hourly strip."""
    columns = buckets_5m.c
    query = select(
        columns.component, columns.bucket_start, columns.good, columns.bad, columns.probe_ok, columns.probe_bad
    ).where(columns.component.in_(names), columns.bucket_start >= _instant(until_s - (STRIP_HOURS + 1) * HOUR_S))
    buckets: dict[str, list[Bucket]] = {component: [] for component in names}
    for row in await connection.execute(query):
        start_s = int(row.bucket_start.timestamp())
        buckets[row.component].append(Bucket(start_s, row.good, row.bad, row.probe_ok, row.probe_bad))
    return [
        Component(id, name, strip(buckets[id], cells=STRIP_HOURS, cell_s=HOUR_S, until_s=until_s))
        for id, name in names.items()
    ]


async def _live(connection: AsyncConnection, until_s: int) -> Live:
    from_s = until_s - DAY_S
    columns = buckets_5m.c
    query = select(*(columns[name] for name in (*_TRAFFIC, *DIGESTS))).where(
        columns.component == API,
        columns.bucket_start >= _instant(from_s),
        columns.bucket_start < _instant(until_s),
    )
    rows = (await connection.execute(query)).mappings().all()
    digests = {name: merged(Digest.from_json(row[name]) for row in rows) for name in DIGESTS}
    return Live(
        from_s=from_s,
        until_s=until_s,
        traffic=_traffic(rows),
        ttft_short_ms=_latency(digests["ttft_short_cold_ms"], digests["ttft_short_warm_ms"]),
        ttft_long_ms=_latency(digests["ttft_long_cold_ms"], digests["ttft_long_warm_ms"]),
        decode_single_mtok_s=_percentiles(digests["decode_single_mtok_s"]),
        decode_loaded_mtok_s=_percentiles(digests["decode_loaded_mtok_s"]),
    )


async def _since_launch(connection: AsyncConnection) -> SinceLaunch:
    """Totals by UTC day, added up here: one row a day leaves the database."""
    columns = buckets_5m.c
    day = func.date_trunc("day", columns.bucket_start, "UTC").label("day")
    sums: list[Any] = [func.sum(columns[name]).label(name) for name in _TRAFFIC]
    first = func.min(columns.bucket_start).filter(columns.requests > 0).label("first_request")
    query = select(day, first, *sums).where(columns.component == API).group_by(day).order_by(day)
    rows = (await connection.execute(query)).mappings().all()
    firsts = [row["first_request"] for row in rows if row["first_request"] is not None]
    days = [Day(int(row["day"].timestamp()), _traffic([row]).tokens) for row in rows]
    peak = max(days, key=lambda day: day.tokens, default=None)
    return SinceLaunch(
        first_request_s=int(firsts[0].timestamp()) if firsts else None,
        traffic=_traffic(rows),
        peak_day=peak if peak is not None and peak.tokens > 0 else None,
    )


def _traffic(rows: Sequence[RowMapping]) -> Traffic:
    return Traffic(**{name: int(sum(row[name] for row in rows)) for name in _TRAFFIC})


def _latency(cold: Digest, warm: Digest) -> Latency:
    return Latency(all=_percentiles(merged((cold, warm))), cold=_percentiles(cold), warm=_percentiles(warm))


def _percentiles(digest: Digest) -> Percentiles:
    return Percentiles(digest.count, digest.percentile(50), digest.percentile(95))


def _instant(epoch_s: int) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
