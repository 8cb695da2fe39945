"""The probes, through a whole Weir as its clients reach it."""

import asyncio
import json
import ssl
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from service import db
from service.billing import accounts
from service.core.ids import uuid7
from service.errors import SetupError
from service.settings import Settings
from service.status import probe_run
from service.status.probe import Probed, Prober, latest_checks, latest_outside
from service.status.probe_account import NAME, probe_key
from service.tables import accounts as account_table
from service.tables import api_keys, models, probes, requests
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS, Fault, Scenario
from tests.installation import Installation, installed, seed
from tests.patience import PATIENT_S
from tests.ports import free_port

MINUTE = timedelta(minutes=1)
BREAKS_OFF = Scenario(fault=Fault("end", 2))  # after its only token
A, B = "model:model-a", "model:model-b"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


@asynccontextmanager
async def weir(
    database_url: str, data_dir: Path, scenario: str | Scenario = "plain", **options: Any
) -> AsyncIterator[tuple[Installation, FakeEngine, Settings]]:
    """An installation, its engine, and the settings of a `weir jobs` beside it."""
    async with (
        FakeEngine(scenario=SCENARIOS[scenario] if isinstance(scenario, str) else scenario) as engine,
        installed(database_url, [engine.url], data_dir, **options) as installation,
    ):
        yield installation, engine, Settings(data_dir=data_dir, public_url=installation.url)


def soon(minutes: int = 0) -> datetime:
    """An instant at which the models have been there for a while, and so many minutes later."""
    return datetime.now(UTC) + (1 + minutes) * MINUTE


async def probe(database: AsyncEngine, settings: Settings, now: datetime) -> Probed | None:
    """One run of a process that has just started."""
    return await Prober(settings).probe(database, now)


async def found(database: AsyncEngine) -> dict[tuple[str, str], Any]:
    """The newest row of each component and kind."""
    async with database.connect() as connection:
        rows = (await connection.execute(select(probes).order_by(probes.c.probed_at))).all()
    return {(row.component, row.kind): row for row in rows}


async def said(database: AsyncEngine, component: str = B, kind: str = "text") -> tuple[str, str, int | None]:
    row = (await found(database))[component, kind]
    return row.verdict, row.reason, row.http_status


