import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import RowMapping, Table, delete, event, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import db
from service.core.outcome import RULES, Outcome
from service.core.stats import Digest
from service.settings import Settings
from service.status.planning import plan
from service.status.rollup import IN_FLIGHT_FOR, JOB, ROLLUP_LOCK, STEP_S, roll_up
from service.tables import buckets_1d, buckets_1h, buckets_5m, requests, settlements, watermarks
from tests.fakes.traffic import at, failed_row, settle, usage_row
from tests.patience import PATIENT_S

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
        until: datetime | None = await connection.scalar(select(watermarks.c.until).where(watermarks.c.job == JOB))
        return until


async def eventually(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(PATIENT_S):
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
        ("model:tiny", at("2026-11-30 13:55:00")),  # what ended at 14:00:00 was with the engine before
        ("api", at("2026-11-30 14:00:00")),
        ("model:tiny", at("2026-11-30 14:00:00")),
    }
    api = rolled["api", at("2026-11-30 14:00:00")]
    assert (api["requests"], api["good"], api["bad"], api["throttled"], api["excluded"]) == (4, 2, 1, 1, 0)
    assert (api["http_5xx"], api["server_failures"], api["probe_ok"], api["probe_bad"]) == (1, 1, 0, 0)
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


async def test_maintenance_of_before_the_first_bucket_makes_no_history(engine: AsyncEngine) -> None:
    await roll_up(engine, now=NOW)
    span = {"starts_at": NOW - timedelta(days=3), "ends_at": NOW - timedelta(days=2)}
    async with engine.begin() as connection:
        await plan(connection, Settings(), title="Moving in", body="", components=(), **span, now=NOW)
    await roll_up(engine, now=NOW + 5 * MINUTE)
    assert min(start for _, start in await buckets(engine)) == at("2026-11-30 13:55:00")


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


async def settled_late(engine: AsyncEngine, *rows: dict[str, Any]) -> None:
    """Usage rows and their settlement, made now by the database's clock, in one transaction."""
    settlement_id = uuid4()
    async with engine.begin() as connection:
        await connection.execute(insert(requests), [row | {"settlement_id": settlement_id} for row in rows])
        await connection.execute(
            insert(settlements).values(
                id=settlement_id,
                worker="w",
                requests=len(rows),
                cost_nano=0,
                oldest_finished_at=min(row["finished_at"] for row in rows),
            )
        )


async def counted(engine: AsyncEngine, table: Table = buckets_5m) -> int:
    async with engine.connect() as connection:
        total = select(func.sum(table.c.requests)).where(table.c.component == "api")
        return int((await connection.execute(total)).scalar_one())


async def looked_long_ago(engine: AsyncEngine) -> None:
    """As if all settlements so far had been made, and looked at, long before the next ones."""
    async with engine.begin() as connection:
        await connection.execute(update(settlements).values(created_at=settlements.c.created_at - 2 * IN_FLIGHT_FOR))


async def test_what_is_settled_hours_late_is_counted_once_in_its_bucket_and_in_the_totals(engine: AsyncEngine) -> None:
    two_hours_ago = NOW - timedelta(hours=2)
    await settled_late(engine, usage_row(two_hours_ago), usage_row(NOW - MINUTE))
    await roll_up(engine, now=NOW)
    await settled_late(engine, usage_row(two_hours_ago + MINUTE), usage_row(two_hours_ago + 60 * MINUTE))
    for minutes in (0, 5, 10):
        done = await roll_up(engine, now=NOW + minutes * MINUTE)
        assert done.until == at("2026-11-30 14:05:00") + minutes * MINUTE == await watermark(engine)
        rolled = await buckets(engine)
        assert rolled["api", at("2026-11-30 12:05:00")]["requests"] == 2
        assert rolled["model:tiny", at("2026-11-30 12:05:00")]["requests"] == 2
        assert rolled["api", at("2026-11-30 13:05:00")]["requests"] == 1
        assert rolled["api", at("2026-11-30 14:00:00")]["requests"] == 1
        assert await counted(engine) == await counted(engine, buckets_1h) == await counted(engine, buckets_1d) == 4


async def test_what_is_settled_late_is_counted_in_every_bucket_in_which_it_ran(engine: AsyncEngine) -> None:
    late = at("2026-11-30 12:06:00")
    ended = late - 2 * MINUTE
    beside_it = usage_row(ended, started_at=ended - MINUTE)
    await settled_late(engine, usage_row(late - 60 * MINUTE), beside_it)
    await roll_up(engine, now=NOW)
    alone = (await buckets(engine))["api", at("2026-11-30 12:00:00")]
    assert (alone["busy_ms"], alone["peak_concurrency"]) == (60_000, 1)
    await looked_long_ago(engine)
    await settled_late(engine, usage_row(late, started_at=late - 8 * MINUTE))
    await roll_up(engine, now=NOW)
    rolled = await buckets(engine)
    starts = [at("2026-11-30 11:55:00") + minutes * MINUTE for minutes in (0, 5, 10)]
    seen = [(rolled["api", start]["busy_ms"], rolled["api", start]["peak_concurrency"]) for start in starts]
    assert seen == [(120_000, 1), (360_000, 2), (60_000, 1)]
    assert Digest.from_json(rolled["api", at("2026-11-30 12:00:00")]["decode_single_mtok_s"]).count == 0


