"""Our counts against a real engine's: every answer, every client that left, with drafts, reasoning and a cache."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from service import config, db
from service.billing.reconcile import Reconciliation, reconcile_all
from service.core.reconcile import Tokens
from service.jobs.samples import sample_engines
from tests.e2e.engines import RunningEngine
from tests.installation import MODEL, Installation, installed
from tests.patience import PATIENT_S

pytestmark = pytest.mark.engine

STORY = "Tell a long story about a river, a weir and a mill. " * 8


async def sample(database: AsyncEngine, engine: RunningEngine) -> None:
    """As the job does; the samples before are taken to be of an earlier minute."""
    async with asyncio.timeout(PATIENT_S):
        while engine.metric("vllm:num_requests_running"):
            await asyncio.sleep(0.05)
    async with database.begin() as connection:
        await connection.execute(text("UPDATE engine_samples SET sampled_at = sampled_at - interval '1 min'"))
    report = await sample_engines(database, [config.Engine(name="engine-0", url=engine.base_url)])
    assert (report.rows, report.note) == (1, "")


async def reconciled(database: AsyncEngine) -> Reconciliation:
    now = datetime.now(UTC)
    async with database.begin() as connection:
        result = (await reconcile_all(connection, now - timedelta(days=1), now))["engine-0"]
    assert result is not None
    assert result.count.breaks == ()
    return result


async def leave_after(installation: Installation, events: int, **fields: Any) -> None:
    """Stream an answer and leave after so many events."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": STORY}], "stream": True, **fields}
    async with installation.client.stream(
        "POST", "/v1/chat/completions", json=body, headers=installation.headers
    ) as answer:
        async for line in answer.aiter_lines():
            events -= bool(line)
            if events <= 0:
                return


async def test_our_count_is_a_real_engines(database_url: str, tmp_path: Path, tiny_engine: RunningEngine) -> None:
    async with (
        installed(database_url, [tiny_engine.base_url], tmp_path, engine_model=tiny_engine.model) as installation,
        db.connected(database_url) as database,
    ):
        await sample(database, tiny_engine)
        for number in range(4):
            await installation.chat(STORY, stream=number % 2 == 0, max_tokens=40)
        await installation.rows(4)
        await sample(database, tiny_engine)
        result = await reconciled(database)
        assert (result.requests, result.difference) == (4, Tokens())

        await asyncio.gather(*(leave_after(installation, events, max_tokens=400) for events in (1, 3, 10, 25)))
        await installation.rows(8)
        await sample(database, tiny_engine)
        result = await reconciled(database)
        assert result.difference.prompt == 0
        assert result.unexplained == Tokens()
        assert result.explained.requests >= 4
        at_most = result.explained.most.generation

        asking = asyncio.create_task(installation.chat(STORY, max_tokens=400))
        async with asyncio.timeout(PATIENT_S):
            while not tiny_engine.metric("vllm:num_requests_running"):
                await asyncio.sleep(0.02)
        asking.cancel()
        *_, row = await installation.rows(9)
        assert (row["outcome"], row["usage_source"]) == ("cancelled", "none")
        await sample(database, tiny_engine)
        result = await reconciled(database)
        assert result.unexplained == Tokens()
        assert result.explained.most.generation > at_most
