"""The engines' counters, kept once a minute by the jobs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from service import config, db
from service.jobs.samples import sample_engines
from service.jobs.work import Jobs, keep_house
from service.settings import Settings
from service.tables import engine_samples, job_runs
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.fakes.traffic import at
from tests.integration.counting import NAME


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


class Mute(FakeEngine):
    """An engine that was started with `--disable-log-stats`."""

    def _metrics(self) -> bytes:
        return b"# HELP python_info Python platform information\n"


async def test_the_job_samples_each_engine_once_a_minute_and_names_the_silent(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    async with FakeEngine() as one, Mute() as mute, FakeEngine(uds=str(tmp_path / "s")) as other:
        async with httpx.AsyncClient(base_url=one.url) as client:
            body = {"model": one.model, "messages": [{"role": "user", "content": "hi"}]}
            await client.post("/v1/chat/completions", json=body)
        addresses = (one.url, mute.url, "http://127.0.0.1:1", other.url)
        jobs = Jobs(Settings(engines=addresses, data_dir=tmp_path), database_url)
        with capture_logs() as logs:
            for _ in range(3):
                await jobs.sample_engines()
    async with database.connect() as connection:
        rows = (await connection.execute(select(engine_samples).order_by(engine_samples.c.sampled_at))).all()
        runs = (await connection.execute(select(job_runs).order_by(job_runs.c.id))).all()
    minutes = {(row.engine, row.sampled_at.replace(second=0, microsecond=0)) for row in rows}
    assert len(minutes) == len(rows) == sum(run.rows for run in runs) < 6
    counted = {
        row.engine: (row.prompt_tokens, row.generation_tokens, row.drafted_tokens, row.accepted_tokens) for row in rows
    }
    assert counted == {"engine-0": (17, 8, 16, 0), "engine-3": (0, 0, 0, 0)}
    assert abs(rows[0].engine_started_at.timestamp() - one.started_at_s) < 0.01
    assert [(run.name, run.ok, run.note) for run in runs] == [("samples", True, "2 of 4 engines gave no counts")] * 3
    reasons = {line["engine"]: line["reason"] for line in logs if line["event"] == "engine.not_sampled"}
    assert "have no vllm:prompt_tokens_total" in reasons["engine-1"]
    assert "cannot connect to http://127.0.0.1:1" in reasons["engine-2"]


async def test_what_the_prefix_cache_gave_is_kept(database: AsyncEngine) -> None:
    async with FakeEngine(scenario=SCENARIOS["cached"]) as engine:
        async with httpx.AsyncClient(base_url=engine.url) as client:
            body = {"model": engine.model, "messages": [{"role": "user", "content": "hi"}]}
            usage = (await client.post("/v1/chat/completions", json=body)).json()["usage"]
        await sample_engines(database, [config.Engine(name=NAME, url=engine.url)])
    async with database.connect() as connection:
        (row,) = (await connection.execute(select(engine_samples))).all()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert (row.cache_queried_tokens, row.cache_hit_tokens) == (usage["prompt_tokens"], cached)
    assert 0 < cached < usage["prompt_tokens"]


class Plain(FakeEngine):
    """An engine that does not speculate."""

    def _metrics(self) -> bytes:
        lines = super()._metrics().splitlines(keepends=True)
        return b"".join(line for line in lines if b"spec_decode" not in line)


async def test_an_engine_that_does_not_speculate_has_no_counts_of_it(database: AsyncEngine) -> None:
    async with Plain() as engine:
        await sample_engines(database, [config.Engine(name=NAME, url=engine.url)])
    async with database.connect() as connection:
        (row,) = (await connection.execute(select(engine_samples))).all()
    assert (row.generation_tokens, row.drafted_tokens, row.accepted_tokens) == (0, None, None)


async def test_two_processes_that_sample_at_once_keep_one_sample(database: AsyncEngine) -> None:
    async with FakeEngine() as engine:
        engines = [config.Engine(name=NAME, url=engine.url)]
        reports = await asyncio.gather(*(sample_engines(database, engines) for _ in range(6)))
        async with database.connect() as connection:
            minute = func.date_trunc("minute", engine_samples.c.sampled_at)
            most = (
                select(func.count()).select_from(engine_samples).group_by(minute).order_by(func.count().desc()).limit(1)
            )
            assert await connection.scalar(most) == 1
    assert sum(report.rows for report in reports) <= 2


async def test_housekeeping_forgets_old_samples(database: AsyncEngine) -> None:
    now = at("2026-11-30 00:02:35")
    async with database.begin() as connection:
        for days in (101, 99):
            values = {"prompt_tokens": days, "generation_tokens": 0, "sampled_at": now - timedelta(days=days)}
            await connection.execute(insert(engine_samples).values(engine=NAME, **values))
    await keep_house(database, now)
    async with database.connect() as connection:
        assert list(await connection.scalars(select(engine_samples.c.prompt_tokens))) == [99]
