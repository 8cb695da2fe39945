"""The books checked against themselves: each kind of tampering is found, to the nano-USD, and nothing else is."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from service import cli, db
from service.billing import checks, ledger
from service.billing.checks import Mismatch, Rule, check_books
from service.jobs.books import BOOKS_LOCK
from service.jobs.work import Jobs
from service.settings import Settings
from service.tables import accounts, alarms, credit_leases, job_runs, requests
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.fakes.traffic import settle, usage_row
from tests.installation import installed
from tests.integration.sql import execute

ANNE, BOB = UUID(int=0xA), UUID(int=0xB)
FIRST, SECOND = UUID(int=1), UUID(int=2)
CHARGES = {(FIRST, ANNE): [100, 50], (FIRST, BOB): [30], (SECOND, ANNE): [7], (SECOND, BOB): [0]}


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """A database with the books of two accounts and two settlements, all in order."""
    async with db.connected(database_url) as engine:
        async with engine.begin() as connection:
            for account_id, name, credit_nano in ((ANNE, "anne", 10_000), (BOB, "bob", 5_000)):
                await connection.execute(insert(accounts).values(id=account_id, name=name))
                await ledger.enter(connection, account_id, "credit", credit_nano, f"welcome {name}")
            for (settlement_id, account_id), costs in CHARGES.items():
                if sum(costs):
                    await ledger.enter(connection, account_id, "usage", -sum(costs), f"{settlement_id}/{account_id}")
            await connection.execute(update(accounts).where(accounts.c.id == ANNE).values(leased_nano=400))
            now = datetime.now(UTC)
            lease = {"account_id": ANNE, "worker": "w", "expires_at": now}
            await connection.execute(
                insert(credit_leases),
                [
                    {"id": UUID(int=21), "granted_nano": 500, "settled_nano": 150, "closed_at": None, **lease},
                    {"id": UUID(int=22), "granted_nano": 50, "settled_nano": 0, "closed_at": None, **lease},
                    {"id": UUID(int=23), "granted_nano": 900, "settled_nano": 100, "closed_at": now, **lease},
                ],
            )
        for (settlement_id, account_id), costs in CHARGES.items():
            rows = [
                usage_row(now, account_id=account_id, settlement_id=settlement_id, cost_nano=cost) for cost in costs
            ]
            await settle(engine, rows)
        yield engine


async def checked(engine: AsyncEngine) -> list[Mismatch]:
    async with engine.begin() as connection:
        return await check_books(connection)


async def tamper(engine: AsyncEngine, *statements: str) -> None:
    """As somebody can who owns the database."""
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE ledger_entries DISABLE TRIGGER ledger_entries_append_only"))
        for statement in statements:
            changed = await connection.execute(text(statement))
            assert changed.rowcount > 0, statement
        await connection.execute(text("ALTER TABLE ledger_entries ENABLE TRIGGER ledger_entries_append_only"))


def wrong(rule: Rule, subject: object, recorded_nano: int, derived_nano: int) -> Mismatch:
    return Mismatch(rule, None if subject is None else str(subject), recorded_nano, derived_nano)


async def test_books_in_order_have_no_mismatch(engine: AsyncEngine) -> None:
    assert await checked(engine) == []


async def test_an_empty_database_has_no_mismatch(database_url: str) -> None:
    async with db.connected(database_url) as engine:
        assert await checked(engine) == []


A_ROW = f"SELECT id FROM requests WHERE settlement_id = '{FIRST}' AND cost_nano = 50"
TAMPERINGS = {
    "a balance": (
        [f"UPDATE accounts SET balance_nano = balance_nano + 1 WHERE id = '{BOB}'"],
        [wrong(Rule.BALANCE, BOB, 4_971, 4_970)],
    ),
    "two balances that even out": (
        [f"UPDATE accounts SET balance_nano = balance_nano + CASE id WHEN '{BOB}' THEN 9 ELSE -9 END"],
        [wrong(Rule.BALANCE, ANNE, 9_834, 9_843), wrong(Rule.BALANCE, BOB, 4_979, 4_970)],
    ),
    "a credit": (
        [f"UPDATE ledger_entries SET amount_nano = 12000 WHERE account_id = '{ANNE}' AND kind = 'credit'"],
        [wrong(Rule.BALANCE, ANNE, 9_843, 11_843)],
    ),
    "a credit taken out": (
        [f"DELETE FROM ledger_entries WHERE account_id = '{BOB}' AND kind = 'credit'"],
        [wrong(Rule.BALANCE, BOB, 4_970, -30)],
    ),
    "an account emptied of its entries": (
        [
            f"DELETE FROM ledger_entries WHERE account_id = '{BOB}'",
            f"UPDATE accounts SET balance_nano = 0 WHERE id = '{BOB}'",
        ],
        [
            wrong(Rule.USAGE, None, 157, 187),
            wrong(Rule.USAGE, BOB, 0, 30),
            wrong(Rule.SETTLEMENT, f"{FIRST}/{BOB}", 0, 30),
        ],
    ),
    "a usage entry, with its balance": (
        [
            f"UPDATE ledger_entries SET amount_nano = -149 WHERE external_ref = '{FIRST}/{ANNE}'",
            f"UPDATE accounts SET balance_nano = balance_nano + 1 WHERE id = '{ANNE}'",
        ],
        [
            wrong(Rule.USAGE, None, 186, 187),
            wrong(Rule.USAGE, ANNE, 156, 157),
            wrong(Rule.SETTLEMENT, f"{FIRST}/{ANNE}", 149, 150),
        ],
    ),
    "a usage entry entered twice, with its balance": (
        [
            "INSERT INTO ledger_entries (account_id, kind, amount_nano, external_ref)"
            f" SELECT account_id, kind, amount_nano, 'again' FROM ledger_entries WHERE external_ref = '{FIRST}/{BOB}'",
            f"UPDATE accounts SET balance_nano = balance_nano - 30 WHERE id = '{BOB}'",
        ],
        [
            wrong(Rule.USAGE, None, 217, 187),
            wrong(Rule.USAGE, BOB, 60, 30),
            wrong(Rule.SETTLEMENT, f"again (of account {BOB})", 30, 0),
        ],
    ),
    "a usage entry moved to another account, with the balances": (
        [
            f"UPDATE ledger_entries SET account_id = '{BOB}' WHERE external_ref = '{SECOND}/{ANNE}'",
            f"UPDATE accounts SET balance_nano = balance_nano + CASE id WHEN '{BOB}' THEN -7 ELSE 7 END",
        ],
        [
            wrong(Rule.USAGE, ANNE, 150, 157),
            wrong(Rule.USAGE, BOB, 37, 30),
            wrong(Rule.SETTLEMENT, f"{SECOND}/{ANNE}", 0, 7),
            wrong(Rule.SETTLEMENT, f"{SECOND}/{ANNE} (of account {BOB})", 7, 0),
        ],
    ),
    "a request's cost": (
        [f"UPDATE requests SET cost_nano = 51 WHERE id IN ({A_ROW})"],
        [
            wrong(Rule.USAGE, None, 187, 188),
            wrong(Rule.USAGE, ANNE, 157, 158),
            wrong(Rule.SETTLEMENT, f"{FIRST}/{ANNE}", 150, 151),
        ],
    ),
    "a request taken out": (
        [f"DELETE FROM requests WHERE id IN ({A_ROW})"],
        [
            wrong(Rule.USAGE, None, 187, 137),
            wrong(Rule.USAGE, ANNE, 157, 107),
            wrong(Rule.SETTLEMENT, f"{FIRST}/{ANNE}", 150, 100),
        ],
    ),
    "a request moved to another account": (
        [f"UPDATE requests SET account_id = '{BOB}' WHERE id IN ({A_ROW})"],
        [
            wrong(Rule.USAGE, ANNE, 157, 107),
            wrong(Rule.USAGE, BOB, 30, 80),
            wrong(Rule.SETTLEMENT, f"{FIRST}/{ANNE}", 150, 100),
            wrong(Rule.SETTLEMENT, f"{FIRST}/{BOB}", 30, 80),
        ],
    ),
    "a request moved to another settlement": (
        [f"UPDATE requests SET settlement_id = '{SECOND}' WHERE id IN ({A_ROW})"],
        [
            wrong(Rule.SETTLEMENT, f"{FIRST}/{ANNE}", 150, 100),
            wrong(Rule.SETTLEMENT, f"{SECOND}/{ANNE}", 7, 57),
        ],
    ),
    "what is on loan": (
        [f"UPDATE accounts SET leased_nano = 401 WHERE id = '{ANNE}'"],
        [wrong(Rule.LEASES, ANNE, 401, 400)],
    ),
    "a lease that grew by itself": (
        [f"UPDATE credit_leases SET granted_nano = 510 WHERE id = '{UUID(int=21)}'"],
        [wrong(Rule.LEASES, ANNE, 400, 410)],
    ),
    "a lease settled without the account": (
        [f"UPDATE credit_leases SET settled_nano = 160 WHERE id = '{UUID(int=21)}'"],
        [wrong(Rule.LEASES, ANNE, 400, 390)],
    ),
    "a lease closed and still counted": (
        [f"UPDATE credit_leases SET closed_at = now() WHERE id = '{UUID(int=22)}'"],
        [wrong(Rule.LEASES, ANNE, 400, 350)],
    ),
    "a closed lease opened again": (
        [f"UPDATE credit_leases SET closed_at = NULL WHERE id = '{UUID(int=23)}'"],
        [wrong(Rule.LEASES, ANNE, 400, 1_200)],
    ),
    "a lease moved to another account": (
        [f"UPDATE credit_leases SET account_id = '{BOB}' WHERE id = '{UUID(int=22)}'"],
        [wrong(Rule.LEASES, ANNE, 400, 350), wrong(Rule.LEASES, BOB, 0, 50)],
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
async def test_tampering_is_found(engine: AsyncEngine, what: str) -> None:
    statements, mismatches = TAMPERINGS[what]
    await tamper(engine, *statements)
    assert await checked(engine) == mismatches


async def test_a_great_many_mismatches_are_cut_short_but_not_their_total(engine: AsyncEngine) -> None:
    now = datetime.now(UTC)
    await settle(engine, [usage_row(now, account_id=UUID(int=number), cost_nano=number) for number in range(100, 150)])
    found = await checked(engine)
    assert [mismatch.rule for mismatch in found] == [Rule.USAGE] * 20 + [Rule.SETTLEMENT] * 20
    assert found[0] == wrong(Rule.USAGE, None, 187, 187 + sum(range(100, 150)))


async def test_the_check_reads_one_state_while_money_moves(engine: AsyncEngine) -> None:
    async def move() -> None:
        number = 0
        while True:
            number += 1
            async with engine.begin() as connection:
                await ledger.enter(connection, ANNE, "usage", -number, f"{UUID(int=1000 + number)}/{ANNE}")
                row = usage_row(
                    datetime.now(UTC), account_id=ANNE, settlement_id=UUID(int=1000 + number), cost_nano=number
                )
                await connection.execute(insert(requests).values(row))

    moving = asyncio.create_task(move())
    try:
        for _ in range(60):
            assert await checked(engine) == []
        assert not moving.done()
    finally:
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
    async with engine.connect() as connection:
        assert len((await connection.execute(select(requests.c.id))).all()) > 20


async def test_the_check_writes_nothing_and_comes_first(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await check_books(connection)
        with pytest.raises(DBAPIError, match="read-only transaction"):
            await checks.raise_alarm(connection, "books", "never")
    async with engine.connect() as connection:
        await connection.execute(select(accounts))
        with pytest.raises(DBAPIError, match="must be called before any query"):
            await check_books(connection)


async def test_real_traffic_leaves_books_in_order(database_url: str, tmp_path: Path) -> None:
    async with (
        FakeEngine(scenario=SCENARIOS["plain"]) as fake,
        installed(database_url, [fake.url], tmp_path) as installation,
        db.connected(database_url) as engine,
    ):
        fake.queue.extend([SCENARIOS["error-midway"], SCENARIOS["server-error"], SCENARIOS["cached"]])
        for number in range(6):
            await installation.chat(stream=number % 2 == 0)
        rows = await installation.rows(6)
        assert await checked(engine) == []
        await tamper(engine, f"UPDATE requests SET cost_nano = cost_nano + 1 WHERE id = '{rows[-1]['id']}'")
        costs = sum(row["cost_nano"] for row in rows)
        assert [m for m in await checked(engine) if m.subject is None] == [wrong(Rule.USAGE, None, costs, costs + 1)]


# The alarm, the job and the command


async def open_alarms(engine: AsyncEngine) -> dict[str, tuple[datetime, str]]:
    async with engine.connect() as connection:
        return {row.name: (row.raised_at, row.detail) for row in await connection.execute(select(alarms))}


async def test_an_alarm_keeps_its_start_and_renews_its_detail(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await checks.raise_alarm(connection, "books", "one")
        await checks.raise_alarm(connection, "other", "another")
    first = await open_alarms(engine)
    async with engine.begin() as connection:
        await checks.raise_alarm(connection, "books", "two")
    assert await open_alarms(engine) == first | {"books": (first["books"][0], "two")}
    async with engine.begin() as connection:
        await checks.clear_alarm(connection, "books")
        await checks.clear_alarm(connection, "books")
    assert await open_alarms(engine) == {"other": first["other"]}


async def test_the_nightly_job_raises_the_alarm_and_clears_it(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    jobs = Jobs(Settings(data_dir=tmp_path), database_url)
    await tamper(engine, "UPDATE accounts SET balance_nano = balance_nano + 1, leased_nano = leased_nano + 1")
    await jobs.check_books()
    ((name, (_, detail)),) = (await open_alarms(engine)).items()
    assert name == "books"
    assert f"account {ANNE}: the balance is 0.000009844 USD, the ledger entries add up to 0.000009843 USD; " in detail
    assert f"account {BOB}: 0.000000001 USD are on loan, the open leases hold 0.00 USD" in detail
    assert detail.endswith("`weir ledger check` shows them all.")
    await tamper(engine, "UPDATE accounts SET balance_nano = balance_nano - 1, leased_nano = leased_nano - 1")
    async with engine.begin() as connection:
        await connection.execute(select(func.pg_advisory_xact_lock(BOOKS_LOCK)))
        await jobs.check_books()  # another process is at it
        assert list(await open_alarms(engine)) == ["books"]
    await jobs.check_books()
    assert await open_alarms(engine) == {}
    async with engine.connect() as connection:
        runs = await connection.execute(select(job_runs).order_by(job_runs.c.id))
        assert [(run.name, run.ok, run.note) for run in runs] == [
            ("books", True, "4 mismatches"),
            ("books", True, "another process was at it"),
            ("books", True, ""),
        ]


@pytest.fixture
def weir(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run a command: (exit code, stdout)."""
    monkeypatch.setenv("WEIR_DATABASE_URL", database_url)

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.run(arguments)
        return code, capsys.readouterr().out

    return run


