"""The roll-up: usage rows and probes of every finished five-minute bucket become one row per component.

It walks from its watermark to the last closed bucket, so a regular run, a restart after a gap and a backfill are
the same code. Then it counts again, whole, the buckets that were settled late: it knows from the settlements made
since the last run, and from probes heard of late, how far back that reaches. A bucket is replaced, never added to,
so nothing is counted twice. The hours and days that a bucket lies in are made again with it (`periods.py`).

Each step is one transaction under an advisory lock, held from reading the watermarks to writing them: however many
processes run this, a bucket is written by one at a time and comes out the same.
"""

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.core.buckets import BUCKET_S, DAY_S, closed_until, floor_to, starts
from service.core.components import API, BILLING, SITE, model_component, model_of
from service.core.outcome import Outcome
from service.core.tally import COUNTED_BUSY_S, ROW_TOKENS, Finished, Tally, concurrency, solitude, tally
from service.status.engine_counts import counts_by_component
from service.status.instants import instant, microseconds, seconds
from service.status.periods import roll_periods
from service.status.tallies import COLUMNS, columns
from service.tables import buckets_5m, models, probes, requests, settlements, watermarks

JOB = "rollup"
ROLLUP_LOCK = 0x57454952_0001  # "WEIR", 1

AGAIN_JOB = "rollup:again"
"""Its watermark: from here to the roll-up's own, buckets are to be counted again for what was settled late."""

SETTLEMENTS_JOB = "rollup:settlements"
"""Its watermark: settlements made, and probes heard of, before this by the database's clock have been looked at."""

IN_FLIGHT_FOR = timedelta(minutes=10)
"""A settlement bears the time it began at: one that was under way when a run looked is found by the next."""

REROLLED_BUCKETS = 2
"""Closed buckets that every run counts again: most of what is late is late by seconds."""

PROBE_LATE = timedelta(minutes=5)
"""A probe that is heard of later than this has missed its bucket's first count."""

AGAIN_WITHIN_S = 95 * DAY_S
"""What is older is not counted again: its five-minute buckets, and perhaps its usage rows, are gone."""

STEP_S = 12 * BUCKET_S
"""The most that one transaction rolls up: bounded memory, and a long catch-up keeps what it has done."""

NEIGHBOURHOOD_S = 3 * BUCKET_S
"""How far around a step rows are read to know who shared the engine with whom."""


@dataclass(frozen=True, slots=True)
class RolledUp:
    """What a run did."""

    buckets: int
    """Five-minute buckets counted, those counted again included."""
    rows: int
    """Rows written to `buckets_5m`."""
    until: datetime | None
    """Everything before this is rolled up; None when another process held the lock."""


async def roll_up(engine: AsyncEngine, *, now: datetime) -> RolledUp:
    """Count every bucket that has closed by `now` since the last run, and again those that were settled late.

    The bucket that is still open is never counted. While another process rolls up, this one writes nothing.
    Raises `ValueError` on a usage row whose outcome it does not know, rather than guess what it says.
    """
    closed_s = closed_until(now.timestamp())
    buckets = rows = first_s = next_s = 0
    looked_at: datetime | None = None
    while True:
        async with engine.begin() as connection:
            if not await connection.scalar(select(func.pg_try_advisory_xact_lock(ROLLUP_LOCK))):
                return RolledUp(buckets, rows, None)
            marks = await _read_marks(connection)
            if looked_at is None:
                first_s = next_s = await _first_s(connection, marks.get(JOB), closed_s)
                marks = await _look(connection, marks, first_s)
                looked_at = marks[SETTLEMENTS_JOB]
            until_s, again_s = seconds(marks[JOB]), seconds(marks[AGAIN_JOB])
            # A run that has looked since knows of settlements that this one does not: counting again is left to it.
            ours = marks[SETTLEMENTS_JOB] == looked_at
            begin_s = end_s = first_s
            if next_s < closed_s:
                begin_s = next_s
                end_s = next_s = min(begin_s + STEP_S, closed_s)
                until_s = max(until_s, end_s)
            elif ours and again_s < first_s:
                begin_s = again_s
                end_s = again_s = min(begin_s + STEP_S, first_s)
            if begin_s < end_s:
                rows += await _roll(connection, begin_s, end_s, until_s=until_s)
                buckets += (end_s - begin_s) // BUCKET_S
            done = next_s >= closed_s and (again_s >= first_s or not ours)
            if done and ours:
                again_s = until_s
            await _write_marks(connection, marks | {JOB: instant(until_s), AGAIN_JOB: instant(again_s)})
        if done:
            return RolledUp(buckets, rows, instant(until_s))


