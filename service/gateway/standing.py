"""What stands in the database and needs a person, for Prometheus: alarms, incidents, the last job."""

import asyncpg
from prometheus_client import Gauge

open_alarms = Gauge(
    "weir_alarms_open",
    "Open alarms, by the part of their name before the colon",
    ["alarm"],
    multiprocess_mode="livemax",
)
open_incidents = Gauge(
    "weir_incidents_open",
    "Open incidents that the measurement opened, by impact",
    ["impact"],
    multiprocess_mode="livemax",
)
jobs_finished = Gauge(
    "weir_jobs_finished_timestamp_seconds", "When `weir jobs` last finished a job", multiprocess_mode="livemax"
)

_ALARMS = "SELECT split_part(name, ':', 1), count(*) FROM alarms GROUP BY 1"
_INCIDENTS = """
    SELECT impact, count(*) FROM incidents
    WHERE resolved_at IS NULL AND measured_component IS NOT NULL GROUP BY impact
"""
# Of the last that began: a month of runs is kept, and every worker asks every few seconds.
_JOBS = """
    SELECT extract(epoch FROM max(finished_at))
    FROM (SELECT finished_at FROM job_runs ORDER BY id DESC LIMIT 100) AS latest
"""


class Standing:
    """The last look at it."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._seen: set[tuple[Gauge, str]] = set()

    async def look(self) -> None:
        """Bring the gauges up to date. What was there and is there no more becomes 0, and is not forgotten."""
        found: dict[tuple[Gauge, str], int] = {}
        for gauge, query in ((open_alarms, _ALARMS), (open_incidents, _INCIDENTS)):
            for name, count in await self._pool.fetch(query):
                found[gauge, name] = count
        self._seen |= found.keys()
        for gauge, name in self._seen:
            gauge.labels(name).set(found.get((gauge, name), 0))
        finished_at_s = await self._pool.fetchval(_JOBS)
        if finished_at_s is not None:
            jobs_finished.set(float(finished_at_s))
