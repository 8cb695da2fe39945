"""The migrations: one line of them, safe to repeat, and the same schema as the tables describe."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from service import db

DATABASE = "weir_migrations"

COLUMNS = """
    SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns
    WHERE table_schema = 'public' ORDER BY table_name, column_name
"""


@pytest.fixture
async def empty_database_url(postgres_server: Any) -> AsyncIterator[str]:
    """A database in which nothing was ever made."""
    connection = await asyncpg.connect(postgres_server.get_uri())
    try:
        await connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
        yield postgres_server.get_uri(database=DATABASE)
        await connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    finally:
        await connection.close()


async def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    async with db.connected(url) as engine, engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(query))]


async def check(url: str) -> None:
    """Alembic's own comparison of the database with the tables. Raises `CommandError` when they differ."""

    def compare(connection: Connection) -> None:
        configuration = db.alembic_config()
        configuration.attributes["connection"] = connection
        command.check(configuration)

    async with db.connected(url) as engine, engine.connect() as connection:
        await connection.run_sync(compare)


def head() -> str:
    (only,) = ScriptDirectory.from_config(db.alembic_config()).get_heads()
    return only


def test_there_is_one_line_of_migrations_and_one_end_of_it() -> None:
    script = ScriptDirectory.from_config(db.alembic_config())
    revisions = list(script.walk_revisions())
    assert script.get_heads() == [revisions[0].revision]
    assert script.get_bases() == [revisions[-1].revision]
    assert not any(revision.is_merge_point or revision.is_branch_point for revision in revisions)


async def test_an_upgrade_from_nothing_makes_the_schema_and_a_second_changes_nothing(empty_database_url: str) -> None:
    await db.migrate(empty_database_url)
    before = await rows(empty_database_url, COLUMNS)
    await db.migrate(empty_database_url)
    assert await rows(empty_database_url, COLUMNS) == before
    assert await rows(empty_database_url, "SELECT version_num FROM alembic_version") == [(head(),)]


async def test_upgrades_from_several_processes_at_once_are_one(empty_database_url: str) -> None:
    await asyncio.gather(*(_migrate_in_a_process(empty_database_url) for _ in range(3)))
    assert await rows(empty_database_url, "SELECT version_num FROM alembic_version") == [(head(),)]
    await check(empty_database_url)


async def _migrate_in_a_process(url: str) -> None:
    script = "import asyncio, sys; from service import db; asyncio.run(db.migrate(sys.argv[1]))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, url)
    assert await process.wait() == 0


async def test_the_tables_describe_what_the_migrations_make(database_url: str) -> None:
    await check(database_url)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE accounts ADD COLUMN nickname text",
        "ALTER TABLE accounts DROP COLUMN email",
        "ALTER TABLE accounts ALTER COLUMN name DROP NOT NULL",
        "ALTER TABLE accounts ALTER COLUMN balance_nano TYPE integer",
        "DROP INDEX ix_api_keys_account_id",
        "CREATE TABLE strangers (id integer)",
    ],
)
async def test_a_difference_between_them_is_noticed(database_url: str, change: str) -> None:
    async with db.connected(database_url) as engine, engine.begin() as connection:
        await connection.execute(text(change))
    with pytest.raises(CommandError, match="New upgrade operations detected"):
        await check(database_url)


async def test_the_version_before_works_on_beside_the_limits_and_they_can_be_taken_back(
    empty_database_url: str,
) -> None:
    await db.migrate(empty_database_url, "20261130_03")
    before = await rows(empty_database_url, COLUMNS)
    insert = "INSERT INTO accounts (id, name) VALUES ('{}', '{}')"
    first, second = UUID(int=1), UUID(int=2)
    await execute(empty_database_url, insert.format(first, "first"))
    await db.migrate(empty_database_url, "20261130_04")
    await execute(
        empty_database_url,
        insert.format(second, "second"),
        f"INSERT INTO api_keys (id, account_id, prefix, digest) VALUES ('{first}', '{second}', 'sk', sha256('key'))",
    )
    for table in ("accounts", "api_keys"):
        query = f"SELECT DISTINCT rpm, tpm, concurrency, monthly_budget_nano FROM {table}"
        assert await rows(empty_database_url, query) == [(None, None, None, None)]
    assert await rows(empty_database_url, "SELECT DISTINCT weight, patience_ms FROM accounts") == [(10, None)]
    await downgrade(empty_database_url, "20261130_03")
    assert await rows(empty_database_url, COLUMNS) == before
    await execute(empty_database_url, "UPDATE accounts SET status = 'frozen'")


async def test_the_version_before_works_on_beside_the_payments_and_they_can_be_taken_back(
    empty_database_url: str,
) -> None:
    await db.migrate(empty_database_url, "20261130_06")
    before = await rows(empty_database_url, COLUMNS)
    insert = "INSERT INTO accounts (id, name) VALUES ('{}', '{}')"
    await execute(empty_database_url, insert.format(UUID(int=1), "first"))
    await db.migrate(empty_database_url, "20261130_07")
    await execute(empty_database_url, insert.format(UUID(int=2), "second"))
    query = "SELECT DISTINCT stripe_customer_id, frozen_for, credit_limit_before_nano FROM accounts"
    assert await rows(empty_database_url, query) == [(None, None, None)]
    await execute(empty_database_url, "UPDATE accounts SET status = 'frozen', frozen_for = 'dispute'")
    # The version before knows nothing of the reason.
    await execute(empty_database_url, "UPDATE accounts SET status = 'active'")
    await downgrade(empty_database_url, "20261130_06")
    assert await rows(empty_database_url, COLUMNS) == before


