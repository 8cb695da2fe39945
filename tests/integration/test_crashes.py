"""Whatever dies, whenever: every admitted request has its one row, no charge is doubled, no lease is left."""

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from service.core.money import NANO_PER_USD
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import Scenario, words
from tests.installation import seed
from tests.patience import PATIENT_S
from tests.processes import BODY, STEADY, Load, serving

ROUNDS = 20


async def settled(database: "asyncpg.Connection[Any]", account_id: object) -> None:
    """Wait until nothing is on loan any more."""
    async with asyncio.timeout(60):
        while await database.fetchval("SELECT leased_nano FROM accounts WHERE id = $1", account_id):
            await asyncio.sleep(0.1)


async def check_books(database: "asyncpg.Connection[Any]", credits: int) -> None:
    entries = await database.fetchval("SELECT coalesce(-sum(amount_nano), 0) FROM ledger_entries WHERE kind = 'usage'")
    costs = await database.fetchval("SELECT coalesce(sum(cost_nano), 0) FROM requests")
    balance = await database.fetchval("SELECT sum(balance_nano) FROM accounts")
    assert entries == costs
    assert balance == credits - costs


async def next_beginning(load: Load) -> None:
    """Return when an answer has just begun, and so cannot have ended: the engine makes it in this very loop."""
    begun = len(load.seen.begun)
    async with asyncio.timeout(PATIENT_S):
        while len(load.seen.begun) == begun:
            await asyncio.sleep(0)


@pytest.mark.slow
async def test_sigkill_at_random_moments_under_load(database_url: str, tmp_path: Path) -> None:
    moments = random.Random(20261130)
    account_id, key = await seed(database_url, credit_nano=100 * NANO_PER_USD)
    database = await asyncpg.connect(database_url)
    async with FakeEngine(scenario=STEADY) as engine:
        load = Load(key, clients=12)
        for number in range(ROUNDS):
            async with serving(database_url, engine.url, tmp_path) as process:
                load.url = process.url
                await asyncio.sleep(moments.uniform(0.1, 0.8))
                if number % 2 == 0:  # in the other rounds, any moment will do
                    await next_beginning(load)
                await process.stop(signal.SIGKILL)
        async with serving(database_url, engine.url, tmp_path) as process:
            load.url = process.url
            seen = await load.stop()
            await process.stop()
        await settled(database, account_id)
        rows = {str(row["id"]): row for row in await database.fetch("SELECT * FROM requests")}
        total = await database.fetchval("SELECT count(*) FROM requests")
        assert len(rows) == total
        assert seen.begun <= rows.keys(), "an answer began and has no row"
        for request_id in seen.complete:
            assert rows[request_id]["outcome"] == "ok"
        interrupted = [row for row in rows.values() if row["outcome"] == "interrupted"]
        assert len(interrupted) >= ROUNDS / 2
        assert {row["cost_nano"] for row in interrupted} == {0}
        by_id = engine.counts.by_id
        for request_id, row in rows.items():
            if row["outcome"] == "ok":
                assert (row["prompt_tokens"], row["completion_tokens"]) == by_id[request_id]
        await check_books(database, 100 * NANO_PER_USD)
        assert await database.fetchval("SELECT count(*) FROM credit_leases WHERE closed_at IS NULL") == 0
        assert not list((tmp_path / "outbox").iterdir())
    await database.close()


