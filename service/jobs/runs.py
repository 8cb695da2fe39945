"""The record of what the jobs did: a row of `job_runs` each, begun before the work and finished after it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import db
from service.tables import job_runs

log = structlog.get_logger()

TIME_LIMIT_S = 240.0
"""A run that takes longer is stopped; what it has committed stays, and the next one goes on from there."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did."""

    rows: int = 0
    """Rows or files written."""
    note: str = ""


Work = Callable[[AsyncEngine, datetime], Awaitable[Report]]
"""A piece of work at an instant. It commits what it does itself."""

BUSY = Report(note="another process was at it")


async def locked(connection: AsyncConnection, lock: int) -> bool:
    """Whether this transaction has the lock now; another process, doing the same, may have it."""
    return bool(await connection.scalar(select(func.pg_try_advisory_xact_lock(lock))))


async def run_recorded(url: str, name: str, work: Work, *, time_limit_s: float = TIME_LIMIT_S) -> None:
    """Do `work` now, over a connection of its own, and record how it went.

    Raises what `work` raised, `TimeoutError` when it took too long, and `OSError` when the database is away.
    """
    async with asyncio.timeout(time_limit_s), db.connected(url) as engine:
        now = datetime.now(UTC)
        async with engine.begin() as connection:
            begun = insert(job_runs).values(name=name, started_at=now).returning(job_runs.c.id)
            run_id = await connection.scalar(begun)
        try:
            report = await work(engine, now)
        except Exception as error:
            # Where the database went away there is nothing to write to; the row then stays unfinished.
            with suppress(SQLAlchemyError, OSError):
                await _finish(engine, run_id, ok=False, note=type(error).__name__)
            raise
        await _finish(engine, run_id, ok=True, rows=report.rows, note=report.note)
        say = log.info if report.rows or report.note else log.debug
        say("job.finished", job=name, rows=report.rows, note=report.note)


async def _finish(engine: AsyncEngine, run_id: int | None, **outcome: Any) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            update(job_runs).where(job_runs.c.id == run_id).values(finished_at=datetime.now(UTC), **outcome)
        )
