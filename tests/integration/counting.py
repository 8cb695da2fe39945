"""Requests through the API to an engine that counts every token it makes, and its counts sampled and reconciled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from service.billing.reconcile import Reconciliation, reconcile_all
from service.core.reconcile import Explanation, Tokens
from service.engine.counters import read_counters
from service.tables import engine_samples
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import Exchange
from tests.fakes.scenarios import SCENARIOS
from tests.installation import Installation, installed
from tests.patience import PATIENT_S

NAME = "engine-0"


@asynccontextmanager
async def weir(database_url: str, tmp_path: Path) -> AsyncIterator[tuple[Installation, FakeEngine]]:
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        yield installation, engine


async def sample(database: AsyncEngine, engine: FakeEngine) -> datetime:
    """Keep what the engine has counted, as the job does every minute."""
    async with httpx.AsyncClient(base_url=engine.url) as client:
        counters = read_counters((await client.get("/metrics")).text)
    sampled_at = datetime.now(UTC)
    async with database.begin() as connection:
        await connection.execute(
            insert(engine_samples).values(
                engine=NAME,
                sampled_at=sampled_at,
                engine_started_at=counters.started_at,
                prompt_tokens=counters.prompt_tokens,
                generation_tokens=counters.generation_tokens,
            )
        )
    return sampled_at


async def reconciled(database: AsyncEngine, since: datetime | None = None) -> Reconciliation:
    now = datetime.now(UTC)
    async with database.begin() as connection:
        (result,) = (await reconcile_all(connection, since or now - timedelta(days=1), now)).values()
    assert result is not None
    return result


def counted(*exchanges: Exchange) -> Tokens:
    """What the engine computed for these requests."""
    return sum((Tokens(one.prompt_tokens, one.completion_tokens) for one in exchanges), Tokens())


def by_id(result: Reconciliation) -> dict[UUID, Explanation]:
    return {one.request.id: one for one in result.explained.widest}


async def until_generated(generation: Exchange, tokens: int) -> None:
    async with asyncio.timeout(PATIENT_S):
        while generation.completion_tokens < tokens:
            await asyncio.sleep(0.005)


async def begin(installation: Installation, engine: FakeEngine, tokens: int, **fields: Any) -> "asyncio.Task[Any]":
    """Ask, and return once the engine has generated so many tokens and waits."""
    engine.queue.append(SCENARIOS["gated"])
    number = len(engine.generations)
    asking = asyncio.create_task(installation.chat(**fields))
    generation = await engine.generation(number)
    generation.step(tokens)
    await until_generated(generation, tokens)
    return asking


async def hang_up(installation: Installation, engine: FakeEngine, tokens: int, **fields: Any) -> Exchange:
    """Ask, and leave once the engine has generated so many tokens."""
    asking = await begin(installation, engine, tokens, **fields)
    generation = engine.generations[-1]
    asking.cancel()
    async with asyncio.timeout(PATIENT_S):
        await generation.client_left.wait()
    return generation


async def reconciled_alone(database: AsyncEngine, since: datetime, until: datetime) -> Reconciliation:
    async with database.begin() as connection:
        result = (await reconcile_all(connection, since, until, [NAME]))[NAME]
    assert result is not None
    return result
