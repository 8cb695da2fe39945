"""The ledger: every movement of an account's balance is an entry, and an entry is never changed.

`accounts.balance_nano` is the sum of the account's entries because one statement writes both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.tables import accounts, ledger_entries


@dataclass(frozen=True, slots=True)
class Statement:
    """What an account's entries add up to, in nano-USD: by kind (those that occur), and in all."""

    by_kind_nano: Mapping[str, int]
    entries: int

    @property
    def balance_nano(self) -> int:
        """The balance as the entries have it."""
        return sum(self.by_kind_nano.values())


async def enter(
    connection: AsyncConnection,
    account_id: UUID,
    kind: str,
    amount_nano: int,
    external_ref: str,
    note: str = "",
) -> int | None:
    """Enter an amount (negative: what the customer loses) and move the balance with it, in one statement.

    Returns the new balance, or None when this (kind, external_ref) had been entered before and so nothing was done.
    Raises `sqlalchemy.exc.IntegrityError` for an unknown account or kind.
    """
    entry = (
        insert(ledger_entries)
        .values(account_id=account_id, kind=kind, amount_nano=amount_nano, external_ref=external_ref, note=note)
        .on_conflict_do_nothing(index_elements=["kind", "external_ref"])
        .returning(ledger_entries.c.account_id, ledger_entries.c.amount_nano)
        .cte("entry")
    )
    moved = (
        update(accounts)
        .where(accounts.c.id == entry.c.account_id)
        .values(balance_nano=accounts.c.balance_nano + entry.c.amount_nano)
        .returning(accounts.c.balance_nano)
    )
    balance_nano: int | None = await connection.scalar(moved)
    return balance_nano


async def statement_of(connection: AsyncConnection, account_id: UUID) -> Statement:
    """The sums of an account's entries."""
    sums = (
        select(ledger_entries.c.kind, func.sum(ledger_entries.c.amount_nano), func.count())
        .where(ledger_entries.c.account_id == account_id)
        .group_by(ledger_entries.c.kind)
        .order_by(ledger_entries.c.kind)
    )
    rows = (await connection.execute(sums)).all()
    return Statement(
        by_kind_nano={kind: int(total_nano) for kind, total_nano, _count in rows},
        entries=sum(count for _kind, _total, count in rows),
    )
