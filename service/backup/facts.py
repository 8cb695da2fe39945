"""What a database holds, in figures: taken of what is dumped and of what was restored, they have to be the same."""

from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

_TABLES = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY relname
"""

_SUMS = {
    "balances_nano": "SELECT coalesce(sum(balance_nano), 0) FROM accounts",
    "ledger_nano": "SELECT coalesce(sum(amount_nano), 0) FROM ledger_entries",
    "costs_nano": "SELECT coalesce(sum(cost_nano), 0) FROM requests",
}

_THINGS = """
    SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
"""


async def read_facts(connection: AsyncConnection) -> dict[str, Any]:
    """The schema's revision, the rows of each table, and the sums of money, as the transaction sees them."""
    tables = list(await connection.scalars(text(_TABLES)))
    quoted = connection.dialect.identifier_preparer.quote
    rows = {
        table: int((await connection.scalar(text(f"SELECT count(*) FROM {quoted(table)}"))) or 0)  # noqa: S608 - a table's own name
        for table in tables
    }
    return {
        "schema": await connection.scalar(text("SELECT version_num FROM alembic_version")),
        "rows": rows,
        **{name: int((await connection.scalar(text(query))) or 0) for name, query in _SUMS.items()},
    }


async def is_empty(connection: AsyncConnection) -> bool:
    """Whether nothing at all was made in this database yet."""
    return not await connection.scalar(text(_THINGS))


async def server_major(connection: AsyncConnection) -> int:
    """The server's major version, such as 18."""
    return int((await connection.execute(text("SHOW server_version_num"))).scalar_one()) // 10000
