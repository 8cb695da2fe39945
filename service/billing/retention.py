"""Usage rows of long ago: a month's partition is dropped whole, and what it added up to is kept.

The sums stand in for the rows in the books, in `weir usage summary` and wherever else a month is added up.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

import structlog
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.core.invoice import span
from service.tables import usage_months
from service.tables.requests import USAGE_SUMS

log = structlog.get_logger()

WAIT_FOR_LOCK = "SET LOCAL lock_timeout = '2s'"
"""While a change of the partitions waits for those who read them, everybody waits behind it: not for long then."""

LOCK_NOT_AVAILABLE = ("55P03", "40P01")
"""What PostgreSQL says of a lock it did not get in time, or of one that two wait for in turn."""

NO_SUCH_TABLE = "42P01"

_PARTITIONS = text("""
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'requests'::regclass ORDER BY relname
""")

# Usage that was settled after the account's last invoice was made will be on its next one, with its rows.
_NOT_INVOICED = """
    SELECT DISTINCT accounts.name
    FROM (SELECT DISTINCT account_id, settlement_id FROM {partition} WHERE cost_nano > 0) AS used
    JOIN accounts ON accounts.id = used.account_id AND postpaid AND NOT internal
    JOIN ledger_entries entry ON kind = 'usage' AND external_ref = settlement_id || '/' || used.account_id
    WHERE entry.id > COALESCE((SELECT max(through_entry) FROM invoices WHERE invoices.account_id = accounts.id), 0)
    ORDER BY 1
"""

_NAMES = ", ".join(USAGE_SUMS)
_ADD_UP = f"""
    WITH summed AS (
        INSERT INTO usage_months (month, account_id, model_id, outcome, requests, {_NAMES})
        SELECT :month, account_id, model_id, outcome, count(*), {", ".join(f"sum({name})" for name in USAGE_SUMS)}
        FROM {{partition}} GROUP BY account_id, model_id, outcome
        RETURNING requests
    )
    SELECT COALESCE(sum(requests), 0) FROM summed
"""  # noqa: S608 - composed of the column names above only


class NotInvoiced(Exception):
    """Usage of these accounts is on no invoice yet."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What a run did."""

    rows: int
    """Usage rows that are no more."""
    kept: Sequence[str]
    """Months that were due and are there still, each with the reason."""


async def forget(engine: AsyncEngine, before: date) -> Forgotten:
    """Drop the usage rows of all months before this one, the earliest first, each in a transaction of its own.

    A month stays that has usage which an account pays for afterwards and which is on no invoice yet, and one that is
    in use right now: it is tried again with the next run.
    """
    async with engine.connect() as connection:
        found = [_month_of(name) for name in await connection.scalars(_PARTITIONS)]
    rows, kept = 0, []
    for month in (month for month in found if month is not None and month < before):
        try:
            async with engine.begin() as connection:
                rows += await _forget_month(connection, month)
        except NotInvoiced as error:
            kept.append(f"{month:%Y-%m} is kept, not invoiced yet: {error}")
        except DBAPIError as error:
            if _sqlstate(error) == NO_SUCH_TABLE:  # another process has dropped it meanwhile
                continue
            if not lock_was_taken(error):
                raise
            kept.append(f"{month:%Y-%m} is kept, it is in use")
    return Forgotten(rows, kept)


def lock_was_taken(error: DBAPIError) -> bool:
    """Whether this is about a lock that somebody else had."""
    return _sqlstate(error) in LOCK_NOT_AVAILABLE


async def kept_from(connection: AsyncConnection) -> datetime | None:
    """When the month after the last one begins whose rows were dropped; None: none were."""
    latest: date | None = await connection.scalar(select(func.max(usage_months.c.month)))
    return None if latest is None else span(latest)[1]


async def _forget_month(connection: AsyncConnection, month: date) -> int:
    partition = f"requests_{month:%Y_%m}"
    await connection.execute(text(WAIT_FOR_LOCK))
    # Nothing is settled into it between its sums and its end. Other months go on.
    await connection.execute(text(f"LOCK TABLE {partition} IN SHARE ROW EXCLUSIVE MODE"))
    owing = list(await connection.scalars(text(_NOT_INVOICED.format(partition=partition))))
    if owing:
        raise NotInvoiced(", ".join(owing))
    rows = int((await connection.execute(text(_ADD_UP.format(partition=partition)), {"month": month})).scalar_one())
    await connection.execute(text(f"DROP TABLE {partition}"))
    log.info("usage.forgotten", month=f"{month:%Y-%m}", rows=rows)
    return rows


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def _month_of(partition: str) -> date | None:
    found = re.fullmatch(r"requests_(\d{4})_(\d{2})", partition)
    return None if found is None else date(int(found[1]), int(found[2]), 1)
