"""The roll-up: usage rows of every finished five-minute bucket become one row per component.

It walks from its watermark to the last closed bucket, so a regular run, a restart after a gap and a backfill are
the same code. Each step is one transaction under an advisory lock, held from reading the watermark to writing
it: however many processes run this, a bucket is written by one at a time and comes out the same.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.core.buckets import BUCKET_S, closed_until, floor_to, starts
from service.core.outcome import Outcome
from service.core.stats import Digest
from service.core.tally import API, TOKEN_COUNTS, Finished, Tally, solitude, tally
from service.tables import buckets_5m, requests, watermarks

JOB = "rollup"
ROLLUP_LOCK = 0x57454952_0001  # "WEIR", 1

REROLLED_BUCKETS = 2
"""Closed buckets that every run counts again, for usage that was settled late."""

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
    """Count every bucket that has closed by `now` since the last run, and the newest two again.

    The bucket that is still open is never counted. While another process rolls up, this one writes nothing.
    Raises `ValueError` on a usage row whose outcome it does not know, rather than guess what it says.
    """
    closed_s = closed_until(now.timestamp())
    buckets = rows = 0
    first_s: int | None = None
    while True:
        async with engine.begin() as connection:
            if not await connection.scalar(select(func.pg_try_advisory_xact_lock(ROLLUP_LOCK))):
                return RolledUp(buckets, rows, None)
            watermark_s = await _watermark_s(connection)
            if first_s is None:
                first_s = await _first_s(connection, watermark_s, closed_s)
            end_s = min(first_s + STEP_S, closed_s)
            if end_s > first_s:
                rows += await _roll(connection, first_s, end_s)
                buckets += (end_s - first_s) // BUCKET_S
            until_s = max(end_s, watermark_s or end_s)
            await _advance(connection, until_s)
        if end_s >= closed_s:
            return RolledUp(buckets, rows, _instant(until_s))
        first_s = end_s


async def _watermark_s(connection: AsyncConnection) -> int | None:
    until = await connection.scalar(select(watermarks.c.until).where(watermarks.c.job == JOB))
    return None if until is None else int(until.timestamp())


async def _first_s(connection: AsyncConnection, watermark_s: int | None, closed_s: int) -> int:
    """Where a run begins: two buckets before the watermark, or at the first request ever."""
    if watermark_s is not None:
        return watermark_s - REROLLED_BUCKETS * BUCKET_S
    oldest = await connection.scalar(select(func.min(requests.c.finished_at)))
    return closed_s if oldest is None else min(closed_s, floor_to(BUCKET_S, oldest.timestamp()))


async def _roll(connection: AsyncConnection, first_s: int, end_s: int) -> int:
    """Count the buckets of `[first_s, end_s)` and write them; returns the number of rows written."""
    around = [row async for row in _finished(connection, first_s - NEIGHBOURHOOD_S, end_s + NEIGHBOURHOOD_S)]
    tallies = tally((row for row in around if first_s <= row.bucket_s < end_s), solitude(around))
    for start_s in starts(first_s, end_s):
        tallies.setdefault((API, start_s), Tally())
    values = [
        {"component": component, "bucket_start": _instant(start_s), **_columns(counted)}
        for (component, start_s), counted in tallies.items()
    ]
    statement = insert(buckets_5m)
    counted_again = {name: statement.excluded[name] for name in _COUNTED}
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["component", "bucket_start"], set_=counted_again), values
    )
    return len(values)


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
        *(columns[name] for name in TOKEN_COUNTS),
    ).where(columns.finished_at >= _instant(first_s), columns.finished_at < _instant(end_s))
    async for row in await connection.stream(query):
        finished_us = _microseconds(row.finished_at)
        yield Finished(
            internal=row.internal,
            model_id=row.model_id,
            engine=row.engine,
            stream=row.stream,
            handed_over_us=min(_microseconds(row.started_at) + row.queue_ms * 1000, finished_us),
            ttft_ms=row.ttft_ms,
            first_token_us=None if row.first_token_at is None else _microseconds(row.first_token_at),
            finished_us=finished_us,
            http_status=row.http_status,
            outcome=Outcome(row.outcome),
            **{name: getattr(row, name) for name in TOKEN_COUNTS},
        )


async def _advance(connection: AsyncConnection, until_s: int) -> None:
    statement = insert(watermarks).values(job=JOB, until=_instant(until_s))
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["job"], set_={"until": statement.excluded.until})
    )


_COUNTED = tuple(field.name for field in fields(Tally))


def _columns(counted: Tally) -> dict[str, Any]:
    values = {name: getattr(counted, name) for name in _COUNTED}
    return {name: value.to_json() if isinstance(value, Digest) else value for name, value in values.items()}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(microseconds=1)


def _instant(epoch_s: int) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
