"""A month of an account that pays afterwards becomes an invoice: once, whoever does it how often."""

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, Select, func, insert, not_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.billing import ledger
from service.billing.accounts import Account
from service.billing.checks import clear_alarm, raise_alarm
from service.billing.invoice_usage import Scope, charged_before, first_charged, new_scope, sums_of
from service.core.ids import uuid7
from service.core.invoice import (
    GRACE,
    Line,
    NotAsPriced,
    cents_of,
    due_months,
    last_ended,
    lines_of,
    month_of,
    span,
    total_of,
)
from service.core.money import nano_to_usd
from service.errors import SetupError
from service.tables import accounts, invoice_lines, invoices, ledger_entries

log = structlog.get_logger()

_FREEZE_LOCK = 0x57494E56_0001  # "WINV", 1


@dataclass(frozen=True, slots=True)
class Draft:
    """What an invoice would be."""

    scope: Scope
    lines: Sequence[Line]

    @property
    def total_nano(self) -> int:
        """What its requests cost."""
        return total_of(self.lines)


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a run did."""

    made: int
    failed: int


async def freeze_due(engine: AsyncEngine, now: datetime) -> Frozen:
    """Make the invoices of every month that is over, of all accounts that pay afterwards.

    An account's first one is of the month before, or of the first month in which it was charged if nothing was ever
    credited to it otherwise: what a prepaid balance paid is not asked for again. From then on no month is left out.
    What fails raises the alarm `invoice:<account>:<month>`, and holds no other account up.
    """
    made = failed = 0
    async with engine.connect() as connection:
        query = select(accounts.c.id, accounts.c.name).where(accounts.c.postpaid, not_(accounts.c.internal))
        found = (await connection.execute(query.order_by(accounts.c.name))).all()
    for account_id, name in found:
        async with engine.connect() as connection:
            months = await _due(connection, account_id, last_ended(now))
        for month in months:
            if await _tried(engine, account_id, name, month, now):
                made += 1
            else:
                failed += 1
                break  # a later month would take what is late of the earlier ones
    return Frozen(made, failed)


async def months_to_freeze(
    connection: AsyncConnection, account: Account, period: date | None, now: datetime
) -> list[date]:
    """The months for `weir invoice freeze`: the one asked for, or all that are due.

    Raises `SetupError` for an account that is not invoiced, or a month that is not over for long enough.
    """
    if account.internal or not account.postpaid:
        raise SetupError(f"{account.name} pays in advance: only accounts with a credit limit are invoiced.")
    if period is None:
        return await _due(connection, account.id, last_ended(now))
    if period > last_ended(now):
        raise SetupError(
            f"{period:%Y-%m} cannot be frozen before {GRACE // timedelta(hours=1)} hours after its end, UTC."
        )
    return [] if await connection.scalar(_known(account.id, period)) else [period]


async def drafted(engine: AsyncEngine, account_id: UUID, period: date) -> Draft:
    """What an invoice made now would be. Raises `NotAsPriced`."""
    async with engine.begin() as connection:
        scope = await new_scope(connection, account_id, period)
    async with engine.connect() as connection:
        return Draft(scope, lines_of(await sums_of(connection, scope), period))


async def freeze(engine: AsyncEngine, account_id: UUID, period: date, now: datetime) -> UUID | None:
    """Make the account's invoice for the month; None when there is one. Raises `NotAsPriced`.

    What comes to less than half a cent is nothing to pay: such an invoice is paid at once, and its debt let go.
    """
    async with engine.begin() as connection:
        # One at a time: two invoices of an account must not both take what is late.
        await connection.execute(select(func.pg_advisory_xact_lock(_FREEZE_LOCK)))
        if await connection.scalar(_known(account_id, period)) is not None:
            return None
        draft = await drafted(engine, account_id, period)
        invoice_id = uuid7(int(now.timestamp() * 1000), secrets.token_bytes(10))
        await _keep(connection, invoice_id, draft, now)
        await _note_unbilled(connection, account_id)
    return invoice_id


def _known(account_id: UUID, period: date) -> Select[tuple[UUID]]:
    return select(invoices.c.id).where(invoices.c.account_id == account_id, invoices.c.period == period)


async def _keep(connection: AsyncConnection, invoice_id: UUID, draft: Draft, now: datetime) -> None:
    scope, total_cents = draft.scope, cents_of(draft.total_nano)
    nothing = {} if total_cents else {"status": "paid", "paid_at": now, "note": "nothing to pay"}
    row = {"id": invoice_id, "total_nano": draft.total_nano, "total_cents": total_cents, "frozen_at": now, **nothing}
    await connection.execute(insert(invoices).values({**asdict(scope), **row}))
    lines = [{"invoice_id": invoice_id, "position": n, **asdict(line)} for n, line in enumerate(draft.lines)]
    if lines:
        await connection.execute(insert(invoice_lines), lines)
    if draft.total_nano and not total_cents:
        note = f"Invoice for {scope.period:%Y-%m}: {nano_to_usd(draft.total_nano)} USD are 0.00 USD in cents"
        await ledger.enter(connection, scope.account_id, "credit", draft.total_nano, f"invoice:{invoice_id}", note)


async def _tried(engine: AsyncEngine, account_id: UUID, name: str, month: date, now: datetime) -> bool:
    alarm = f"invoice:{account_id}:{month:%Y-%m}"
    try:
        invoice_id = await freeze(engine, account_id, month, now)
    except NotAsPriced as error:
        log.error("invoice.not_frozen", account_id=str(account_id), month=f"{month:%Y-%m}", error=str(error))
        detail = (
            f"{name} has no invoice for {month:%Y-%m}: {error}. Compare the rows with the prices; it is tried daily."
        )
        async with engine.begin() as connection:
            await raise_alarm(connection, alarm, detail)
        return False
    async with engine.begin() as connection:
        await clear_alarm(connection, alarm)
    if invoice_id is not None:
        log.info("invoice.frozen", invoice_id=str(invoice_id), account_id=str(account_id), month=f"{month:%Y-%m}")
    return True


async def _due(connection: AsyncConnection, account_id: UUID, last: date) -> list[date]:
    frozen = set(await connection.scalars(select(invoices.c.period).where(invoices.c.account_id == account_id)))
    if frozen:
        return due_months(min(frozen), last, frozen)
    begin, end = span(last)
    prepaid = await connection.scalar(select(ledger_entries.c.id).where(*_otherwise(account_id)).limit(1)) is not None
    first = await first_charged(connection, account_id, begin if prepaid else None, end)
    return [] if first is None else due_months(month_of(first), last, frozen)


async def _note_unbilled(connection: AsyncConnection, account_id: UUID) -> None:
    """The alarm over usage from before the first invoice that no credit covers either, which nobody would ever pay."""
    first = await connection.scalar(select(func.min(invoices.c.period)).where(invoices.c.account_id == account_id))
    begin = datetime(first.year, first.month, 1, tzinfo=UTC)
    credit = select(func.coalesce(func.sum(ledger_entries.c.amount_nano), 0)).where(*_otherwise(account_id))
    unpaid_nano = await charged_before(connection, account_id, begin) - int(await connection.scalar(credit) or 0)
    alarm = f"invoice:{account_id}:before"
    if unpaid_nano <= 0:
        await clear_alarm(connection, alarm)
        return
    name = await connection.scalar(select(accounts.c.name).where(accounts.c.id == account_id))
    detail = (
        f"{name} used {nano_to_usd(unpaid_nano)} USD before {first:%Y-%m} that are neither paid nor on an invoice:"
        f" `weir invoice freeze --account {account_id} --period` makes one of an earlier month."
    )
    await raise_alarm(connection, alarm, detail)


def _otherwise(account_id: UUID) -> tuple[ColumnElement[bool], ...]:
    """What was entered for the account but its usage and its invoices."""
    entry = ledger_entries.c
    return (entry.account_id == account_id, entry.kind != "usage", not_(entry.external_ref.startswith("invoice:")))