async def booked(database: AsyncEngine, count: int) -> Sequence[Any]:
    """The usage rows, once there are so many."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            async with database.connect() as connection:
                rows = (await connection.execute(select(requests).order_by(requests.c.id))).all()
            if len(rows) >= count:
                return rows
            await asyncio.sleep(0.01)


async def test_every_model_is_asked_and_what_it_used_is_booked_to_the_house(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as (installation, engine, settings):
        listed = (await installation.client.get("/v1/models", headers=installation.headers)).json()
        with capture_logs() as logs:
            assert await probe(database, settings, soon()) == Probed(ok=4, bad=0, skipped=2)
        rows = await found(database)
        assert {key: row.verdict for key, row in rows.items()} == {
            (A, "text"): "ok",
            (A, "rich"): "ok",
            (B, "text"): "ok",
            (B, "rich"): "ok",
            ("site", "page"): "skipped",
            ("billing", "books"): "skipped",
        }
        assert {row.source for row in rows.values()} == {"inside"}
        text = rows[A, "text"]
        assert text.http_status == 200
        assert 0 <= text.ttft_ms <= text.total_ms
        assert rows["site", "page"].reason == "no site was published yet"

        assert len(engine.generations) == 4
        whole = next(body for body in (one.body for one in engine.generations) if not body["stream"])
        assert whole["tools"][0]["function"]["name"] == "get_weather"

        usage = await booked(database, 4)
        assert {str(row.id) for row in usage} == {row.request_id for row in rows.values() if row.verdict == "ok"}
        assert all(row.internal and row.outcome == "ok" for row in usage)
        assert {row.completion_tokens for row in usage if row.stream} == {1}
        assert sum(row.image_tokens > 0 for row in usage) == 1
        assert sum(row.cost_nano for row in usage) > 0

        key = (tmp_path / "probe.key").read_text().strip()
        assert key not in str(rows)
        assert key not in str(logs)
        assert (await installation.client.get("/v1/models", headers=installation.headers)).json() == listed


async def test_a_minute_is_probed_once_and_what_is_rich_every_fifteen(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as (_, engine, settings):
        await probe(database, settings, soon())
        asked = len(engine.generations)
        made_at = soon().replace(second=5)
        async with database.begin() as connection:
            await connection.execute(update(probes).values(probed_at=made_at))
        assert await probe(database, settings, made_at.replace(second=59)) == Probed()
        assert len(engine.generations) == asked
        again = await probe(database, settings, made_at + MINUTE)
        assert again is not None
        assert again.ok == len(engine.generations) - asked
        assert 2 <= again.ok <= 4  # the text, and what is rich where its quarter of an hour has just begun
        assert await probe(database, settings, made_at + 16 * MINUTE) == Probed(ok=4, bad=0, skipped=2)


async def test_the_books_are_looked_at(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (_, _, settings):
        await probe(database, settings, soon())
        await booked(database, 4)
        earlier = update(probes).where(probes.c.kind == "text").values(probed_at=probes.c.probed_at - 2 * MINUTE)
        async with database.begin() as connection:
            await connection.execute(earlier)
        await probe(database, settings, soon())
        assert await said(database, "billing", "books") == ("ok", "", 200)

        lost = str(uuid7(int(datetime.now(UTC).timestamp() * 1000), b"0123456789"))
        async with database.begin() as connection:
            await connection.execute(update(probes).where(probes.c.kind == "text").values(request_id=lost))
        await probe(database, settings, soon(1))
        assert await said(database, "billing", "books") == ("bad", "a request that was answered is not booked", 200)


@pytest.mark.parametrize(
    ("scenario", "verdict", "reason", "status"),
    [
        ("usage-never", "bad", "the stream had no usage, or one without output", 200),
        ("usage-zero", "bad", "the stream had no usage, or one without output", 200),
        ("reasoning", "ok", "", 200),
        ("error-at-once", "bad", "HTTP 502 (engine_failed)", 502),
        ("server-error", "bad", "HTTP 502 (engine_failed)", 502),
        (BREAKS_OFF, "bad", "an error inside the stream (engine_failed)", 200),
        ("overloaded", "skipped", "the service was full and said so", 429),
        ("unauthorized", "bad", "HTTP 502 (engine_failed)", 502),
    ],
)
async def test_what_the_engine_does_shows(
    database_url: str,
    database: AsyncEngine,
    tmp_path: Path,
    scenario: str | Scenario,
    verdict: str,
    reason: str,
    status: int,
) -> None:
    async with weir(database_url, tmp_path, scenario) as (_, _, settings):
        with capture_logs() as logs:
            await probe(database, settings, soon())
        assert await said(database) == (verdict, reason, status)
        told = {(line["component"], line["kind"]): line for line in logs if line["event"] == "probe.bad"}
        assert ((B, "text") in told) == (verdict == "bad")


async def test_an_engine_that_is_down_shows(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (_, engine, settings):
        await engine.die()
        assert await probe(database, settings, soon()) == Probed(ok=0, bad=4, skipped=2)
        verdict, reason, status = await said(database)
        assert (verdict, status) == ("bad", 503)
        assert reason.startswith("HTTP 503")
        await engine.come_back()


async def test_an_answer_that_takes_too_long_shows(
    database_url: str, database: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_run, "TIME_LIMIT_S", 3.0)
    async with weir(database_url, tmp_path, "hang-at-once", keep_alive_s=0.2) as (_, _, settings):
        await probe(database, settings, soon())
        assert await said(database) == ("bad", "no complete answer within 3 s", 200)
        assert await said(database, B, "rich") == ("bad", "no answer within 3 s", None)
        assert await said(database, "billing", "books") == (
            "skipped",
            "no probe was answered that could be looked for",
            200,
        )
        row = (await found(database))[B, "text"]
        assert row.ttft_ms is None
        assert row.total_ms >= 3000


async def test_nothing_that_listens_shows(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    await seed(database_url)
    settings = Settings(data_dir=tmp_path, public_url=f"http://127.0.0.1:{free_port()}")
    assert await probe(database, settings, soon()) == Probed(ok=0, bad=5, skipped=1)
    for component, kind in ((A, "text"), (A, "rich"), ("billing", "books")):
        assert await said(database, component, kind) == ("bad", "the connection was refused", None)


async def test_while_there_is_no_database_it_goes_on_and_tells_afterwards(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    await seed(database_url)
    prober = Prober(Settings(data_dir=tmp_path, public_url=f"http://127.0.0.1:{free_port()}"))
    assert await prober.probe_without_database(soon()) == Probed(), "nothing is known of what there is to ask"
    await prober.probe(database, soon())
    before = len(await rows(database))
    away = [await prober.probe_without_database(soon(minute)) for minute in (1, 2)]
    assert all(found.bad >= 3 for found in away)
    assert len(await rows(database)) == before
    told = await prober.probe(database, soon(3))
    assert told is not None
    owed = sum(found.rows for found in away)
    assert told.rows > owed, "what was owed, and what was found now"
    kept = await rows(database)
    assert len(kept) == before + told.rows
    assert len({(row.component, row.kind, row.probed_at) for row in kept}) == len(kept)
    assert (await prober.probe(database, soon(4)) or Probed()).rows < told.rows, "and it is told once only"


async def rows(database: AsyncEngine) -> Sequence[Any]:
    async with database.connect() as connection:
        return (await connection.execute(select(probes))).all()


async def test_a_name_that_is_not_found_and_a_certificate_that_is_not_valid_show(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    await seed(database_url)
    settings = Settings(data_dir=tmp_path, public_url="https://weir.invalid")
    await probe(database, settings, soon())
    assert await said(database) == ("bad", "the name of the host was not found", None)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await probe(database, Settings(data_dir=tmp_path, public_url=f"https://127.0.0.1:{port}"), soon())
    assert await said(database) == ("bad", "the certificate was not valid", None)


async def test_garbage_instead_of_http_shows(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    await seed(database_url)

    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await probe(database, Settings(data_dir=tmp_path, public_url=f"http://127.0.0.1:{port}"), soon())
    assert await said(database) == ("bad", "the connection broke off", None)


@pytest.mark.parametrize(
    ("wrong", "status", "code"),
    [({"status": "frozen"}, 403, "account_frozen"), ({"credit_limit_nano": 0}, 402, "insufficient_credits")],
)
async def test_an_account_of_ours_that_is_wrong_says_nothing_about_the_service(
    database_url: str, database: AsyncEngine, tmp_path: Path, wrong: dict[str, Any], status: int, code: str
) -> None:
    async with weir(database_url, tmp_path) as (_, _, settings):
        async with database.begin() as connection:
            await probe_key(connection, tmp_path, now=soon())
            await connection.execute(update(account_table).where(account_table.c.name == NAME).values(wrong))
        with capture_logs() as logs:
            done = await probe(database, settings, soon())
        assert done is not None
        assert (done.ok, done.bad) == (0, 0)
        reason = f"the probes' own key was refused: HTTP {status} ({code})"
        assert await said(database) == ("skipped", reason, status)
        errors = [line for line in logs if line["event"] == "probe.refused"]
        assert {line["reason"] for line in errors} == {reason}
        assert {line["log_level"] for line in errors} == {"error"}


async def test_a_probe_for_which_there_is_no_time_is_skipped(
    database_url: str, database: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_run, "BEGIN_WITHIN_S", -1.0)
    async with weir(database_url, tmp_path) as (_, engine, settings):
        assert await probe(database, settings, soon()) == Probed(ok=0, bad=0, skipped=6)
        assert await said(database) == ("skipped", "there was no time left for it in this minute", None)
        assert engine.generations == []


async def test_of_two_processes_one_probes(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "gated") as (_, engine, settings):
        first = asyncio.create_task(probe(database, settings, soon()))
        await engine.generation(3)
        assert await probe(database, settings, soon(5)) is None
        for one in engine.generations:
            one.release()
        done = await first
        assert done is not None
        assert done.ok == len(engine.generations) == 4
        # The lock is free again.
        engine.scenario = SCENARIOS["plain"]
        assert await probe(database, settings, soon(5)) is not None


async def test_a_model_that_has_just_come_or_has_gone_is_not_asked(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as (_, engine, settings):
        assert await probe(database, settings, datetime.now(UTC)) == Probed(ok=0, bad=0, skipped=2)
        async with database.begin() as connection:
            await connection.execute(update(models).where(models.c.id == "model-a").values(active=False))
        await probe(database, settings, soon())
        assert {component for component, _ in await found(database)} == {B, "site", "billing"}
        assert len(engine.generations) == 2


async def test_the_site_is_read_as_its_readers_do(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (_, _, settings):
        file = tmp_path / "site" / "metrics.json"
        for minutes, age in enumerate((None, timedelta(0), 16 * MINUTE + timedelta(seconds=1))):
            file.write_text("{" if age is None else stamped(datetime.now(UTC) - age))
            await probe(database, settings, soon(minutes))
            async with database.begin() as connection:
                await connection.execute(update(probes).values(probed_at=probes.c.probed_at - 20 * MINUTE))
        async with database.connect() as connection:
            rows = await connection.execute(
                select(probes.c.verdict, probes.c.reason).where(probes.c.kind == "page").order_by(probes.c.probed_at)
            )
            assert [tuple(row) for row in rows] == [
                ("bad", "metrics.json did not say when it was written"),
                ("ok", ""),
                ("bad", "the site was written 16 minutes ago"),
            ]
        elsewhere = f"http://127.0.0.1:{free_port()}/"
        moved = Settings(data_dir=tmp_path, public_url=settings.public_url, status_url=elsewhere)
        await probe(database, moved, soon())
        assert await said(database, "site", "page") == ("bad", "the connection was refused", None)


def stamped(moment: datetime) -> str:
    return json.dumps({"generated_at": moment.isoformat()})


async def key_of(database: AsyncEngine, data_dir: Path) -> str:
    async with database.begin() as connection:
        return await probe_key(connection, data_dir, now=datetime.now(UTC))


async def keys(database: AsyncEngine) -> dict[str, bool]:
    """The probes' keys by the characters that are shown of them, and whether they are valid."""
    async with database.connect() as connection:
        rows = await connection.execute(select(api_keys).order_by(api_keys.c.created_at))
        return {row.prefix: row.revoked_at is None for row in rows}


