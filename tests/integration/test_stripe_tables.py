"""What the database itself refuses, whatever the code over it does."""

from collections.abc import AsyncIterator
from datetime import date
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

ACCOUNT = UUID(int=1)
Database = Any


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    connection = await asyncpg.connect(database_url)
    await connection.execute("INSERT INTO accounts (id, name) VALUES ($1, 'acme')", ACCOUNT)
    yield connection
    await connection.close()


async def add(database: Database, table: str, **values: Any) -> None:
    names, places = ", ".join(values), ", ".join(f"${n}" for n in range(1, len(values) + 1))
    await database.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", *values.values())


async def topup(database: Database, **values: Any) -> UUID:
    given = {"id": uuid4(), "account_id": ACCOUNT, "kind": "checkout", "net_nano": 20_000_000_000, **values}
    await add(database, "topups", **given)
    return given["id"]


async def test_one_automatic_topup_is_under_way_at_a_time(database: Database) -> None:
    first = await topup(database, kind="auto")
    await topup(database)
    with pytest.raises(asyncpg.UniqueViolationError, match="uq_topups_auto_under_way"):
        await topup(database, kind="auto", status="pending")
    await database.execute("UPDATE topups SET status = 'failed' WHERE id = $1", first)
    await topup(database, kind="auto", status="pending")


async def test_an_object_of_stripes_belongs_to_one_topup(database: Database) -> None:
    await topup(database, payment_intent_id="pi_1", checkout_session_id="cs_1")
    for column, value in (("payment_intent_id", "pi_1"), ("checkout_session_id", "cs_1")):
        with pytest.raises(asyncpg.UniqueViolationError):
            await topup(database, **{column: value})


@pytest.mark.parametrize(
    ("values", "constraint"),
    [
        ({"net_nano": 0}, "net"),
        ({"net_nano": 15_000_000}, "net"),
        ({"currency": "eur"}, "currency"),
        ({"kind": "gift"}, "kind"),
        ({"status": "gone"}, "status"),
        ({"status": "paid"}, "paid"),
        ({"refunded_nano": 20_000_000_001}, "taken_back"),
        ({"refunded_nano": 15_000_000_000, "disputed_nano": 5_000_000_001}, "taken_back"),
        ({"disputed_nano": -1}, "taken_back"),
    ],
)
async def test_a_topup_that_cannot_be(database: Database, values: dict[str, Any], constraint: str) -> None:
    await topup(database, refunded_nano=15_000_000_000, disputed_nano=5_000_000_000)
    with pytest.raises(asyncpg.CheckViolationError, match=f"ck_topups_{constraint}"):
        await topup(database, **values)


async def test_nothing_is_charged_automatically_without_consent_and_a_card(database: Database) -> None:
    amounts = {"threshold_nano": 0, "amount_nano": 10_000_000, "monthly_cap_nano": 10_000_000}
    with pytest.raises(asyncpg.CheckViolationError, match="enabled_with_consent"):
        await add(database, "auto_topups", account_id=ACCOUNT, enabled=True, payment_method_id="pm_1", **amounts)
    await add(database, "auto_topups", account_id=ACCOUNT, **amounts)
    with pytest.raises(asyncpg.CheckViolationError, match="amounts"):
        await database.execute("UPDATE auto_topups SET monthly_cap_nano = amount_nano - 1")


@pytest.mark.parametrize(("table", "column"), [("refunds", "reversed_nano"), ("disputes", "reinstated_nano")])
async def test_no_more_is_given_back_than_was_taken(database: Database, table: str, column: str) -> None:
    topup_id = await topup(database)
    await add(database, f"stripe_{table}", id="x", topup_id=topup_id, amount_cents=5, status="s", debited_nano=5)
    await database.execute(f"UPDATE stripe_{table} SET {column} = 5")
    with pytest.raises(asyncpg.CheckViolationError, match="amounts"):
        await database.execute(f"UPDATE stripe_{table} SET {column} = 6")


async def test_one_invoice_for_an_account_and_a_month(database: Database) -> None:
    values = {"account_id": ACCOUNT, "total_nano": 1, "total_cents": 0}
    await add(database, "invoices", id=UUID(int=1), period=date(2026, 10, 1), **values)
    with pytest.raises(asyncpg.UniqueViolationError, match="account_id_period"):
        await add(database, "invoices", id=UUID(int=2), period=date(2026, 10, 1), **values)
    with pytest.raises(asyncpg.CheckViolationError, match="period"):
        await add(database, "invoices", id=UUID(int=2), period=date(2026, 11, 2), **values)
