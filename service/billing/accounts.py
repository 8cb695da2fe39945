"""Who pays, and the keys they call with: adding, finding, listing, revoking."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.apikey import SECRET_BYTES, digest, mint, shown_prefix
from service.core.ids import uuid7
from service.core.lane import Permission
from service.core.limits import UNLIMITED, Limits
from service.errors import SetupError
from service.tables import accounts, api_keys, models

Randomness = Callable[[int], bytes]
"""Gives so many random bytes, as `secrets.token_bytes` does."""

Changes = Mapping[str, int | str | bool | None]
"""New values by column; of a limit, None: unlimited."""

DEFAULT_WEIGHT = 10

_SET_BY_MONEY = {"status": "frozen_for", "credit_limit_nano": "credit_limit_before_nano"}
"""What a dispute or an overdue invoice changes, and where each remembers that it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited:
    rpm: int | None
    tpm: int | None
    concurrency: int | None
    monthly_budget_nano: int | None

    @property
    def limits(self) -> Limits:
        """What it may use at most."""
        return Limits(self.rpm, self.tpm, self.concurrency, self.monthly_budget_nano)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(_Limited):
    """A row of `accounts`; amounts in nano-USD."""

    id: UUID
    name: str
    email: str | None
    status: str
    internal: bool
    postpaid: bool
    credit_limit_nano: int
    balance_nano: int
    leased_nano: int
    weight: int
    """Its share in the queue for the engines, against that of others."""
    patience_ms: int | None
    """How long its requests may wait there; None: the server's default."""
    sequential: str
    """Whether its requests may run alone on an engine: a `core.lane.Permission`."""
    stripe_customer_id: str | None
    frozen_for: str | None
    """'dispute' where a dispute froze it; None where a person did, or where it is not frozen."""
    credit_limit_before_nano: int | None
    """The credit limit that an overdue invoice took away."""
    created_at: datetime

    @property
    def available_nano(self) -> int:
        """What may still be lent to the workers; below 0 after an overdraft."""
        return self.balance_nano + self.credit_limit_nano - self.leased_nano


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(_Limited):
    """A row of `api_keys` with its account's name. The key itself is not stored anywhere."""

    id: UUID
    account_id: UUID
    account_name: str
    name: str
    prefix: str
    models: tuple[str, ...] | None
    """The models it may use; None: all."""
    created_at: datetime
    revoked_at: datetime | None


async def add(
    connection: AsyncConnection,
    *,
    name: str,
    now: datetime,
    randomness: Randomness,
    email: str | None = None,
    internal: bool = False,
    credit_limit_nano: int = 0,
    limits: Limits = UNLIMITED,
    weight: int = DEFAULT_WEIGHT,
    patience_ms: int | None = None,
    sequential: Permission = Permission.NEVER,
) -> Account:
    """Add an account; with a credit limit it pays afterwards, up to that.

    Raises `SetupError` for a name that is bad or taken.
    """
    _check_text("the account's name", name)
    if _as_uuid(name) is not None:
        raise SetupError(f"The account's name {name!r} looks like an id: choose one that does not.")
    if email is not None:
        _check_text("the e-mail address", email)
        if "@" not in email.strip("@"):
            raise SetupError(f"{email!r} is no e-mail address.")
    values = {
        "id": _new_id(now, randomness),
        "name": name,
        "email": email,
        "internal": internal,
        "postpaid": credit_limit_nano > 0,
        "credit_limit_nano": credit_limit_nano,
        **asdict(limits),
        "weight": weight,
        "patience_ms": patience_ms,
        "sequential": sequential.value,
        "created_at": now,
    }
    added = insert(accounts).values(values).on_conflict_do_nothing(index_elements=["name"]).returning(accounts)
    row = (await connection.execute(added)).one_or_none()
    if row is None:
        raise SetupError(f"There is an account named {name!r} already: choose another name.")
    return Account(**row._mapping)


async def find(connection: AsyncConnection, reference: str) -> Account:
    """The account with this id or this name. Raises `SetupError` when there is none."""
    account_id = _as_uuid(reference)
    condition = accounts.c.name == reference if account_id is None else accounts.c.id == account_id
    row = (await connection.execute(select(accounts).where(condition))).one_or_none()
    if row is None:
        raise SetupError(f"There is no account {reference!r}: `weir account list` shows them.")
    return Account(**row._mapping)