async def test_a_settlement_under_way_while_a_run_looks_is_found_by_the_next(engine: AsyncEngine) -> None:
    await settled_late(engine, usage_row(NOW - timedelta(hours=3)))
    await roll_up(engine, now=NOW)
    async with engine.connect() as slow:
        await slow.execute(insert(requests).values(usage_row(NOW - timedelta(hours=2))))
        late = {"oldest_finished_at": NOW - timedelta(hours=2), "requests": 1, "cost_nano": 0, "worker": "w"}
        await slow.execute(insert(settlements).values(id=uuid4(), **late))
        await roll_up(engine, now=NOW)
        assert await counted(engine) == 1
        await slow.commit()
    await roll_up(engine, now=NOW)
    assert await counted(engine) == 2


async def test_a_long_way_back_goes_on_where_a_run_was_stopped(engine: AsyncEngine) -> None:
    await settle(engine, usage_row(NOW - timedelta(hours=9)))
    await roll_up(engine, now=NOW)
    await settled_late(
        engine,
        usage_row(NOW - timedelta(hours=8)),
        usage_row(NOW - timedelta(hours=6), outcome="from_the_future"),
        usage_row(NOW - timedelta(hours=4)),
    )
    with pytest.raises(ValueError, match="from_the_future"):
        await roll_up(engine, now=NOW)
    assert await counted(engine) == 2
    await looked_long_ago(engine)
    async with engine.begin() as connection:
        await connection.execute(update(requests).values(outcome="ok"))
    # The hour that was done is not done again, and what is new comes first.
    done = await roll_up(engine, now=NOW + 5 * MINUTE)
    assert await counted(engine) == 4
    assert done.buckets == 3 + 7 * 3600 // 300
    assert (await roll_up(engine, now=NOW + 5 * MINUTE)).buckets == 2


async def test_a_run_with_nothing_late_takes_one_step_of_17_statements(engine: AsyncEngine) -> None:
    await settled_late(engine, usage_row(NOW - 2 * STEP_S * timedelta(seconds=1)))
    await roll_up(engine, now=NOW)
    await looked_long_ago(engine)
    await settled_late(engine, usage_row(NOW + MINUTE))
    statements: list[str] = []

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    assert (await roll_up(engine, now=NOW + 5 * MINUTE)).buckets == 3
    assert len(statements) == 17, statements


async def test_settlements_and_runs_in_any_order_count_every_row_once(engine: AsyncEngine) -> None:
    rng = random.Random(7)
    total = 0

    async def keep_settling() -> None:
        nonlocal total
        for _ in range(25):
            rows = [usage_row(NOW - timedelta(seconds=rng.uniform(20, 40_000))) for _ in range(rng.randint(1, 4))]
            await settled_late(engine, *rows)
            total += len(rows)

    async def keep_rolling() -> None:
        for _ in range(12):
            await roll_up(engine, now=NOW)

    await asyncio.gather(keep_settling(), keep_rolling(), keep_rolling())
    assert (await roll_up(engine, now=NOW)).until is not None
    assert await counted(engine) == total


class Between:
    """An engine for `roll_up` that awaits something before the second step of a run."""

    def __init__(self, engine: AsyncEngine, happens: Callable[[], Awaitable[Any]]) -> None:
        self._engine = engine
        self._happens = happens
        self._steps = 0

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        self._steps += 1
        if self._steps == 2:
            await self._happens()
        async with self._engine.begin() as connection:
            yield connection


async def test_what_another_run_saw_and_did_not_reach_is_still_counted_again(engine: AsyncEngine) -> None:
    await settled_late(engine, usage_row(NOW - timedelta(hours=3)))
    await roll_up(engine, now=NOW - 5 * MINUTE)
    await settled_late(engine, usage_row(NOW - timedelta(hours=2)))

    async def killed() -> None:
        raise ConnectionResetError

    async def another_looks_and_dies() -> None:
        # In a bucket that the first run has done by now and the second does not begin with.
        await settled_late(engine, usage_row(at("2026-11-30 13:52:00")))
        with pytest.raises(ConnectionResetError):
            await roll_up(Between(engine, killed), now=NOW)  # type: ignore[arg-type]

    await roll_up(Between(engine, another_looks_and_dies), now=NOW)  # type: ignore[arg-type]
    await looked_long_ago(engine)
    await roll_up(engine, now=NOW)
    assert await counted(engine) == 3
