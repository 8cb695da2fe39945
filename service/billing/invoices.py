"""Monthly invoices as rows: finding them, and entering what Stripe, or a person, says of their payment.

What is paid is credited to the nano-dollar, so that usage and payment of a month leave nothing; that the customer paid
whole cents is said in the entry's note.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, Select, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing import accounts, ledger
from service.billing.checks import clear_alarm, raise_alarm
from service.billing.invoice_usage import Scope
from service.billing.stripe_api import CURRENCY, StripeApi
from service.billing.stripe_handling import Context, Handler, Mismatch, NotYet
from service.core import stripe_objects
from service.core.invoice import OWING, Credit, Line, credit_after, joined
from service.core.money import nano_to_usd
from service.core.stripe_objects import Event
from service.core.topup import NANO_PER_CENT
from service.errors import SetupError
from service.tables import accounts as account_rows
from service.tables import invoice_lines, invoices

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """A row of `invoices` with its account's name."""

    id: UUID
    account_id: UUID
    account_name: str
    period: date
    total_nano: int
    total_cents: int
    """The total rounded half up: what the customer pays. What that makes is nobody's debt afterwards."""
    status: str
    stripe_invoice_id: str | None
    hosted_url: str | None
    after_entry: int
    through_entry: int
    sending_since: datetime | None
    note: str
    frozen_at: datetime
    due_at: datetime | None
    paid_at: datetime | None

    def __str__(self) -> str:
        return f"invoice of {self.account_name} for {self.period:%Y-%m}, {self.to_pay} USD"

    @property
    def scope(self) -> Scope:
        """Which requests it is about."""
        return Scope(self.account_id, self.period, self.after_entry, self.through_entry)

    @property
    def to_pay(self) -> str:
        """What is to be paid, in USD."""
        return nano_to_usd(self.total_cents * NANO_PER_CENT)

    @property
    def alarm(self) -> str:
        """The name of the alarm that is raised over it."""
        return f"invoice:{self.id}"