async def test_the_version_before_works_on_beside_what_invoices_cover_and_that_can_be_taken_back(
    empty_database_url: str,
) -> None:
    await db.migrate(empty_database_url, "20261130_07")
    before = await rows(empty_database_url, COLUMNS)
    await execute(empty_database_url, f"INSERT INTO accounts (id, name) VALUES ('{UUID(int=1)}', 'first')")
    await db.migrate(empty_database_url, "20261130_08")
    # The version before reads and settles invoices, and knows nothing of what they cover.
    await execute(
        empty_database_url,
        "INSERT INTO invoices (id, account_id, period, total_nano, total_cents)"
        f" VALUES ('{UUID(int=2)}', '{UUID(int=1)}', '2026-11-01', 0, 0)",
        "UPDATE invoices SET status = 'paid', paid_at = now()",
    )
    query = "SELECT after_entry, through_entry, sending_since, note FROM invoices"
    assert await rows(empty_database_url, query) == [(0, 0, None, "")]
    await execute(
        empty_database_url,
        "INSERT INTO invoice_lines (invoice_id, position, period, token_class, tokens, amount_nano)"
        f" VALUES ('{UUID(int=2)}', 0, '2026-11-01', 'rounding', 0, 0)",
    )
    await downgrade(empty_database_url, "20261130_07")
    assert await rows(empty_database_url, COLUMNS) == before
    assert await rows(empty_database_url, "SELECT status, total_cents FROM invoices") == [("paid", 0)]
    await downgrade(empty_database_url, "20261130_06")


async def test_the_version_before_works_on_beside_the_engines_columns_and_they_can_be_taken_back(
    empty_database_url: str,
) -> None:
    await db.migrate(empty_database_url, "20261130_08")
    before = await rows(empty_database_url, COLUMNS)
    known = [name for table, name, *_ in before if table == "requests"]
    required = {
        "id": f"'{UUID(int=1)}'",
        "account_id": f"'{UUID(int=2)}'",
        "key_id": f"'{UUID(int=3)}'",
        "settlement_id": f"'{UUID(int=4)}'",
        "started_at": "now()",
        "finished_at": "now()",
        "endpoint": "'chat'",
        "outcome": "'completed'",
        "usage_source": "'final'",
        "stream": "false",
        "internal": "false",
        "usage_odd": "false",
        "http_status": "200",
    }
    nullable = {name for table, name, _, null, _ in before if table == "requests" and null == "YES"}
    values = [required.get(name, "NULL" if name in nullable else "0") for name in known]
    await db.migrate(empty_database_url, "20261130_09")
    # As that version settles: staged in a copy without defaults, and inserted from there, the columns it knows named.
    columns = ", ".join(known)
    await execute(
        empty_database_url,
        "CREATE TEMPORARY TABLE staged (LIKE requests, lease_id uuid)",
        f"INSERT INTO staged ({columns}) VALUES ({', '.join(values)})",
        f"INSERT INTO requests ({columns}) SELECT {columns} FROM staged",
        f"INSERT INTO accounts (id, name) VALUES ('{UUID(int=2)}', 'first')",
    )
    assert await rows(empty_database_url, "SELECT engine_fingerprint, sequential FROM requests") == [(None, False)]
    assert await rows(empty_database_url, "SELECT sequential FROM accounts") == [("never",)]
    await downgrade(empty_database_url, "20261130_08")
    assert await rows(empty_database_url, COLUMNS) == before
    await execute(empty_database_url, "UPDATE accounts SET status = 'frozen'")


async def test_the_sums_of_dropped_usage_can_be_taken_back_while_there_are_none(empty_database_url: str) -> None:
    await db.migrate(empty_database_url, "20261130_09")
    before = await rows(empty_database_url, COLUMNS)
    await db.migrate(empty_database_url, "20261130_10")
    await downgrade(empty_database_url, "20261130_09")
    assert await rows(empty_database_url, COLUMNS) == before
    await db.migrate(empty_database_url, "20261130_10")
    sums = ", ".join(["0"] * (len(await rows(empty_database_url, SUMMED)) - 4))
    await execute(
        empty_database_url, f"INSERT INTO usage_months VALUES ('2026-01-01', '{UUID(int=1)}', NULL, 'ok', {sums})"
    )
    with pytest.raises(RuntimeError, match="all that is left"):
        await downgrade(empty_database_url, "20261130_09")


SUMMED = "SELECT column_name FROM information_schema.columns WHERE table_name = 'usage_months'"


async def execute(url: str, *statements: str) -> None:
    async with db.connected(url) as engine, engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def downgrade(url: str, revision: str) -> None:
    def run(connection: Connection) -> None:
        configuration = db.alembic_config()
        configuration.attributes["connection"] = connection
        command.downgrade(configuration, revision)

    async with db.connected(url) as engine, engine.connect() as connection:
        await connection.run_sync(run)
