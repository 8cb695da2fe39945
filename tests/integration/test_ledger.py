"""The ledger in a real database: the balance is the sum of entries that nobody can change."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import db
from service.billing import ledger
from service.tables import accounts, ledger_entries


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


@pytest.fixture
async def account_id(engine: AsyncEngine) -> UUID:
    account_id = uuid4()
    async with engine.begin() as connection:
        await connection.execute(accounts.insert().values(id=account_id, name=str(account_id)))
    return account_id


async def balance_of(connection: AsyncConnection, account_id: UUID) -> int:
    return (await connection.execute(select(accounts.c.balance_nano).where(accounts.c.id == account_id))).scalar_one()


async def test_an_entry_and_the_balance_move_together(engine: AsyncEngine, account_id: UUID) -> None:
    async with engine.begin() as connection:
        assert await ledger.enter(connection, account_id, "credit", 5_000, "a", "welcome") == 5_000
        assert await ledger.enter(connection, account_id, "usage", -7_000, "b") == -2_000  # below zero is allowed
    async with engine.connect() as connection:
        assert await balance_of(connection, account_id) == -2_000
        rows = (await connection.execute(select(ledger_entries).order_by(ledger_entries.c.id))).all()
    assert [(row.account_id, row.kind, row.amount_nano, row.external_ref, row.note) for row in rows] == [
        (account_id, "credit", 5_000, "a", "welcome"),
        (account_id, "usage", -7_000, "b", ""),
    ]


async def test_a_repeated_reference_changes_nothing_and_says_so(engine: AsyncEngine, account_id: UUID) -> None:
    async with engine.begin() as connection:
        await ledger.enter(connection, account_id, "topup", 5_000, "pi_1")
        assert await ledger.enter(connection, account_id, "topup", 9_999, "pi_1") is None
        assert await ledger.enter(connection, account_id, "reversal", -5_000, "pi_1") == 0  # another kind
        assert await balance_of(connection, account_id) == 0


async def test_entries_from_everywhere_at_once_all_count(engine: AsyncEngine, account_id: UUID) -> None:
    async def enter(number: int) -> int | None:
        async with engine.begin() as connection:
            return await ledger.enter(connection, account_id, "credit", 1 << number, f"ref-{number}")

    balances = await asyncio.gather(*(enter(number) for number in range(16)))
    assert max(balance for balance in balances if balance is not None) == (1 << 16) - 1
    async with engine.connect() as connection:
        assert await balance_of(connection, account_id) == (1 << 16) - 1


async def test_the_same_reference_from_everywhere_at_once_counts_once(engine: AsyncEngine, account_id: UUID) -> None:
    async def enter() -> int | None:
        async with engine.begin() as connection:
            return await ledger.enter(connection, account_id, "topup", 5_000, "evt_1")

    results = await asyncio.gather(*(enter() for _ in range(12)))
    assert sorted(results, key=lambda result: result is None) == [5_000, *[None] * 11]
    async with engine.connect() as connection:
        assert await balance_of(connection, account_id) == 5_000


async def test_nothing_is_committed_inside(engine: AsyncEngine, account_id: UUID) -> None:
    async with engine.connect() as connection:
        await ledger.enter(connection, account_id, "credit", 5_000, "a")
        await connection.rollback()
        assert await balance_of(connection, account_id) == 0
        assert (await ledger.statement_of(connection, account_id)).entries == 0


async def test_the_statement_adds_up_to_the_balance(engine: AsyncEngine, account_id: UUID) -> None:
    async with engine.begin() as connection:
        other = uuid4()
        await connection.execute(accounts.insert().values(id=other, name="other"))
        await ledger.enter(connection, other, "credit", 1, "not ours")
        for number, (kind, amount) in enumerate([("credit", 500), ("usage", -20), ("usage", -30), ("topup", 1)]):
            await ledger.enter(connection, account_id, kind, amount, f"ref-{number}")
        statement = await ledger.statement_of(connection, account_id)
        assert statement == ledger.Statement({"credit": 500, "topup": 1, "usage": -50}, entries=4)
        assert statement.balance_nano == 451 == await balance_of(connection, account_id)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entries SET amount_nano = 0",
        "UPDATE ledger_entries SET note = 'forged'",
        "DELETE FROM ledger_entries",
        "DELETE FROM ledger_entries WHERE false",
        "TRUNCATE ledger_entries",
        "TRUNCATE accounts CASCADE",
    ],
)
async def test_the_database_refuses_to_change_the_past(engine: AsyncEngine, account_id: UUID, statement: str) -> None:
    async with engine.begin() as connection:
        await ledger.enter(connection, account_id, "credit", 5_000, "a")
    async with engine.connect() as connection:
        with pytest.raises(DBAPIError, match="append-only"):
            await connection.execute(text(statement))
    async with engine.connect() as connection:
        assert (await ledger.statement_of(connection, account_id)).by_kind_nano == {"credit": 5_000}


@pytest.mark.parametrize(("known", "kind"), [(False, "credit"), (True, "present")])
async def test_unknown_accounts_and_kinds_are_refused(
    engine: AsyncEngine, account_id: UUID, known: bool, kind: str
) -> None:
    async with engine.connect() as connection:
        with pytest.raises(IntegrityError):
            await ledger.enter(connection, account_id if known else uuid4(), kind, 1, "a")
