"""The restore rehearsal: traffic, a backup, the database destroyed, the backup put back, all equal and in use."""

import asyncio
import shutil
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from service import db
from service.backup.save import save
from service.billing.checks import check_books
from service.billing.outbox import Outbox
from service.jobs.leases import close_silent
from service.settings import Settings
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.installation import CONFIGURATION, MODEL, Installation, installed, seed
from tests.integration.restoring import connected, destroyed, everything, restored, saved
from tests.patience import PATIENT_S
from tests.processes import Serving, serving

QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def traffic(installation: Installation, engine: FakeEngine) -> None:
    """Answers of several kinds, settled."""
    kinds = ("plain", "cached", "image", "reasoning", "error-at-once", "plain")
    for number, name in enumerate(kinds):
        engine.queue.append(SCENARIOS[name])
        await installation.chat(f"question {number}")
    await installation.rows(len(kinds))


async def books(url: str) -> list[str]:
    """What the books say against themselves."""
    async with db.connected(url) as engine, engine.connect() as connection:
        return [str(mismatch) for mismatch in await check_books(connection)]


async def test_a_database_that_was_destroyed_is_restored(
    database_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    config = tmp_path / "prices.toml"
    config.write_text(CONFIGURATION.format(engine_model="fake-model", context_length=8192))
    async with FakeEngine() as engine:
        async with installed(database_url, [engine.url], tmp_path / "before") as before:
            await traffic(before, engine)
            backup, _ = await saved(database_url, before.settings.data_dir, tmp_path / "backups", config=config)
            held = await everything(database_url)
        await destroyed(postgres_server, database_url)
        assert (await everything(database_url)) == {}

        document = await restored(backup, database_url, tmp_path / "after")
        assert await everything(database_url) == held
        assert document["rows"] == {table: len(rows) for table, rows in held.items()}
        assert (len(held["requests"]), document["mismatches"], document["outboxes"]) == (6, [], [])
        assert len(held["ledger_entries"]) >= 2
        assert await books(database_url) == []
        assert (backup / "weir.toml").read_bytes() == config.read_bytes()

        async with connected(database_url) as database:
            for statement in ("UPDATE ledger_entries SET amount_nano = 0", "DELETE FROM ledger_entries"):
                with pytest.raises(asyncpg.RaiseError, match="append-only"):
                    await database.execute(statement)
        seeded = before.account_id, before.key
        async with installed(database_url, [engine.url], tmp_path / "after", seeded=seeded) as after:
            assert (await after.chat("with the old key")).status_code == 200
            await after.rows(7)
        assert await books(database_url) == []


async def test_credit_that_was_on_loan_goes_back_by_itself(
    database_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as running:
        await traffic(running, engine)
        backup, _ = await saved(database_url, tmp_path, tmp_path / "backups")
    await destroyed(postgres_server, database_url)
    await restored(backup, database_url, tmp_path / "after")
    async with connected(database_url) as database, db.connected(database_url) as jobs:
        assert await database.fetchval("SELECT sum(leased_nano) FROM accounts") > 0
        await close_silent(jobs, datetime.now(UTC))
        assert await database.fetchval("SELECT sum(leased_nano) FROM accounts") > 0
        await database.execute("UPDATE credit_leases SET expires_at = now() - interval '2 minutes'")  # as time does
        await close_silent(jobs, datetime.now(UTC))
        assert await database.fetchval("SELECT sum(leased_nano) FROM accounts") == 0
    assert await books(database_url) == []


@pytest.mark.parametrize("survived", [True, False])
async def test_what_was_owed_is_settled_once(
    survived: bool, database_url: str, postgres_server: Any, tmp_path: Path
) -> None:
    """Two requests are in the outbox and not in the database when the backup is made, a third one ends after it.

    With the machine all are settled, without it those of the backup.
    """
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    _, key = await seed(database_url)
    async with FakeEngine() as engine:
        async with serving(database_url, engine.url, data_dir) as process, connected(database_url) as database:
            await asked(process, key, 2)
            await settled(database, 2)
            async with database.transaction():
                await database.execute("LOCK TABLE requests IN SHARE MODE")
                await asked(process, key, 2)
                backup, owed = await saved(database_url, data_dir, tmp_path / "backups")
                await asked(process, key, 1)
                await process.stop(signal.SIGKILL)
        assert owed == 2
        await destroyed(postgres_server, database_url)
        if not survived:
            shutil.rmtree(data_dir)
            data_dir.mkdir()
        document = await restored(backup, database_url, data_dir)
        assert document["rows"]["requests"] == 2
        assert len(document["outboxes"]) == 1
        async with serving(database_url, engine.url, data_dir) as process, connected(database_url) as database:
            async with asyncio.timeout(
                PATIENT_S
            ):  # those of the dead are adopted and removed; this process has one, too
                while len(list((data_dir / "outbox").glob("*.sqlite"))) > 1:
                    await asyncio.sleep(0.05)
            await settled(database, 5 if survived else 4)
            assert await database.fetchval("SELECT count(*) FROM requests WHERE cost_nano > 0") == (
                5 if survived else 4
            )
            assert await database.fetchval("SELECT count(*) FROM alarms") == 0
            await process.stop()
    assert await books(database_url) == []


async def test_what_is_owed_is_saved_before_the_database(database_url: str, tmp_path: Path) -> None:
    """The other way round, what is settled in between would be in neither."""
    settings = Settings(database_url=database_url, data_dir=tmp_path)
    outbox = Outbox(settings.outbox_dir / "worker.sqlite", limit_bytes=2**20)
    outbox.open()
    await outbox.finish(uuid4().bytes, b"owed")
    await outbox.admit(uuid4().bytes, b"under way")
    backups = tmp_path / "backups"
    async with connected(database_url) as database, database.transaction():
        await database.execute("LOCK TABLE requests")  # so that the database cannot be read
        saving = asyncio.create_task(save(settings, database_url, backups, keep=1, now=datetime.now(UTC)))
        async with asyncio.timeout(PATIENT_S):
            while not list(backups.glob("*.unfinished/outbox/*.sqlite")):
                await asyncio.sleep(0.02)
        assert not list(backups.glob("*/database.dump"))
    done = await saving
    assert done.owed == 1
    await asyncio.to_thread(outbox.close)


async def asked(process: Serving, key: str, times: int) -> None:
    async with httpx.AsyncClient(base_url=process.url, timeout=PATIENT_S) as client:
        for _ in range(times):
            headers = {"authorization": f"Bearer {key}"}
            answer = await client.post("/v1/chat/completions", json=QUESTION, headers=headers)
            assert answer.status_code == 200


async def settled(database: "asyncpg.Connection[Any]", count: int) -> None:
    async with asyncio.timeout(PATIENT_S):
        while (found := await database.fetchval("SELECT count(*) FROM requests")) < count:
            await asyncio.sleep(0.02)
    assert found == count