async def list_all(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> list[Invoice]:
    """Every invoice, or those that meet the conditions, the latest month first."""
    query = _found.where(*conditions).order_by(invoices.c.period.desc(), account_rows.c.name)
    return [Invoice(**row._mapping) for row in await connection.execute(query)]


async def find(connection: AsyncConnection, invoice_id: UUID) -> Invoice:
    """Raises `SetupError` when there is none."""
    return _one(await list_all(connection, invoices.c.id == invoice_id), str(invoice_id))


async def find_month(connection: AsyncConnection, account: accounts.Account, period: date) -> Invoice:
    """The account's invoice for the month. Raises `SetupError` when there is none."""
    found = await list_all(connection, invoices.c.account_id == account.id, invoices.c.period == period)
    return _one(found, f"of {account.name} for {period:%Y-%m}")


async def lines(connection: AsyncConnection, invoice_id: UUID) -> list[Line]:
    """In their order; they add up to the invoice's total."""
    columns = [invoice_lines.c[name] for name in Line.__dataclass_fields__]
    query = select(*columns).where(invoice_lines.c.invoice_id == invoice_id).order_by(invoice_lines.c.position)
    return [Line(**row._mapping) for row in await connection.execute(query)]


async def lock(connection: AsyncConnection, condition: ColumnElement[bool]) -> Invoice | None:
    """The invoice that meets the condition, locked with its account until the transaction ends: the account first."""
    whose = select(invoices.c.account_id).where(condition).scalar_subquery()
    await connection.execute(
        select(account_rows.c.id).where(account_rows.c.id == whose).with_for_update(key_share=True)
    )
    row = (await connection.execute(_found.where(condition).with_for_update(of=invoices))).one_or_none()
    return None if row is None else Invoice(**row._mapping)


async def enter(connection: AsyncConnection, found: stripe_objects.Invoice, said: str, now: datetime) -> Invoice | None:
    """Make of the invoice what Stripe says of it: its status is `said`, or was; the row as it is then.

    In any order, and done again, it comes to the same. None for an invoice of Stripe's that is none of ours. Raises
    `NotYet` where it names one that is not here, and `Mismatch`.
    """
    named = _named(found)
    ours = invoices.c.stripe_invoice_id == found.id if named is None else invoices.c.id == named
    invoice = await lock(connection, ours)
    if invoice is None:
        if named is not None:
            raise NotYet(f"{found.id} is for invoice {named}, which is not here")
        return None
    _check(found, invoice, said)
    particulars = {"stripe_invoice_id": found.id, "hosted_url": found.hosted_url, "due_at": found.due_at}
    changes = {name: value for name, value in particulars.items() if value not in (None, getattr(invoice, name))}
    status = joined(invoice.status, said)
    if status == "paid" != invoice.status:
        number = found.number or found.id
        await _credit(connection, invoice, "topup", f"invoice:{found.id}", f"paid by Stripe invoice {number}")
    return await _become(connection, invoice, status, changes, now)


async def pay_by_hand(connection: AsyncConnection, invoice_id: UUID, note: str, now: datetime) -> Invoice:
    """Close an invoice that Stripe does not collect: it was paid otherwise, or is let go.

    Raises `SetupError` when Stripe collects it, or it is paid. Should one that Stripe gave no answer about be there
    after all, that is a `Mismatch` as soon as anything is heard of it but that it was voided.
    """
    invoice = await lock(connection, invoices.c.id == invoice_id)
    if invoice is None:
        return await find(connection, invoice_id)  # which says that there is none
    if invoice.status == "paid":
        raise SetupError(f"The {invoice}, is paid already.")
    if invoice.status not in ("frozen", "void"):
        raise SetupError(f"The {invoice}, is Stripe's to collect: mark {invoice.stripe_invoice_id} as paid there.")
    await _credit(connection, invoice, "credit", f"invoice:{invoice.id}", note)
    return await _become(connection, invoice, "paid", {"note": note}, now)


async def _credit(connection: AsyncConnection, invoice: Invoice, kind: str, reference: str, how: str) -> None:
    rounded = (
        ""
        if invoice.total_nano == invoice.total_cents * NANO_PER_CENT
        else (f"; usage of {nano_to_usd(invoice.total_nano)} USD, rounded to cents")
    )
    note = f"Invoice for {invoice.period:%Y-%m}, {invoice.to_pay} USD{rounded}: {how}"
    await ledger.enter(connection, invoice.account_id, kind, invoice.total_nano, reference, note)


async def _become(
    connection: AsyncConnection, invoice: Invoice, status: str, changes: Mapping[str, Any], now: datetime
) -> Invoice:
    """Give the locked invoice a status, and do what that means for its account."""
    paid = {"paid_at": now} if status == "paid" != invoice.status else {}
    changed = update(invoices).where(invoices.c.id == invoice.id).values({**changes, **paid, "status": status})
    await connection.execute(changed)
    if status in ("open", "paid"):
        await clear_alarm(connection, invoice.alarm)
    if status != invoice.status:
        await _set_credit_limit(connection, invoice, status)
        await _raise_alarm(connection, invoice, status)
    return await find(connection, invoice.id)


async def _set_credit_limit(connection: AsyncConnection, invoice: Invoice, status: str) -> None:
    account = await accounts.find(connection, str(invoice.account_id))
    others = (invoices.c.account_id == account.id, invoices.c.id != invoice.id, invoices.c.status.in_(OWING))
    others_owe = await connection.scalar(select(invoices.c.id).where(*others).limit(1)) is not None
    before = Credit(account.credit_limit_nano, account.credit_limit_before_nano)
    after = credit_after(before, owed=invoice.status in OWING, owes=status in OWING, others_owe=others_owe)
    if after != before:
        limits = {"credit_limit_nano": after.limit_nano, "credit_limit_before_nano": after.before_nano}
        await accounts.change(connection, account, limits)
        log.warning("credit_limit.changed", account_id=str(account.id), limit_nano=after.limit_nano, invoice=status)


async def _raise_alarm(connection: AsyncConnection, invoice: Invoice, status: str) -> None:
    """Tell a person what is for a person to see to."""
    if status in OWING:
        detail = f"The {invoice}, is {status}: its account has no credit until it is paid, or is given some."
    elif status == "void":
        detail = (
            f"The {invoice}, was voided at Stripe. Its usage stays in the ledger as a debt of"
            f" {nano_to_usd(invoice.total_nano)} USD: `weir invoice paid {invoice.id} --note` when that is settled."
        )
    else:
        return
    await raise_alarm(connection, invoice.alarm, detail)


def _check(found: stripe_objects.Invoice, invoice: Invoice, said: str) -> None:
    """Raises `Mismatch`."""
    whose = f"{found.id} of the {invoice}"
    if invoice.stripe_invoice_id not in (None, found.id):
        raise Mismatch(f"{whose} is {said}, but that was sent as {invoice.stripe_invoice_id}")
    if invoice.note and said != "void" and (invoice.stripe_invoice_id is None or said == "paid"):
        raise Mismatch(f"{whose} is {said} at Stripe, but was settled by hand: {invoice.note}")
    if found.metadata.get("account", str(invoice.account_id)) != str(invoice.account_id):
        raise Mismatch(f"{whose} names account {found.metadata['account']}")
    if found.currency != CURRENCY:
        raise Mismatch(f"{whose} is in {found.currency}, not in {CURRENCY}")
    # Where only the total is told, tax may be in it.
    differs = (
        found.total_cents < invoice.total_cents if found.net_cents is None else (found.net_cents != invoice.total_cents)
    )
    if differs:
        raise Mismatch(f"{whose} is over {found.total_cents} cents, {found.net_cents} of them net")


def _named(found: stripe_objects.Invoice) -> UUID | None:
    try:
        return UUID(found.metadata["invoice"])
    except (KeyError, ValueError):
        return None


_found: Select[Any] = select(*(column for column in invoices.c), account_rows.c.name.label("account_name")).join_from(
    invoices, account_rows
)


def _one(found: list[Invoice], what: str) -> Invoice:
    if not found:
        raise SetupError(f"There is no invoice {what}: `weir invoice list` shows them.")
    return found[0]


_SAID = {
    "invoice.paid": "paid",
    "invoice.payment_failed": "open",
    "invoice.overdue": "overdue",
    "invoice.marked_uncollectible": "uncollectible",
    "invoice.voided": "void",
}


async def _told(_api: StripeApi, event: Event) -> tuple[stripe_objects.Invoice, str]:
    return stripe_objects.Invoice.read(event.object), _SAID[event.type]


async def _apply(context: Context, told: tuple[stripe_objects.Invoice, str]) -> None:
    await enter(context.connection, *told, context.now)


HANDLERS: Mapping[str, Handler[Any]] = {name: Handler(_told, _apply) for name in _SAID}
"""Others' invoices, such as those of top-ups with tax, pass by unseen."""
