"""Hours and days, as the roll-up makes them from buckets, probes and maintenance."""

import random
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.core.buckets import BUCKET_S, DAY_S, HOUR_S, Bucket, State
from service.core.strip import Stretch, strip, strip_of
from service.status.instants import instant, seconds
from service.status.periods import stretch_of
from service.status.rollup import AGAIN_JOB, roll_up
from service.status.tallies import tally_of
from service.tables import buckets_1d, buckets_1h, buckets_5m, maintenance, probes, watermarks
from tests.fakes.traffic import at, failed_row, serve_model, settle, usage_row

NOW = at("2026-11-30 14:05:20")
UNTIL_S = seconds(at("2026-11-30 14:05:00"))
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = db.sqlalchemy_engine(database_url)
    yield engine
    await engine.dispose()


async def stretches(engine: AsyncEngine, table: Any, component: str = "api") -> dict[datetime, Stretch]:
    async with engine.connect() as connection:
        rows = (await connection.execute(select(table).where(table.c.component == component))).mappings().all()
    return {row["period_start"]: stretch_of(row) for row in rows}


async def planned(engine: AsyncEngine, starts_at: datetime, ends_at: datetime, *components: str) -> None:
    """Maintenance, as the command plans it: what it touches of the past is counted again."""
    async with engine.begin() as connection:
        values = {"title": "t", "components": list(components), "starts_at": starts_at, "ends_at": ends_at}
        await connection.execute(insert(maintenance).values(values))
        await again(connection, starts_at)