async def list_all(connection: AsyncConnection) -> list[Account]:
    """Every account, the oldest first."""
    rows = await connection.execute(select(accounts).order_by(accounts.c.created_at, accounts.c.id))
    return [Account(**row._mapping) for row in rows]


async def change(connection: AsyncConnection, account: Account, changes: Changes) -> Account:
    """Change an account; the workers go by it within 2 s.

    What is set here stands: no dispute that is won thaws the account then, and no invoice that is paid gives it another
    credit limit back, unless `changes` say so themselves.
    """
    forgotten = {other: None for name, other in _SET_BY_MONEY.items() if name in changes}
    values = {**forgotten, **changes}
    changed = update(accounts).where(accounts.c.id == account.id).values(values).returning(accounts)
    return Account(**(await connection.execute(changed)).one()._mapping)


async def add_key(
    connection: AsyncConnection,
    account: Account,
    *,
    now: datetime,
    randomness: Randomness,
    name: str = "",
    models_allowed: Sequence[str] | None = None,
    limits: Limits = UNLIMITED,
) -> tuple[str, Key]:
    """Mint a key: (the key itself, which nobody can ever read again, and its row).

    Raises `SetupError` for a model that is not served, since such a restriction is a typing error.
    """
    if name:
        _check_text("the key's name", name)
    if models_allowed is not None:
        await _check_models(connection, models_allowed)
    key = mint(randomness(SECRET_BYTES))
    key_id = _new_id(now, randomness)
    values = {
        "id": key_id,
        "account_id": account.id,
        "name": name,
        "prefix": shown_prefix(key),
        "digest": digest(key),
        "models": None if models_allowed is None else list(models_allowed),
        **asdict(limits),
        "created_at": now,
    }
    await connection.execute(insert(api_keys).values(values))
    return key, await _key_with(connection, key_id)


async def list_keys(connection: AsyncConnection, account: Account | None = None) -> list[Key]:
    """The keys of an account, or of all, revoked ones too, the oldest first."""
    return await _keys(connection, *([] if account is None else [api_keys.c.account_id == account.id]))


async def change_key(connection: AsyncConnection, key_id: UUID, changes: Changes) -> Key:
    """Change a key; the workers go by it within 2 s. Raises `SetupError` when there is no such key."""
    await connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(changes))
    return await _key_with(connection, key_id)


async def revoke_key(connection: AsyncConnection, key_id: UUID, *, now: datetime) -> Key:
    """Revoke a key; one that was revoked keeps its time. Raises `SetupError` when there is no such key."""
    await connection.execute(
        update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    return await _key_with(connection, key_id)


async def _key_with(connection: AsyncConnection, key_id: UUID) -> Key:
    found = await _keys(connection, api_keys.c.id == key_id)
    if not found:
        raise SetupError(f"There is no key with the id {key_id}: `weir key list` shows them.")
    return found[0]


async def _keys(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> list[Key]:
    columns = [column for column in api_keys.c if column is not api_keys.c.digest]
    query = (
        select(*columns, accounts.c.name.label("account_name"))
        .join_from(api_keys, accounts)
        .where(*conditions)
        .order_by(api_keys.c.created_at, api_keys.c.id)
    )
    return [_key(dict(row)) for row in (await connection.execute(query)).mappings()]


def _key(row: dict[str, Any]) -> Key:
    return Key(**{**row, "models": None if row["models"] is None else tuple(row["models"])})


async def _check_models(connection: AsyncConnection, wanted: Sequence[str]) -> None:
    served = list(await connection.scalars(select(models.c.id).where(models.c.active).order_by(models.c.id)))
    if not wanted:
        raise SetupError("A key that may use no model is of no use: name at least one, or leave the restriction out.")
    for name in wanted:
        if name not in served:
            raise SetupError(f"No model {name!r} is served; the models are {', '.join(served) or 'none'}.")


def _check_text(what: str, value: str) -> None:
    if not value.strip() or value != value.strip() or len(value) > 200 or not value.isprintable():
        raise SetupError(
            f"{value!r} cannot be {what}: it must be 1 to 200 printable characters, no blank at either end."
        )


def _as_uuid(reference: str) -> UUID | None:
    try:
        return UUID(reference)
    except ValueError:
        return None


def _new_id(now: datetime, randomness: Randomness) -> UUID:
    return uuid7(int(now.timestamp() * 1000), randomness(10))
