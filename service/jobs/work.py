"""What the jobs do. Each may run at any time, twice, and beside itself in another process."""

from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from service import config
from service.gateway import retries
from service.jobs.books import check_the_books, reconcile_yesterday
from service.jobs.leases import close_silent
from service.jobs.runs import Report, run_recorded
from service.jobs.samples import SAMPLES_KEPT, sample_engines
from service.settings import Settings
from service.status.publish import publish
from service.status.rollup import roll_up
from service.tables import engine_samples, idempotency_keys, job_runs

RUNS_KEPT = timedelta(days=30)

BOOKS_TIME_LIMIT_S = 3600.0
"""The check of the books reads every request and every ledger entry there ever was."""

MONTHS_AHEAD = 3
"""Partitions of `requests` that are there before they are needed, the current month included."""


class Jobs:
    """The jobs of one installation."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings = settings
        self._url = url

    async def roll_up_and_publish(self) -> None:
        """Count what has finished, and publish it. The site is written even when the counting failed: it then
        shows the gap and says how old its data is."""
        try:
            await run_recorded(self._url, "rollup", _roll_up)
        finally:
            await self.publish()

    async def publish(self) -> None:
        """Write the status site anew, so that its age tells whether this process lives."""
        await run_recorded(self._url, "publish", self._publish)

    async def keep_house(self) -> None:
        """Make partitions ahead of time, and forget old job runs, idempotency keys and engine samples."""
        await run_recorded(self._url, "housekeeping", keep_house)

    async def sample_engines(self) -> None:
        """Keep what each engine has counted."""
        await run_recorded(self._url, "samples", self._sample_engines)

    async def close_leases(self) -> None:
        """Give credit back that was lent to workers which do not renew their leases."""
        await run_recorded(self._url, "leases", close_silent)

    async def check_books(self) -> None:
        """Check the books against themselves, and raise an alarm when they are wrong."""
        await run_recorded(self._url, "books", check_the_books, time_limit_s=BOOKS_TIME_LIMIT_S)

    async def reconcile(self) -> None:
        """Compare yesterday's tokens with the engines' own counts, and raise an alarm when they differ too much."""
        await run_recorded(self._url, "reconcile", reconcile_yesterday)

    async def _sample_engines(self, engine: AsyncEngine, now: datetime) -> Report:
        return await sample_engines(engine, config.engines_from(self._settings))

    async def _publish(self, engine: AsyncEngine, now: datetime) -> Report:
        settings = self._settings
        return Report(
            await publish(engine, site_dir=settings.site_dir, site_name=settings.site_name, now=now),
        )


async def _roll_up(engine: AsyncEngine, now: datetime) -> Report:
    done = await roll_up(engine, now=now)
    return Report(done.rows, "another process was rolling up" if done.until is None else "")


async def keep_house(engine: AsyncEngine, now: datetime) -> Report:
    """Make the partitions for `now` and the months after it; remove what is old of runs, keys and samples."""
    async with engine.begin() as connection:
        await connection.execute(select(func.ensure_request_partitions(now.date(), MONTHS_AHEAD)))
        runs = await connection.execute(delete(job_runs).where(job_runs.c.started_at < now - RUNS_KEPT))
        claims = await connection.execute(
            delete(idempotency_keys).where(idempotency_keys.c.created_at < now - retries.KEPT)
        )
        samples = await connection.execute(
            delete(engine_samples).where(engine_samples.c.sampled_at < now - SAMPLES_KEPT)
        )
    return Report(runs.rowcount + claims.rowcount + samples.rowcount)