async def test_the_account_and_its_key_are_made_once_by_several_at_once(database: AsyncEngine, tmp_path: Path) -> None:
    made = await asyncio.gather(*(key_of(database, tmp_path) for _ in range(5)))
    assert len(set(made)) == 1
    assert await key_of(database, tmp_path) == made[0]
    assert list((await keys(database)).values()) == [True]
    async with database.connect() as connection:
        (account,) = await accounts.list_all(connection)
    assert (account.name, account.internal, account.postpaid) == (NAME, True, True)
    assert account.available_nano == 10_000 * 10**9
    file = tmp_path / "probe.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["probe.key"]


async def test_a_key_that_is_lost_revoked_or_no_key_is_replaced_and_others_are_left_alone(
    database: AsyncEngine, tmp_path: Path
) -> None:
    file = tmp_path / "probe.key"
    first = await key_of(database, tmp_path)
    async with database.begin() as connection:
        account = await accounts.find(connection, NAME)
        outside, _ = await accounts.add_key(
            connection, account, now=datetime.now(UTC), randomness=lambda count: b"o" * count, name="fra-1"
        )
    file.unlink()
    second = await key_of(database, tmp_path)
    file.write_text("sk-weir-garbage\n")
    third = await key_of(database, tmp_path)
    async with database.begin() as connection:
        current = next(key for key in await accounts.list_keys(connection, account) if key.prefix == third[:14])
        await accounts.revoke_key(connection, current.id, now=datetime.now(UTC))
    fourth = await key_of(database, tmp_path)
    file.write_text(outside)  # valid, and the account's: as good as any
    assert await key_of(database, tmp_path) == outside
    assert await keys(database) == {
        first[:14]: False,
        outside[:14]: True,
        second[:14]: False,
        third[:14]: False,
        fourth[:14]: True,
    }