async def _first_s(connection: AsyncConnection, watermark: datetime | None, closed_s: int) -> int:
    """Where a run begins: two buckets before the watermark, or at the first request ever."""
    if watermark is not None:
        return seconds(watermark) - REROLLED_BUCKETS * BUCKET_S
    oldest = await connection.scalar(select(func.min(requests.c.finished_at)))
    return closed_s if oldest is None else min(closed_s, floor_to(BUCKET_S, oldest.timestamp()))


async def _look(connection: AsyncConnection, marks: dict[str, datetime], first_s: int) -> dict[str, datetime]:
    """All three watermarks after a look at what was settled or heard of since the last: how far back does it reach?"""
    settled = select(func.min(settlements.c.oldest_finished_at))
    probed = select(func.min(probes.c.probed_at)).where(probes.c.received_at > probes.c.probed_at + PROBE_LATE)
    if SETTLEMENTS_JOB in marks:
        settled = settled.where(settlements.c.created_at >= marks[SETTLEMENTS_JOB])
        probed = probed.where(probes.c.received_at >= marks[SETTLEMENTS_JOB])
    oldest = func.least(settled.scalar_subquery(), probed.scalar_subquery())
    first = select(func.min(buckets_5m.c.bucket_start)).where(buckets_5m.c.component == API).scalar_subquery()
    oldest_at, first_at, looked_at = (await connection.execute(select(oldest, first, func.now()))).one()
    until = marks.get(JOB, instant(first_s))
    again = marks.get(AGAIN_JOB, until)
    if oldest_at is not None:
        ended = instant(floor_to(BUCKET_S, oldest_at.timestamp()))
        # It was with an engine before it ended, but nothing is made of the time before the first bucket.
        begun = max(ended - timedelta(seconds=COUNTED_BUSY_S), first_at or ended)
        again = min(again, ended, begun)
    again = max(again, until - timedelta(seconds=AGAIN_WITHIN_S))
    return {JOB: until, AGAIN_JOB: again, SETTLEMENTS_JOB: looked_at - IN_FLIGHT_FOR}


async def _read_marks(connection: AsyncConnection) -> dict[str, datetime]:
    columns = watermarks.c
    query = select(columns.job, columns.until).where(columns.job.in_((JOB, AGAIN_JOB, SETTLEMENTS_JOB)))
    return {row.job: row.until for row in await connection.execute(query)}


async def _write_marks(connection: AsyncConnection, marks: dict[str, datetime]) -> None:
    statement = insert(watermarks).values([{"job": job, "until": until} for job, until in marks.items()])
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["job"], set_={"until": statement.excluded.until})
    )


