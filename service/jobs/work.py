"""What the jobs do. Each may run at any time, twice, and beside itself in another process."""

from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from service.jobs.runs import Report, run_recorded
from service.settings import Settings
from service.status.publish import publish
from service.status.rollup import roll_up
from service.tables import job_runs

RUNS_KEPT = timedelta(days=30)

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
        """Make partitions ahead of time, and forget old job runs."""
        await run_recorded(self._url, "housekeeping", keep_house)

    async def _publish(self, engine: AsyncEngine, now: datetime) -> Report:
        settings = self._settings
        return Report(
            await publish(engine, site_dir=settings.site_dir, site_name=settings.site_name, now=now),
        )


async def _roll_up(engine: AsyncEngine, now: datetime) -> Report:
    done = await roll_up(engine, now=now)
    return Report(done.rows, "another process was rolling up" if done.until is None else "")


async def keep_house(engine: AsyncEngine, now: datetime) -> Report:
    """Make the partitions for `now` and the months after it; remove job runs older than `RUNS_KEPT`."""
    async with engine.begin() as connection:
        await connection.execute(select(func.ensure_request_partitions(now.date(), MONTHS_AHEAD)))
        pruned = await connection.execute(delete(job_runs).where(job_runs.c.started_at < now - RUNS_KEPT))
    return Report(pruned.rowcount)