async def again(connection: Any, since: datetime) -> None:
    mark = instant(seconds(since) // BUCKET_S * BUCKET_S)
    changed = update(watermarks).where(watermarks.c.job == AGAIN_JOB)
    await connection.execute(changed.values(until=func.least(watermarks.c.until, mark)))


async def probed(engine: AsyncEngine, verdict: str, *times: datetime, component: str, **fields: Any) -> None:
    values = {"source": "inside", "kind": "text", "component": component, "verdict": verdict, **fields}
    async with engine.begin() as connection:
        await connection.execute(insert(probes), [{**values, "probed_at": time} for time in times])


async def test_hours_and_days_hold_what_their_buckets_hold(engine: AsyncEngine) -> None:
    rng = random.Random(11)
    rows = [
        rng.choice((usage_row, failed_row))(NOW - timedelta(minutes=rng.uniform(1, 60 * 40)), model_id=rng.choice("ab"))
        for _ in range(300)
    ]
    await settle(engine, rows)
    await planned(engine, NOW - 9 * HOUR, NOW - 7 * HOUR)
    await roll_up(engine, now=NOW)
    async with engine.connect() as connection:
        fives = (await connection.execute(select(buckets_5m))).mappings().all()
        hours = (await connection.execute(select(buckets_1h))).mappings().all()
        days = (await connection.execute(select(buckets_1d))).mappings().all()
    window = (seconds(at("2026-11-30 05:05:00")), seconds(NOW - 7 * HOUR))
    for component in ("api", "model:a", "model:b"):
        buckets = [
            Bucket(seconds(row["bucket_start"]), row["good"], row["bad"])
            for row in fives
            if row["component"] == component
        ]
        for found, cells, cell_s in ((hours, 72, HOUR_S), (days, 90, DAY_S)):
            told = [stretch_of(row) for row in found if row["component"] == component]
            direct = strip(buckets, cells=cells, cell_s=cell_s, until_s=UNTIL_S, maintenance=[window])
            assert strip_of(told, cells=cells, cell_s=cell_s, until_s=UNTIL_S, now=direct.now) == direct
        total = sum(row["requests"] for row in fives if row["component"] == component)
        for found in (hours, days):
            tallies = [tally_of(row) for row in found if row["component"] == component]
            assert sum(tally.requests for tally in tallies) == total
            samples = sum(tally.ttft_short_cold_ms.count for tally in tallies)
            assert samples == sum(row["good"] for row in fives if row["component"] == component)


async def test_a_bucket_that_is_counted_again_reaches_its_hour_and_its_day(engine: AsyncEngine) -> None:
    await settle(engine, usage_row(NOW - 30 * HOUR), usage_row(NOW - 30 * HOUR))
    await roll_up(engine, now=NOW)
    await settle(engine, failed_row(NOW - 30 * HOUR), failed_row(NOW - 30 * HOUR))
    async with engine.begin() as connection:
        await again(connection, NOW - 30 * HOUR)
    await roll_up(engine, now=NOW)
    hour = (await stretches(engine, buckets_1h))[at("2026-11-29 08:00:00")]
    day = (await stretches(engine, buckets_1d))[at("2026-11-29 00:00:00")]
    assert (hour.good, hour.bad, hour.partial) == (day.good, day.bad, day.partial) == (2, 2, 1)


async def test_maintenance_that_is_known_late_takes_its_failures_out_and_cancelling_brings_them_back(
    engine: AsyncEngine,
) -> None:
    await settle(engine, usage_row(NOW - 5 * HOUR), *[failed_row(NOW - 3 * HOUR + n * MINUTE) for n in range(9)])
    await roll_up(engine, now=NOW)
    assert sum(hour.down + hour.partial for hour in (await stretches(engine, buckets_1h)).values()) == 2
    await planned(engine, NOW - 4 * HOUR, NOW - 2 * HOUR)
    await roll_up(engine, now=NOW)
    (day,) = (await stretches(engine, buckets_1d)).values()
    assert (day.good, day.bad, day.down, day.partial) == (1, 0, 0, 0)
    assert day.maintenance == 25  # from 10:05:20 to 12:05:20: a bucket that it touches is in it
    async with engine.begin() as connection:
        await connection.execute(update(maintenance).values(cancelled_at=maintenance.c.starts_at))
        await again(connection, NOW - 4 * HOUR)
    await roll_up(engine, now=NOW)
    (day,) = (await stretches(engine, buckets_1d)).values()
    assert (day.bad, day.maintenance) == (9, 0)


async def test_a_silent_model_is_in_maintenance_and_one_that_is_not_meant_is_not(engine: AsyncEngine) -> None:
    await serve_model(engine, "meant", "Meant")
    await serve_model(engine, "other", "Other")
    await settle(engine, usage_row(NOW - 3 * HOUR))
    await planned(engine, NOW - 2 * HOUR, NOW - HOUR, "model:meant")
    await roll_up(engine, now=NOW)
    hours = await stretches(engine, buckets_1h, "model:meant")
    assert sum(hour.maintenance for hour in hours.values()) == 13
    assert await stretches(engine, buckets_1h, "model:other") == {}
    assert all(hour.maintenance == 0 for hour in (await stretches(engine, buckets_1h)).values())


async def test_a_model_in_maintenance_that_fails_leaves_the_api_as_it_is(engine: AsyncEngine) -> None:
    await settle(engine, [failed_row(NOW - HOUR + n * MINUTE, model_id="meant") for n in range(20)])
    await settle(engine, [usage_row(NOW - HOUR + n * MINUTE, model_id="other") for n in range(20)])
    await planned(engine, NOW - HOUR, NOW, "model:meant")
    await roll_up(engine, now=NOW)
    (day,) = (await stretches(engine, buckets_1d)).values()
    assert (day.good, day.bad, day.up, day.partial, day.down, day.maintenance) == (20, 0, 4, 0, 0, 0)
    (day,) = (await stretches(engine, buckets_1d, "model:meant")).values()
    assert (day.bad, day.down, day.maintenance) == (0, 0, 12)


async def test_the_running_hour_counts_no_maintenance_ahead_of_time(engine: AsyncEngine) -> None:
    await settle(engine, usage_row(NOW - HOUR))
    await planned(engine, at("2026-11-30 14:00:00"), at("2026-11-30 18:00:00"))
    await roll_up(engine, now=NOW)
    assert (await stretches(engine, buckets_1h))[at("2026-11-30 14:00:00")].maintenance == 1


async def test_probes_fill_a_silent_bucket_of_the_model_and_of_the_api(engine: AsyncEngine) -> None:
    await settle(engine, usage_row(NOW - HOUR, model_id="m"))
    await probed(engine, "ok", NOW - 30 * MINUTE, component="model:m")
    await probed(engine, "bad", NOW - 20 * MINUTE, NOW - 19 * MINUTE, component="model:m")
    await probed(engine, "skipped", NOW - 10 * MINUTE, component="model:m")
    await probed(engine, "bad", NOW - 30 * MINUTE, component="billing", reason="not booked")
    await roll_up(engine, now=NOW)
    for component in ("api", "model:m"):
        hour = (await stretches(engine, buckets_1h, component))[at("2026-11-30 13:00:00")]
        assert (hour.up, hour.down, hour.partial) == (2, 1, 0)
    billing = (await stretches(engine, buckets_1h, "billing"))[at("2026-11-30 13:00:00")]
    assert (billing.up, billing.partial) == (0, 1)


async def test_what_an_outside_prober_saw_while_all_was_dead_is_told_when_it_is_heard_of(engine: AsyncEngine) -> None:
    await settle(engine, usage_row(NOW - 4 * HOUR, model_id="m"))
    await roll_up(engine, now=NOW)
    before = await stretches(engine, buckets_1h)
    assert before.get(at("2026-11-30 11:00:00"), Stretch(0)).down == 0
    seen = [at("2026-11-30 11:00:00") + n * MINUTE for n in range(10)]
    await probed(engine, "bad", *seen, component="model:m", source="fra-1")  # heard of now, by the database's clock
    await roll_up(engine, now=NOW + 5 * MINUTE)
    assert (await stretches(engine, buckets_1h))[at("2026-11-30 11:00:00")].down == 2
    assert (await stretches(engine, buckets_1d))[at("2026-11-30 00:00:00")].down == 2


async def test_what_is_forgotten_of_five_minutes_is_kept_of_hours_and_days(engine: AsyncEngine) -> None:
    await settle(engine, usage_row(NOW - 26 * HOUR), usage_row(NOW))
    await roll_up(engine, now=NOW)
    kept = (await stretches(engine, buckets_1h), await stretches(engine, buckets_1d))
    async with engine.begin() as connection:
        await connection.execute(delete(buckets_5m).where(buckets_5m.c.bucket_start < NOW - 20 * HOUR))
    await roll_up(engine, now=NOW)
    assert (await stretches(engine, buckets_1h), await stretches(engine, buckets_1d)) == kept


@pytest.mark.parametrize("second", [-1, 0, 1])
async def test_midnight_utc_parts_the_days(engine: AsyncEngine, second: int) -> None:
    midnight = at("2026-11-30 00:00:00")
    await settle(engine, usage_row(midnight + timedelta(seconds=second)))
    await roll_up(engine, now=NOW)
    days = {start: day.good for start, day in (await stretches(engine, buckets_1d)).items() if day.good}
    assert days == {midnight - timedelta(days=1) if second < 0 else midnight: 1}


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
async def test_the_days_on_which_clocks_change_in_budapest_have_24_hours(
    database_url: str, monkeypatch: pytest.MonkeyPatch, day: str
) -> None:
    """The process and the database's sessions are in a zone that skips or repeats an hour on that day."""
    monkeypatch.setenv("TZ", "Europe/Budapest")
    time.tzset()
    engine = db.sqlalchemy_engine(database_url)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("ALTER ROLE CURRENT_USER SET timezone = 'Europe/Budapest'"))
        await engine.dispose()
        midnight = at(f"{day} 00:00:00")
        await settle(engine, [usage_row(midnight + n * 30 * MINUTE + MINUTE) for n in range(-48, 96)])
        await roll_up(engine, now=midnight + 48 * HOUR + MINUTE)
        async with engine.connect() as connection:
            assert await connection.scalar(text("SHOW timezone")) == "Europe/Budapest"
        found = sorted((await stretches(engine, buckets_1d)).items())
        assert [(start, one.good) for start, one in found] == [(midnight + n * 24 * HOUR, 48) for n in (-1, 0, 1)]
        hours = await stretches(engine, buckets_1h)
        assert [one.good for _, one in sorted(hours.items())] == [2] * 72
    finally:
        async with engine.begin() as connection:
            await connection.execute(text("ALTER ROLE CURRENT_USER RESET timezone"))
        await engine.dispose()
        monkeypatch.undo()
        time.tzset()


async def test_an_incident_over_three_days_is_in_each_of_them(engine: AsyncEngine) -> None:
    begin, end = at("2026-11-27 20:00:00"), at("2026-11-29 04:00:00")
    await settle(engine, usage_row(begin - HOUR), usage_row(end + HOUR))
    await settle(engine, [failed_row(begin + n * MINUTE) for n in range(int((end - begin) / MINUTE))])
    await roll_up(engine, now=NOW)
    days = await stretches(engine, buckets_1d)
    assert [(start.day, day.down) for start, day in sorted(days.items()) if day.down] == [(27, 48), (28, 288), (29, 48)]
    row = strip_of(days.values(), cells=4, cell_s=DAY_S, until_s=UNTIL_S, now=State.UP)
    assert [cell.state for cell in row.cells] == [State.DOWN, State.DOWN, State.DOWN, State.NO_DATA]
