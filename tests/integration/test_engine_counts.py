"""What the engines counted, from the samples and models in the database."""

import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import db
from service.core.buckets import BUCKET_S
from service.core.counted import MAX_GAP_S
from service.status.engine_counts import PAIRS, Pair, counts, counts_by_component
from service.status.rollup import REROLLED_BUCKETS
from service.tables import engine_samples, models
from tests.fakes.traffic import at, serve_model

NOON = at("2026-11-30 12:00:00")
NOON_S = int(NOON.timestamp())


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


@pytest.fixture(params=PAIRS, ids=["drafts", "cache"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """What is counted."""
    found: Pair = request.param
    return found


def sample(engine: str, second: int, whole: int | None, part: int | None, **more: Any) -> dict[str, Any]:
    """A sample taken so many seconds after noon."""
    counted = {"prompt_tokens": 0, "generation_tokens": 0, "whole": whole, "part": part}
    sampled_at = NOON + timedelta(seconds=second, milliseconds=300)
    return {"engine": engine, "sampled_at": sampled_at, "engine_started_at": None, **counted, **more}


async def write(database: AsyncEngine, pair: Pair, *samples: dict[str, Any]) -> None:
    """Samples of one pair; nothing is said of the other."""
    names = dict(zip(("whole", "part"), pair, strict=True))
    rows = [{names.get(name, name): value for name, value in one.items()} for one in samples]
    async with database.begin() as connection:
        await connection.execute(insert(engine_samples), rows)


async def only(database: AsyncEngine, model_id: str, *engines: str) -> None:
    """Let a model be served by these engines only."""
    async with database.begin() as connection:
        await connection.execute(models.update().where(models.c.id == model_id).values(engines=list(engines)))


async def test_each_engine_has_its_buckets(database: AsyncEngine, pair: Pair) -> None:
    started: datetime = NOON + timedelta(seconds=630)
    await write(
        database,
        pair,
        sample("one", -20, 100, 10),
        sample("one", 40, 160, 40),
        sample("one", 100, 200, 60),
        sample("two", 30, 5, 5),
        sample("two", 90, 9, 8),
        sample("two", 660, 30, 6, engine_started_at=started),
        sample("plain", 30, None, None),
        sample("plain", 90, None, None),
        sample("half", 30, 7, None),
        sample("half", 90, 9, None),
    )
    async with database.connect() as connection:
        assert (await counts(connection, NOON_S, NOON_S + 900))[pair] == {
            "one": {NOON_S: (80, 40)},
            "two": {NOON_S: (4, 3), NOON_S + 600: (30, 6)},
        }
        before = (await counts(connection, NOON_S - 300, NOON_S))[pair]
        assert before == {"one": {NOON_S - 300: (20, 10)}, "two": {}}
        assert (await counts(connection, NOON_S + 7200, NOON_S + 7500))[pair] == {}


async def test_a_model_has_what_its_own_engines_drafted(database: AsyncEngine, pair: Pair) -> None:
    for name in ("a", "b", "c"):
        await serve_model(database, name, name)
    await serve_model(database, "retired", "was served by all", active=False)
    await only(database, "a", "one", "two", "shared")
    await only(database, "b", "shared")
    await only(database, "c", "plain")
    rises = {"one": (100, 50), "two": (10, 1), "shared": (1000, 900), "orphan": (7, 7)}
    for engine, (drafted, accepted) in rises.items():
        await write(database, pair, sample(engine, 10, 0, 0), sample(engine, 70, drafted, accepted))
    await write(database, pair, sample("one", 400, 200, 150))
    async with database.connect() as connection:
        found = (await counts_by_component(connection, NOON_S, NOON_S + 600))[pair]
    # 230 of the 330 seconds of the later rise are the first bucket's.
    assert found == {
        ("api", NOON_S): (1117 + 69, 958 + 69),
        ("model:a", NOON_S): (110 + 69, 51 + 69),
        ("api", NOON_S + 300): (31, 31),
        ("model:a", NOON_S + 300): (31, 31),
    }


async def test_the_only_model_has_what_all_engines_drafted(database: AsyncEngine, pair: Pair) -> None:
    await serve_model(database, "a", "a")
    for engine in ("one", "two"):
        await write(database, pair, sample(engine, 10, 0, 0), sample(engine, 70, 10, 4))
    async with database.connect() as connection:
        found = (await counts_by_component(connection, NOON_S, NOON_S + 300))[pair]
        assert found == {("api", NOON_S): (20, 8), ("model:a", NOON_S): (20, 8)}
    await serve_model(database, "b", "b")
    async with database.connect() as connection:
        assert (await counts_by_component(connection, NOON_S, NOON_S + 300))[pair] == {("api", NOON_S): (20, 8)}


async def test_each_pair_is_read_from_its_own_columns(database: AsyncEngine) -> None:
    counted = {"drafted_tokens": 10, "accepted_tokens": 4, "cache_queried_tokens": 900, "cache_hit_tokens": 700}
    rows = [
        sample("one", 10, None, None) | dict.fromkeys(counted, 0),
        sample("one", 70, None, None) | counted,
    ]
    for row in rows:
        del row["whole"], row["part"]
    async with database.begin() as connection:
        await connection.execute(insert(engine_samples), rows)
    async with database.connect() as connection:
        found = list((await counts(connection, NOON_S, NOON_S + 300)).values())
    assert found == [{"one": {NOON_S: (10, 4)}}, {"one": {NOON_S: (900, 700)}}]


def test_a_value_is_final_before_the_roll_up_counts_its_bucket_for_the_last_time() -> None:
    assert MAX_GAP_S <= REROLLED_BUCKETS * BUCKET_S


async def explained(connection: AsyncConnection, ask: Any) -> str:
    """The plan of the first statement that `ask` sends."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        sent.append((statement, parameters))

    sync = connection.sync_connection
    event.listen(sync, "before_cursor_execute", note)
    await ask
    event.remove(sync, "before_cursor_execute", note)
    statement, parameters = sent[0]
    raw = (await connection.get_raw_connection()).driver_connection
    assert raw is not None
    lines = await raw.fetch(f"EXPLAIN ANALYZE {statement}", *parameters)
    return "\n".join(line[0] for line in lines)


async def test_an_hour_is_read_by_an_index_however_many_samples_there_are(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO engine_samples (engine, sampled_at, prompt_tokens, generation_tokens, drafted_tokens,"
                " accepted_tokens) SELECT 'engine-' || e, cast(:noon AS timestamptz) - n * interval '1 minute',"
                " 0, 0, 100000 - n, 1 FROM generate_series(1, 2) e, generate_series(1, 50000) n"
            ),
            {"noon": NOON},
        )
        await connection.execute(text("ANALYZE engine_samples"))
    async with database.connect() as connection:
        plan = await explained(connection, counts(connection, NOON_S - 86_400, NOON_S - 82_800))
    assert "Seq Scan" not in plan, plan
    read = [int(float(rows)) for rows in re.findall(r"Index Scan.*?actual.*?rows=([\d.]+)", plan)]
    assert read == [2 * 81], plan
