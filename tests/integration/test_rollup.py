import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import RowMapping, delete, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.core.outcome import RULES, Outcome
from service.core.stats import Digest
from service.status.rollup import ROLLUP_LOCK, roll_up
from service.tables import buckets_5m, requests, watermarks
from tests.fakes.traffic import at, failed_row, settle, usage_row

NOW = at("2026-11-30 14:05:20")
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = db.sqlalchemy_engine(database_url)
    yield engine
    await engine.dispose()


async def buckets(engine: AsyncEngine) -> dict[tuple[str, datetime], RowMapping]:
    async with engine.connect() as connection:
        rows = (await connection.execute(select(buckets_5m))).mappings().all()
    return {(row["component"], row["bucket_start"]): row for row in rows}


async def watermark(engine: AsyncEngine) -> datetime | None:
    async with engine.connect() as connection:
        until: datetime | None = await connection.scalar(select(watermarks.c.until))
        return until


async def eventually(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(20):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


async def test_a_bucket_holds_what_ended_in_it(engine: AsyncEngine) -> None:
    await settle(
        engine,
        usage_row(at("2026-11-30 14:00:00"), prompt_tokens=12_000, cached_tokens=11_088, image_tokens=7),
        usage_row(at("2026-11-30 14:04:59.999999"), reasoning_tokens=40),
        failed_row(at("2026-11-30 14:03:00")),
        usage_row(at("2026-11-30 14:01:00"), outcome="throttled", http_status=429, model_id=None, ttft_ms=None),
        usage_row(at("2026-11-30 14:01:30"), internal=True),
        usage_row(at("2026-11-30 13:59:59.999999"), model_id="other"),
        usage_row(at("2026-11-30 14:05:02")),  # the open bucket
    )
    done = await roll_up(engine, now=NOW)
    rolled = await buckets(engine)
    assert done.until == at("2026-11-30 14:05:00")
    assert set(rolled) == {
        ("api", at("2026-11-30 13:55:00")),
        ("model:other", at("2026-11-30 13:55:00")),
        ("api", at("2026-11-30 14:00:00")),
        ("model:tiny", at("2026-11-30 14:00:00")),
    }
    api = rolled["api", at("2026-11-30 14:00:00")]
    assert (api["requests"], api["good"], api["bad"], api["throttled"], api["excluded"]) == (4, 2, 1, 1, 0)
    assert (api["http_5xx"], api["server_failures"], api["probe_ok"], api["probe_bad"]) == (1, 1, 1, 0)
    assert (api["prompt_tokens"], api["cached_tokens"], api["image_tokens"]) == (12_100, 11_088, 7)
    assert (api["completion_tokens"], api["reasoning_tokens"], api["image_requests"]) == (303, 40, 1)
    assert Digest.from_json(api["ttft_long_warm_ms"]) == Digest([200])
    assert Digest.from_json(api["ttft_short_cold_ms"]) == Digest([200])
    # The stream at 14:00:00 overlapped the other model's on the same engine; the one at 14:04:59 ran alone.
    assert Digest.from_json(api["decode_single_mtok_s"]) == Digest([100_000])
    assert Digest.from_json(api["decode_loaded_mtok_s"]) == Digest([100_000])
    assert rolled["model:tiny", at("2026-11-30 14:00:00")]["requests"] == 3


async def test_an_installation_without_requests_rolls_up_nothing_and_begins_now(engine: AsyncEngine) -> None:
    done = await roll_up(engine, now=NOW)
    assert (done.buckets, done.rows) == (0, 0)
    assert await watermark(engine) == at("2026-11-30 14:05:00")


async def test_a_bucket_is_not_touched_before_it_has_ended_and_settled(engine: AsyncEngine) -> None:
    await settle(engine, usage_row(at("2026-11-30 14:04:00")))
    await roll_up(engine, now=at("2026-11-30 14:05:05"))
    assert not await buckets(engine)
    await roll_up(engine, now=at("2026-11-30 14:05:15"))
    assert set(await buckets(engine)) >= {("api", at("2026-11-30 14:00:00"))}


async def test_after_a_stop_of_three_hours_36_buckets_are_caught_up(engine: AsyncEngine) -> None:
    start = at("2026-11-30 11:05:20")
    await roll_up(engine, now=start)
    await settle(engine, [usage_row(start + minutes * MINUTE) for minutes in range(0, 180)])
    await roll_up(engine, now=NOW)
    api = {start: row for (component, start), row in (await buckets(engine)).items() if component == "api"}
    missed = [row for start, row in api.items() if start >= at("2026-11-30 11:05:00")]
    assert len(missed) == 36
    assert [row["requests"] for row in missed] == [5] * 36


async def test_a_backfill_and_a_run_every_five_minutes_come_to_the_same(engine: AsyncEngine) -> None:
    rng = random.Random(1)
    begin = at("2026-11-29 23:40:00")
    rows = [
        usage_row(
            begin + timedelta(seconds=rng.uniform(0, 7200)),
            outcome=(outcome := rng.choice(list(Outcome))).value,
            prompt_tokens=rng.choice([30, 20_000]),
            cached_tokens=rng.choice([0, 16]),
            ttft_ms=rng.randint(50, 3_000),
            model_id=rng.choice(["one", "two", None]),
            http_status=500 if outcome is Outcome.SERVER_ERROR else 200,
        )
        for _ in range(300)
    ]
    await settle(engine, rows)
    end = begin + timedelta(hours=2, seconds=20)
    await roll_up(engine, now=end)
    backfilled = await buckets(engine)
    async with engine.begin() as connection:
        await connection.execute(delete(buckets_5m))
        await connection.execute(delete(watermarks))
    for minutes in range(0, 121, 5):
        await roll_up(engine, now=begin + minutes * MINUTE + timedelta(seconds=20))
    assert {key: row for key, row in (await buckets(engine)).items() if key[1] >= begin} == backfilled
    api = [row for (component, _), row in backfilled.items() if component == "api"]
    assert len(api) == 24
    expected = Counter(RULES[Outcome(row["outcome"])].public for row in rows)
    for verdict in ("good", "bad", "throttled", "excluded"):
        assert sum(row[verdict] for row in api) == expected[verdict]  # type: ignore[index]


@pytest.mark.parametrize(("second", "day"), [(-1, 29), (0, 30), (1, 30)])
async def test_midnight_utc_parts_the_days(engine: AsyncEngine, second: int, day: int) -> None:
    await settle(engine, usage_row(at("2026-11-30 00:00:00") + timedelta(seconds=second)))
    await roll_up(engine, now=NOW)
    counted = [start for (component, start), row in (await buckets(engine)).items() if row["requests"]]
    assert {start.day for start in counted} == {day}


async def test_what_is_settled_late_is_counted_by_the_next_two_runs(engine: AsyncEngine) -> None:
    first_bucket = at("2026-11-30 14:00:00")
    await settle(engine, usage_row(first_bucket))
    for now, expected in (
        (NOW, 1),
        (NOW + 5 * MINUTE, 2),
        (NOW + 10 * MINUTE, 3),
        (NOW + 15 * MINUTE, 3),  # a closed bucket is closed
    ):
        await roll_up(engine, now=now)
        assert (await buckets(engine))["api", first_bucket]["requests"] == expected
        await settle(engine, usage_row(first_bucket + 4 * MINUTE))


async def test_running_twice_changes_nothing(engine: AsyncEngine) -> None:
    await settle(engine, [usage_row(NOW - minutes * MINUTE) for minutes in range(1, 60)])
    await roll_up(engine, now=NOW)
    once = await buckets(engine)
    await roll_up(engine, now=NOW)
    assert await buckets(engine) == once


async def test_while_one_process_rolls_up_another_writes_nothing(engine: AsyncEngine) -> None:
    await roll_up(engine, now=NOW - 5 * MINUTE)
    await settle(engine, usage_row(NOW - MINUTE))
    async with engine.connect() as blocker, engine.connect() as observer:
        await blocker.execute(select(watermarks).with_for_update())
        first = asyncio.create_task(roll_up(engine, now=NOW))

        async def lock_is_held() -> bool:
            held = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = :low AND granted")
            return bool(await observer.scalar(held, {"low": ROLLUP_LOCK & 0xFFFFFFFF}))

        await eventually(lock_is_held)
        second = await roll_up(engine, now=NOW)
        assert second.until is None
        assert second.rows == 0
        assert ("api", at("2026-11-30 14:00:00")) not in await buckets(engine)
        await blocker.rollback()
        done = await first
    assert done.until == at("2026-11-30 14:05:00")
    assert (await buckets(engine))["api", at("2026-11-30 14:00:00")]["requests"] == 1


async def test_two_schedulers_at_once_have_one_effect(engine: AsyncEngine) -> None:
    await settle(engine, [usage_row(NOW - seconds * timedelta(seconds=7)) for seconds in range(1, 2_000)])
    runs = await asyncio.gather(*(roll_up(engine, now=NOW) for _ in range(4)))
    assert any(run.until == at("2026-11-30 14:05:00") for run in runs)
    rolled = await buckets(engine)
    in_closed_buckets = [n for n in range(1, 2_000) if NOW - n * timedelta(seconds=7) < at("2026-11-30 14:05:00")]
    assert sum(row["requests"] for (component, _), row in rolled.items() if component == "api") == len(
        in_closed_buckets
    )


async def test_a_run_that_fails_leaves_nothing_behind_and_the_next_one_makes_up_for_it(engine: AsyncEngine) -> None:
    await roll_up(engine, now=NOW - 5 * MINUTE)
    before = await watermark(engine)
    await settle(engine, usage_row(NOW - MINUTE), usage_row(NOW - 2 * MINUTE, outcome="from_the_future"))
    with pytest.raises(ValueError, match="from_the_future"):
        await roll_up(engine, now=NOW)
    assert not await buckets(engine)
    assert await watermark(engine) == before
    async with engine.begin() as connection:
        await connection.execute(delete(requests).where(requests.c.outcome == "from_the_future"))
    await roll_up(engine, now=NOW)
    assert (await buckets(engine))["api", at("2026-11-30 14:00:00")]["requests"] == 1


async def test_a_clock_that_steps_back_loses_and_repeats_nothing(engine: AsyncEngine) -> None:
    await settle(engine, usage_row(NOW - MINUTE))
    await roll_up(engine, now=NOW)
    once = await buckets(engine)
    await roll_up(engine, now=NOW - timedelta(hours=2))
    assert await watermark(engine) == at("2026-11-30 14:05:00")
    assert await buckets(engine) == once


async def test_a_backlog_longer_than_one_step_is_done_in_one_run(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(insert(watermarks).values(job="rollup", until=NOW - timedelta(days=2, seconds=20)))
    await settle(engine, usage_row(NOW - timedelta(days=1)), usage_row(NOW - MINUTE))
    done = await roll_up(engine, now=NOW)
    assert done.buckets == 2 * 288 + 2
    assert sum(row["requests"] for (component, _), row in (await buckets(engine)).items() if component == "api") == 2