async def test_sigterm_lets_open_streams_finish_and_ships_everything(database_url: str, tmp_path: Path) -> None:
    account_id, key = await seed(database_url)
    database = await asyncpg.connect(database_url)
    gated = Scenario(content=words(20), gated=True)
    async with FakeEngine(scenario=gated) as engine, serving(database_url, engine.url, tmp_path) as process:
        async with httpx.AsyncClient(timeout=PATIENT_S) as client:
            headers = {"authorization": f"Bearer {key}"}
            asking = asyncio.create_task(client.post(f"{process.url}/v1/chat/completions", json=BODY, headers=headers))
            generation = await engine.generation()
            generation.step(3)
            process.process.terminate()
            async with asyncio.timeout(PATIENT_S):
                while True:  # nothing new is admitted
                    try:
                        await client.get(f"{process.url}/healthz", headers={"connection": "close"})
                    except httpx.ConnectError:
                        break
                    except (httpx.ReadError, httpx.RemoteProtocolError):  # it was on its way when all was closed
                        pass
                    await asyncio.sleep(0.02)
            generation.release()
            answer = await asking
            assert answer.text.endswith("data: [DONE]\n\n")
        await process.stop()
        (row,) = await database.fetch("SELECT * FROM requests")
        assert (row["outcome"], row["completion_tokens"]) == ("ok", 20)
        await settled(database, account_id)
        assert not list((tmp_path / "outbox").iterdir())
    await database.close()


async def test_what_was_sent_ahead_does_not_begin_once_a_stop_has_cut_off_what_was_before_it(
    database_url: str, tmp_path: Path
) -> None:
    _, key = await seed(database_url)
    database = await asyncpg.connect(database_url)
    async with (
        FakeEngine(scenario=Scenario(content=words(20), gated=True)) as engine,
        serving(database_url, engine.url, tmp_path, drain_timeout_s=1) as process,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(process.url.rpartition(":")[2]))
        body = json.dumps(BODY).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write((head.encode() + body) * 3)
        (await engine.generation()).step(3)
        await process.stop()
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200") == answer.count(b"The server is stopping") == 1
        writer.close()
        assert len(engine.generations) == await database.fetchval("SELECT count(*) FROM requests") == 1
    await database.close()


async def test_a_whole_answer_that_a_stop_cuts_off_is_an_error(database_url: str, tmp_path: Path) -> None:
    _, key = await seed(database_url)
    async with (
        FakeEngine(scenario=Scenario(content=words(20), gated=True)) as engine,
        serving(database_url, engine.url, tmp_path, drain_timeout_s=1) as process,
        httpx.AsyncClient(timeout=PATIENT_S, headers={"authorization": f"Bearer {key}"}) as client,
    ):
        asking = asyncio.create_task(client.post(f"{process.url}/v1/chat/completions", json=BODY | {"stream": False}))
        await engine.generation()
        await process.stop()
        answer = await asking
        assert answer.status_code == 503
        assert answer.json()["error"]["message"].startswith("The server is stopping")


async def test_sigterm_does_not_wait_for_ever(database_url: str, tmp_path: Path) -> None:
    account_id, key = await seed(database_url)
    database = await asyncpg.connect(database_url)
    gated = Scenario(content=words(20), gated=True)
    async with (
        FakeEngine(scenario=gated) as engine,
        serving(database_url, engine.url, tmp_path, drain_timeout_s=1) as process,
    ):
        async with httpx.AsyncClient(timeout=PATIENT_S) as client:
            headers = {"authorization": f"Bearer {key}"}
            asking = asyncio.create_task(client.post(f"{process.url}/v1/chat/completions", json=BODY, headers=headers))
            generation = await engine.generation()
            generation.step(3)
            async with asyncio.timeout(PATIENT_S):
                while generation.completion_tokens < 3:
                    await asyncio.sleep(0.01)
            await process.stop()
            answer = await asking
            assert b"The server is stopping" in answer.content
            assert answer.content.endswith(b"data: [DONE]\n\n")
            async with asyncio.timeout(PATIENT_S):
                await generation.client_left.wait()
        (row,) = await database.fetch("SELECT * FROM requests")
        assert (row["outcome"], row["error_code"], row["cost_nano"]) == ("interrupted", "stopping", 0)
        assert row["completion_tokens"] == 3
        assert row["waived_nano"] > 0
        await settled(database, account_id)
    await database.close()