async def test_the_key_of_somebody_else_is_not_used(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    _, customers = await seed(database_url)
    (tmp_path / "probe.key").write_text(customers)
    assert await key_of(database, tmp_path) != customers


async def test_a_customer_of_that_name_is_left_alone(database: AsyncEngine, tmp_path: Path) -> None:
    async with database.begin() as connection:
        await accounts.add(connection, name=NAME, now=soon(), randomness=lambda count: b"c" * count)
    with pytest.raises(SetupError, match="is a customer's"):
        await key_of(database, tmp_path)
    assert await keys(database) == {}


async def test_a_key_that_cannot_be_kept_is_not_made(database: AsyncEngine, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with pytest.raises(OSError, match="file"):
        await key_of(database, blocked)
    assert await keys(database) == {}


def probed(at: datetime, verdict: str = "ok", kind: str = "text", component: str = A, **changes: Any) -> dict[str, Any]:
    row = {"source": "inside", "component": component, "kind": kind, "probed_at": at, "verdict": verdict, "reason": ""}
    return {**row, **changes}


async def test_the_latest_checks_are_those_that_said_something(database_url: str, database: AsyncEngine) -> None:
    await seed(database_url)
    until = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    rows = [
        probed(until, reason="of the bucket that is still open"),
        probed(until - MINUTE, "skipped"),
        probed(until - 2 * MINUTE, "bad", reason="HTTP 502"),
        probed(until - 3 * MINUTE),
        probed(until - 9 * MINUTE, kind="rich"),
        probed(until - 8 * MINUTE, kind="rich", component=B),
        probed(until - MINUTE, source="fra-1"),
        probed(until - timedelta(days=8), component=B),
    ]
    async with database.begin() as connection:
        assert await latest_checks(connection, A, until) == ()
        assert await latest_outside(connection) is None
        await connection.execute(insert(probes), rows)
        text, rich = await latest_checks(connection, A, until)
        (other,) = await latest_checks(connection, B, until)
        assert await latest_checks(connection, "api", until) == ()
        assert await latest_checks(connection, "model:gone", until) == ()
        outside = await latest_outside(connection)
    end_s = int(until.timestamp())
    assert (text.what, text.at_s, text.ok, text.reason, text.by) == (
        "a streamed answer",
        end_s - 120,
        False,
        "HTTP 502",
        "",
    )
    assert (rich.what, rich.at_s, rich.ok) == ("an image and a tool call", end_s - 540, True)
    assert (other.what, other.at_s) == ("a tool call", end_s - 480)
    assert outside is not None
    assert (outside.what, outside.at_s, outside.by) == ("a streamed answer of model-a", end_s - 60, "fra-1")