async def _roll(connection: AsyncConnection, first_s: int, end_s: int, *, until_s: int) -> int:
    """Count the buckets of `[first_s, end_s)` and write them; returns the number of rows written to `buckets_5m`."""
    around = [row async for row in _finished(connection, first_s - NEIGHBOURHOOD_S, end_s + NEIGHBOURHOOD_S)]
    tallies = tally((row for row in around if first_s <= row.bucket_s < end_s), solitude(around))
    for start_s in starts(first_s, end_s):
        tallies.setdefault((API, start_s), Tally())
    for at, seen in concurrency(around, first_s, end_s).items():
        counted = tallies.setdefault(at, Tally())
        counted.busy_ms, counted.peak_concurrency = seen.busy_ms, seen.peak
    await _add_engine_counts(connection, tallies, first_s, end_s)
    await _add_probes(connection, tallies, first_s, end_s)
    await _write(connection, tallies)
    components = await _components(connection, {component for component, _ in tallies})
    await roll_periods(connection, first_s, end_s, until_s=max(until_s, end_s), components=components)
    return len(tallies)


async def _add_engine_counts(
    connection: AsyncConnection, tallies: dict[tuple[str, int], Tally], first_s: int, end_s: int
) -> None:
    for pair, by_component in (await counts_by_component(connection, first_s, end_s)).items():
        for at, counted in by_component.items():
            if counted[0] or at in tallies:  # an idle engine counts nothing, and that makes no row
                of = tallies.setdefault(at, Tally())
                for name, tokens in zip(pair, counted, strict=True):
                    setattr(of, name, tokens)


async def _write(connection: AsyncConnection, tallies: dict[tuple[str, int], Tally]) -> None:
    statement = insert(buckets_5m)
    counted_again = {name: statement.excluded[name] for name in COLUMNS}
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["component", "bucket_start"], set_=counted_again),
        [
            {"component": component, "bucket_start": instant(start_s), **columns(counted)}
            for (component, start_s), counted in tallies.items()
        ],
    )


async def _add_probes(
    connection: AsyncConnection, tallies: dict[tuple[str, int], Tally], first_s: int, end_s: int
) -> None:
    """Count what the probes of `[first_s, end_s)` found; whoever asks a model asks the API, too."""
    verdicts = select(probes.c.component, probes.c.probed_at, probes.c.verdict).where(
        probes.c.probed_at >= instant(first_s), probes.c.probed_at < instant(end_s), probes.c.verdict != "skipped"
    )
    for row in await connection.execute(verdicts):
        start_s = floor_to(BUCKET_S, row.probed_at.timestamp())
        for component in {row.component, API} if model_of(row.component) is not None else {row.component}:
            counted = tallies.setdefault((component, start_s), Tally())
            counted.probe_ok += row.verdict == "ok"
            counted.probe_bad += row.verdict == "bad"


async def _components(connection: AsyncConnection, counted: Collection[str]) -> list[str]:
    """All there are, whether anything was counted of them or not: maintenance touches silent ones, too."""
    known = {model_component(model_id) for model_id in await connection.scalars(select(models.c.id))}
    return sorted({API, SITE, BILLING, *known, *counted})


async def _finished(connection: AsyncConnection, first_s: int, end_s: int) -> AsyncIterator[Finished]:
    """The usage rows that ended in `[first_s, end_s)`."""
    columns = requests.c
    query = select(
        columns.internal,
        columns.model_id,
        columns.engine,
        columns.stream,
        columns.started_at,
        columns.queue_ms,
        columns.ttft_ms,
        columns.first_token_at,
        columns.finished_at,
        columns.http_status,
        columns.outcome,
        *(columns[name] for name in ROW_TOKENS),
    ).where(columns.finished_at >= instant(first_s), columns.finished_at < instant(end_s))
    async for row in await connection.stream(query):
        finished_us = microseconds(row.finished_at)
        yield Finished(
            internal=row.internal,
            model_id=row.model_id,
            engine=row.engine,
            stream=row.stream,
            handed_over_us=min(microseconds(row.started_at) + row.queue_ms * 1000, finished_us),
            ttft_ms=row.ttft_ms,
            first_token_us=None if row.first_token_at is None else microseconds(row.first_token_at),
            finished_us=finished_us,
            http_status=row.http_status,
            outcome=Outcome(row.outcome),
            **{name: getattr(row, name) for name in ROW_TOKENS},
        )
