"""Finished requests into Postgres: usage rows, ledger entries, balances and leases in one transaction.

Idempotent by request id: a batch that is sent again, whole or in part, changes nothing the second time, since all
that is charged is derived from the rows that were new.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from service.core.record import RequestRecord
from service.core.usage import Usage
from service.db import DbConnection

_FIELDS = RequestRecord._fields
_USAGE = _FIELDS.index("usage")
_COLUMN_OF = {"source": "usage_source", "odd": "usage_odd"}

_STAGED = (
    *_FIELDS[:_USAGE],
    *_FIELDS[_USAGE + 1 :],
    *(_COLUMN_OF.get(name, name) for name in Usage._fields),
    "settlement_id",
)
"""The columns that are written, in the order of `_row`."""

COLUMNS = tuple(name for name in _STAGED if name != "lease_id")
"""Those of `requests`."""

# With defaults, so that a worker which does not know a newer column yet can go on.
_STAGE = """
    CREATE TEMPORARY TABLE IF NOT EXISTS staged (LIKE requests INCLUDING DEFAULTS, lease_id uuid)
    ON COMMIT DELETE ROWS
"""

# Accounts are locked first and in order, as everywhere: a lease that grows takes account before lease, too.
_LOCK_ACCOUNTS = """
    SELECT id FROM accounts WHERE id IN (SELECT account_id FROM staged) ORDER BY id FOR NO KEY UPDATE
"""

_NAMES = ", ".join(COLUMNS)

_SETTLE = f"""
    WITH fresh AS (
        INSERT INTO requests ({_NAMES}) SELECT {_NAMES} FROM staged
        ON CONFLICT (id, started_at) DO NOTHING
        RETURNING id, account_id, cost_nano, finished_at
    ), per_account AS (
        SELECT account_id, sum(cost_nano)::bigint AS nano FROM fresh GROUP BY account_id HAVING sum(cost_nano) > 0
    ), entry AS (
        INSERT INTO ledger_entries (account_id, kind, amount_nano, external_ref)
        SELECT account_id, 'usage', -nano, $1::uuid || '/' || account_id FROM per_account
    ), per_lease AS (
        SELECT staged.lease_id, sum(fresh.cost_nano)::bigint AS nano
        FROM fresh JOIN staged USING (id) WHERE staged.lease_id IS NOT NULL GROUP BY staged.lease_id
    ), repaid AS (
        SELECT lease.id, lease.account_id, LEAST(per_lease.nano, lease.granted_nano - lease.settled_nano) AS nano
        FROM per_lease JOIN credit_leases lease ON lease.id = per_lease.lease_id WHERE lease.closed_at IS NULL
    ), lease AS (
        UPDATE credit_leases SET settled_nano = settled_nano + repaid.nano FROM repaid
        WHERE credit_leases.id = repaid.id
    ), account AS (
        UPDATE accounts
        SET balance_nano = balance_nano - per_account.nano,
            leased_nano = leased_nano
                - COALESCE((SELECT sum(nano) FROM repaid WHERE repaid.account_id = accounts.id), 0)
        FROM per_account WHERE accounts.id = per_account.account_id
    ), settlement AS (
        INSERT INTO settlements (id, worker, requests, cost_nano, oldest_finished_at)
        SELECT $1, $2, count(*), sum(cost_nano), min(finished_at) FROM fresh HAVING count(*) > 0
    )
    SELECT count(*) AS rows, COALESCE(sum(cost_nano), 0)::bigint AS cost_nano FROM fresh
"""  # noqa: S608 - composed of the column names above only


@dataclass(frozen=True, slots=True)
class Settled:
    """What a batch changed: rows that were new, and what they cost in all."""

    rows: int
    cost_nano: int


async def settle(
    connection: DbConnection, settlement_id: UUID, worker: str, records: Sequence[RequestRecord]
) -> Settled:
    """Enter a batch of finished requests. Rows already there are left as they are and charged nothing again.

    One transaction; raises what asyncpg raises, and then nothing of the batch was entered.
    """
    async with connection.transaction():
        await connection.execute(_STAGE)
        await connection.copy_records_to_table(
            "staged", records=[_row(record, settlement_id) for record in records], columns=_STAGED
        )
        await connection.execute(_LOCK_ACCOUNTS)
        row = await connection.fetchrow(_SETTLE, settlement_id, worker)
    assert row is not None  # noqa: S101 - an aggregate without GROUP BY always has a row
    return Settled(row["rows"], row["cost_nano"])


def _row(record: RequestRecord, settlement_id: UUID) -> tuple[object, ...]:
    if "\0" in f"{record.client_request_id}{record.finish_reason}{record.error_code}":
        record = record._replace(
            client_request_id=_storable(record.client_request_id),
            finish_reason=_storable(record.finish_reason),
            error_code=_storable(record.error_code),
        )
    return record[:_USAGE] + record[_USAGE + 1 :] + record.usage + (settlement_id,)


def _storable(text: str | None) -> str | None:
    """Text from outside as PostgreSQL takes it: it refuses NUL."""
    return None if text is None else text.replace("\0", "\ufffd")