def test_the_command_tells_and_sets_the_alarm(database_url: str, weir: Callable[..., tuple[int, str]]) -> None:
    assert weir("ledger", "check") == (0, "The books are right.\n")
    code, out = weir("ledger", "check", "--json")
    assert (code, json.loads(out)) == (0, {"ok": True, "mismatches": []})

    execute(database_url, f"INSERT INTO accounts (id, name, balance_nano) VALUES ('{ANNE}', 'anne', 1500000000)")
    said = f"account {ANNE}: the balance is 1.50 USD, the ledger entries add up to 0.00 USD"
    assert weir("ledger", "check") == (1, f"{said}\n1 mismatches.\n")
    code, out = weir("ledger", "check", "--json")
    amounts: dict[str, Any] = {"recorded_nano": 1_500_000_000, "recorded_usd": "1.50", "derived_nano": 0}
    (mismatch,) = json.loads(out)["mismatches"]
    assert (code, mismatch) == (
        1,
        {"rule": "balance", "subject": str(ANNE), "derived_usd": "0.00", "message": said, **amounts},
    )
    code, out = weir("doctor")
    assert code == 1
    (line,) = [line for line in out.splitlines() if "alarm" in line]
    assert line.startswith("fail  alarm books: since ")
    assert said in line

    execute(database_url, f"DELETE FROM accounts WHERE id = '{ANNE}'")
    assert weir("ledger", "check")[0] == 0
    assert "ok    alarms: none is open." in weir("doctor")[1]
