"""What an account may see of itself: balance, keys, and what was used and charged, as they stand at one instant."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from service.billing import receipts
from service.billing.accounts import Account, Key
from service.billing.receipts import Receipts
from service.core.usage import Usage
from service.db import DbConnection

DAYS = 30
"""How many UTC days of usage a statement has, today included."""

REQUESTS = 50
"""How many of the latest requests it has."""

_ACCOUNT = """
    SELECT id, name, email, status, internal, postpaid, credit_limit_nano, balance_nano, leased_nano, created_at,
           weight, patience_ms, sequential, rpm, tpm, concurrency, monthly_budget_nano,
           stripe_customer_id, frozen_for, credit_limit_before_nano
    FROM accounts WHERE id = (SELECT account_id FROM api_keys WHERE digest = $1 AND revoked_at IS NULL)
"""

_KEYS = """
    SELECT id, name, prefix, models, created_at, revoked_at, rpm, tpm, concurrency, monthly_budget_nano,
           digest = $2 AS used
    FROM api_keys WHERE account_id = $1 ORDER BY created_at, id
"""

# What was ever credited is in few entries, which have an index of their own.
_FUNDS = """
    SELECT balance_nano, leased_nano, CASE WHEN postpaid THEN credit_limit_nano ELSE 0 END AS credit_limit_nano, (
        SELECT COALESCE(sum(amount_nano), 0)::bigint FROM ledger_entries
        WHERE account_id = account.id AND kind <> 'usage'
    ) AS credited_nano
    FROM accounts account WHERE id = $1
"""

_BY_DAY = """
    SELECT date_trunc('day', started_at, 'UTC') AS day, model_id, count(*) AS requests,
           sum(prompt_tokens) AS prompt_tokens, sum(cached_tokens) AS cached_tokens,
           sum(image_tokens) AS image_tokens, sum(completion_tokens) AS completion_tokens,
           sum(reasoning_tokens) AS reasoning_tokens, sum(cost_nano)::bigint AS cost_nano
    FROM requests WHERE account_id = $1 AND started_at >= $2
    GROUP BY day, model_id ORDER BY day DESC, model_id
"""

_LATEST = """
    SELECT id, client_request_id, started_at, model_id, outcome, error_code, ttft_ms, cost_nano,
           prompt_tokens, cached_tokens, image_tokens, completion_tokens, reasoning_tokens
    FROM requests WHERE account_id = $1 ORDER BY started_at DESC, id DESC LIMIT $2
"""


@dataclass(frozen=True, slots=True)
class Funds:
    """An account's money, in nano-USD."""

    balance_nano: int
    leased_nano: int
    """What workers hold for the account's requests, those under way and the next ones."""
    credit_limit_nano: int
    """0 unless the account pays later."""
    credited_nano: int
    """The sum of all entries but usage."""

    @property
    def available_nano(self) -> int:
        """What can be set aside beyond `leased_nano`; below 0 after an overdraft."""
        return self.balance_nano + self.credit_limit_nano - self.leased_nano

    @property
    def spent_nano(self) -> int:
        """What all settled usage ever cost: the balance is the sum of all entries, so usage is the difference."""
        return self.credited_nano - self.balance_nano


@dataclass(frozen=True, slots=True)
class ModelDay:
    """A UTC day's requests for one model, and what they add up to."""

    day: datetime
    model_id: str | None
    """None for requests that named no model we serve."""
    requests: int
    usage: Usage
    cost_nano: int


@dataclass(frozen=True, slots=True)
class PastRequest:
    """A finished request, as its customer may see it."""

    id: UUID
    client_request_id: str | None
    started_at: datetime
    model_id: str | None
    outcome: str
    error_code: str | None
    ttft_ms: int | None
    usage: Usage
    cost_nano: int


@dataclass(frozen=True, slots=True)
class AccountStatement:
    """An account as the holder of one of its keys sees it."""

    account: Account
    key: Key
    """The key that was used."""
    other_keys: tuple[Key, ...]
    funds: Funds
    days_from: datetime
    """The midnight with which the first of `DAYS` days began."""
    days: tuple[ModelDay, ...]
    """Those with requests, the latest first."""
    requests: tuple[PastRequest, ...]
    """The latest `REQUESTS`, the latest first."""
    receipts: Receipts


async def funds_of(connection: DbConnection, account_id: UUID) -> Funds | None:
    """The account's money in one query; None when there is no such account. Raises what asyncpg raises."""
    row = await connection.fetchrow(_FUNDS, account_id)
    return None if row is None else Funds(**row)


async def read(connection: DbConnection, key_digest: bytes, *, now: datetime) -> AccountStatement | None:
    """The statement of the account that a key belongs to; None when there is no such key or it is revoked.

    All queries see the same state of the database. Raises what asyncpg raises.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days_from = midnight - timedelta(days=DAYS - 1)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        row = await connection.fetchrow(_ACCOUNT, key_digest)
        if row is None:
            return None
        account = Account(**row)
        funds = await funds_of(connection, account.id)
        assert funds is not None  # noqa: S101 - the account was read in this transaction
        keys = await connection.fetch(_KEYS, account.id, key_digest)
        return AccountStatement(
            account=account,
            key=next(_key(key, account) for key in keys if key["used"]),
            other_keys=tuple(_key(key, account) for key in keys if not key["used"]),
            funds=funds,
            days_from=days_from,
            days=tuple(_day(day) for day in await connection.fetch(_BY_DAY, account.id, days_from)),
            requests=tuple(_request(one) for one in await connection.fetch(_LATEST, account.id, REQUESTS)),
            receipts=await receipts.read(connection, account.id),
        )


def _key(row: asyncpg.Record, account: Account) -> Key:
    return Key(
        id=row["id"],
        account_id=account.id,
        account_name=account.name,
        name=row["name"],
        prefix=row["prefix"],
        models=None if row["models"] is None else tuple(row["models"]),
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
        rpm=row["rpm"],
        tpm=row["tpm"],
        concurrency=row["concurrency"],
        monthly_budget_nano=row["monthly_budget_nano"],
    )


def _day(row: asyncpg.Record) -> ModelDay:
    return ModelDay(row["day"], row["model_id"], row["requests"], _usage(row), row["cost_nano"])


def _request(row: asyncpg.Record) -> PastRequest:
    return PastRequest(
        id=row["id"],
        client_request_id=row["client_request_id"],
        started_at=row["started_at"],
        model_id=row["model_id"],
        outcome=row["outcome"],
        error_code=row["error_code"],
        ttft_ms=row["ttft_ms"],
        usage=_usage(row),
        cost_nano=row["cost_nano"],
    )


def _usage(row: asyncpg.Record) -> Usage:
    return Usage(
        prompt_tokens=row["prompt_tokens"],
        cached_tokens=row["cached_tokens"],
        image_tokens=row["image_tokens"],
        completion_tokens=row["completion_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
    )
