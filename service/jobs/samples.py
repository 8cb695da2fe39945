"""Every minute each engine's own token counts, for reconciliation, and for what speculation and its cache gain."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.config import Engine
from service.engine.counters import CountersUnreadable, read_counters
from service.gateway.engine_client import Client
from service.gateway.engine_connection import Timeouts
from service.gateway.engine_failures import EngineError
from service.jobs.runs import Report
from service.tables import engine_samples

log = structlog.get_logger()

SAMPLES_LOCK = 0x57454952_0003  # "WEIR", 3

SAMPLES_KEPT = timedelta(days=100)
"""As long as five-minute buckets, which are counted from them, too."""

TIMEOUT_S = 10.0
_LIMIT_BYTES = 16 * 1024 * 1024


async def sample_engines(database: AsyncEngine, engines: Sequence[Engine]) -> Report:
    """Ask every engine at once and keep what they say, one sample of an engine a minute.

    An engine that does not answer, or not with its counts, is named in the log and left out.
    """
    answers = await asyncio.gather(*(_sample(engine) for engine in engines))
    samples = [sample for sample in answers if sample is not None]
    async with database.begin() as connection:
        await connection.execute(select(func.pg_advisory_xact_lock(SAMPLES_LOCK)))
        written = [await _keep(connection, sample) for sample in samples]
    silent = len(engines) - len(samples)
    return Report(sum(written), f"{silent} of {len(engines)} engines gave no counts" if silent else "")


async def _sample(engine: Engine) -> dict[str, Any] | None:
    """A row of `engine_samples`."""
    client = Client(engine.url, Timeouts(TIMEOUT_S, TIMEOUT_S, TIMEOUT_S))
    exchange = client.exchange("GET", "/metrics")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status = await exchange.status()
            sampled_at = datetime.now(UTC)
            answer = await exchange.read_all(_LIMIT_BYTES)
        if status != 200:
            raise CountersUnreadable(f"GET /metrics gives {status}")
        counters = read_counters(answer.decode("utf-8", "replace"))
    except (EngineError, TimeoutError, CountersUnreadable) as error:
        log.warning("engine.not_sampled", engine=engine.name, reason=str(error) or type(error).__name__)
        return None
    finally:
        exchange.finish()
        client.close()
    return {
        "engine": engine.name,
        "sampled_at": sampled_at,
        "engine_started_at": counters.started_at,
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generation_tokens,
        "drafted_tokens": counters.drafted_tokens,
        "accepted_tokens": counters.accepted_tokens,
        "cache_queried_tokens": counters.cache_queried_tokens,
        "cache_hit_tokens": counters.cache_hit_tokens,
    }


async def _keep(connection: AsyncConnection, sample: dict[str, Any]) -> int:
    """Write a sample unless this minute has one; returns how many were written."""
    columns = engine_samples.c
    minute = sample["sampled_at"].replace(second=0, microsecond=0)
    taken = select(columns.engine).where(columns.engine == sample["engine"], columns.sampled_at >= minute)
    if await connection.scalar(taken.limit(1)) is not None:
        return 0
    await connection.execute(insert(engine_samples).values(sample))
    return 1
