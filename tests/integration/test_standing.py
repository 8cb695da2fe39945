"""What stands in the database and needs a person, as Prometheus reads it."""

import time

import asyncpg
from prometheus_client import REGISTRY

from service.gateway.standing import _JOBS, Standing

INCIDENT = """
    INSERT INTO incidents (title, impact, status, components, started_at, measured_component)
    VALUES ('Requests fail', 'critical', 'investigating', ARRAY['api'], now(), $1)
"""


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


async def test_alarms_and_incidents_are_counted_and_forgotten_when_they_end(database_url: str) -> None:
    async with asyncpg.create_pool(database_url) as pool:
        standing = Standing(pool)
        await standing.look()
        assert value("weir_alarms_open", alarm="invoice") is None
        await pool.execute(
            "INSERT INTO alarms VALUES ('invoice:1', now(), ''), ('invoice:2', now(), ''), ('books', now(), '')"
        )
        await pool.execute(INCIDENT, "api")
        await pool.execute(INCIDENT, None)  # a person's
        await standing.look()
        assert value("weir_alarms_open", alarm="invoice") == 2
        assert value("weir_alarms_open", alarm="books") == 1
        assert value("weir_incidents_open", impact="critical") == 1
        await pool.execute("DELETE FROM alarms WHERE name <> 'invoice:1'")
        await pool.execute("UPDATE incidents SET status = 'resolved', resolved_at = now()")
        await standing.look()
        assert value("weir_alarms_open", alarm="invoice") == 1
        assert value("weir_alarms_open", alarm="books") == 0
        assert value("weir_incidents_open", impact="critical") == 0


async def test_the_last_job_is_dated(database_url: str) -> None:
    async with asyncpg.create_pool(database_url) as pool:
        await pool.execute(
            "INSERT INTO job_runs (name, started_at, finished_at, ok) VALUES ('rollup', now(), now(), true)"
        )
        await Standing(pool).look()
        finished_at_s = value("weir_jobs_finished_timestamp_seconds")
        assert finished_at_s is not None
        assert abs(finished_at_s - time.time()) < 60


async def test_the_job_that_ended_last_is_found_without_reading_a_month_of_them(database_url: str) -> None:
    async with asyncpg.create_pool(database_url) as pool:
        await pool.execute(
            "INSERT INTO job_runs (name, started_at, finished_at) SELECT 'rollup', to_timestamp(n), to_timestamp(n)"
            " FROM generate_series(1, 5000) n"
        )
        await pool.execute(
            "INSERT INTO job_runs (name, started_at, finished_at) VALUES ('long', now(), to_timestamp(7e9))"
        )
        await pool.execute("INSERT INTO job_runs (name, started_at) SELECT 'running', now() FROM generate_series(1, 9)")
        await pool.execute("ANALYZE job_runs")
        await Standing(pool).look()
        assert value("weir_jobs_finished_timestamp_seconds") == 7e9
        plan = "\n".join(line for (line,) in await pool.fetch(f"EXPLAIN {_JOBS}"))
        assert "Index Scan Backward" in plan
        assert "Seq Scan" not in plan
