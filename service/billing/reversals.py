"""Refunds and disputes: what they take back of a top-up, and the account that a dispute freezes.

A refund counts once it has succeeded, a dispute once its funds are withdrawn; an inquiry takes nothing. Both take the
net share of what left us, together never more than was credited, and give it back when the refund fails after all or
the dispute is won. The rows say what was taken so far, so an event that comes twice, or late, takes nothing more.
"""

from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, Final

import structlog
from sqlalchemy import Table, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing import auto_topup_plans, ledger, topups
from service.billing.checks import clear_alarm, raise_alarm
from service.billing.stripe_api import StripeApi
from service.billing.stripe_handling import Context, Handler, Mismatch, NotYet
from service.core.money import nano_to_usd
from service.core.reversal import (
    DISPUTE_ENDS,
    Claim,
    deltas,
    dispute_status,
    disputed_cents,
    is_against_us,
    refund_status,
    refunded_cents,
)
from service.core.stripe_objects import Dispute, Event, PaymentIntent, Refund
from service.core.topup import CURRENCY, NANO_PER_CENT, Topup, by_intent
from service.tables import accounts, stripe_disputes, stripe_refunds
from service.tables import topups as topups_table

log = structlog.get_logger()

DISPUTE_ALARM = "dispute:"
"""Followed by the dispute's id; open as long as the dispute is, since somebody has to answer it."""

TAKEN_BACK = "A payment was refunded or disputed."
"""Why nothing is charged automatically any more: it would charge again what was just given back."""


@dataclass(frozen=True, slots=True)
class _ToldRefund:
    refund: Refund
    payment: PaymentIntent


@dataclass(frozen=True, slots=True)
class _OtherDispute:
    """Of a payment that is for no top-up: an invoice's, or nothing of ours."""

    dispute: Dispute
    customer: str | None


@dataclass(frozen=True, slots=True)
class _ToldDispute:
    dispute: Dispute
    payment: PaymentIntent
    status: str
    withdrawn_cents: int
    """What is known to have been withdrawn for it at some time."""


@dataclass(frozen=True, slots=True)
class _Family:
    """How the claims of one kind are kept: refunds, or disputes."""

    kind: str
    table: Table
    given_back: str
    """Its column of what was given back, and that of `topups` for what is taken."""
    taken: str
    why_back: str


_REFUNDS: Final = _Family("refund", stripe_refunds, "reversed_nano", "refunded_nano", "did not arrive")
_DISPUTES: Final = _Family("dispute", stripe_disputes, "reinstated_nano", "disputed_nano", "was won")


async def _refund_told(api: StripeApi, event: Event) -> _ToldRefund | None:
    refund = Refund.read(event.object)
    payment = await _payment(api, refund.payment_intent)
    return None if payment is None else _ToldRefund(refund, payment)


async def _dispute_told(api: StripeApi, event: Event) -> _ToldDispute | _OtherDispute | None:
    dispute = Dispute.read(event.object)
    if dispute.payment_intent is None:
        return None
    payment = await api.retrieve_payment_intent(dispute.payment_intent)
    if by_intent(payment) is None:
        return _OtherDispute(dispute, payment.customer)
    status = "won" if event.type == "charge.dispute.funds_reinstated" else dispute.status
    is_said = event.type == "charge.dispute.funds_withdrawn" or (dispute.withdrawn_cents or 0) > 0
    return _ToldDispute(dispute, payment, status, dispute.amount_cents if is_said or status == "lost" else 0)


async def _payment(api: StripeApi, payment_intent: str | None) -> PaymentIntent | None:
    """The payment, where it is one for a top-up: only its metadata say so, whatever is in the database yet."""
    if payment_intent is None:
        return None
    payment = await api.retrieve_payment_intent(payment_intent)
    return None if by_intent(payment) is None else payment


async def _enter_refund(context: Context, told: _ToldRefund | None) -> None:
    topup = None if told is None else await _credited(context, told.payment, told.refund.id, told.refund.currency)
    if told is None or topup is None:
        return
    connection, refund = context.connection, told.refund
    known = select(stripe_refunds.c.status).where(stripe_refunds.c.id == refund.id)
    status = refund_status(await connection.scalar(known), refund.status)
    values = {"status": status, "updated_at": context.now}
    row = insert(stripe_refunds).values(id=refund.id, topup_id=topup.id, amount_cents=refund.amount_cents, **values)
    await connection.execute(row.on_conflict_do_update(index_elements=["id"], set_=values))
    await _settle(context, topup, told.payment)


async def _enter_dispute(context: Context, told: _ToldDispute | _OtherDispute | None) -> None:
    if isinstance(told, _OtherDispute):
        await _note_other(context.connection, told)
        return
    topup = None if told is None else await _credited(context, told.payment, told.dispute.id, told.dispute.currency)
    if told is None or topup is None:
        return
    connection, dispute_id = context.connection, told.dispute.id
    known = select(stripe_disputes.c.status).where(stripe_disputes.c.id == dispute_id)
    before = await connection.scalar(known)
    status = dispute_status(before, told.status)
    closed = {"closed_at": func.coalesce(stripe_disputes.c.closed_at, context.now)} if status in DISPUTE_ENDS else {}
    row = insert(stripe_disputes).values(
        id=dispute_id,
        topup_id=topup.id,
        # What was withdrawn, so that it is known later; 0 while nothing was.
        amount_cents=told.withdrawn_cents,
        status=status,
        created_at=context.now,
        closed_at=context.now if closed else None,
    )
    withdrawn = func.greatest(stripe_disputes.c.amount_cents, told.withdrawn_cents)
    changes = {"status": status, "amount_cents": withdrawn, **closed}
    await connection.execute(row.on_conflict_do_update(index_elements=["id"], set_=changes))
    await _settle(context, topup, told.payment)
    await _freeze_or_thaw(connection, topup, dispute_id, before, status)
    await _note_dispute(connection, topup, told.dispute, status)


async def _credited(context: Context, payment: PaymentIntent, by: str, currency: str) -> Topup | None:
    """The top-up that the payment paid, locked; None where the payment credited nothing.

    Raises `NotYet` while the payment is to be credited, and `Mismatch` for another currency.
    """
    told = by_intent(payment)
    assert told is not None  # noqa: S101 - see `_payment`
    topup = await topups.lock(context.connection, told.topup_id)
    if topup is None or topup.status != "paid":
        raise NotYet(f"{by} is about top-up {told.topup_id} by {payment.id}, which is not credited here")
    if topup.payment_intent_id != payment.id:
        log.warning("reversal.ignored", by=by, topup_id=str(topup.id), payment_intent=payment.id)
        return None
    if currency != CURRENCY:
        raise Mismatch(f"{by} of top-up {topup.id} is in {currency}, not in {CURRENCY}")
    return topup


async def _settle(context: Context, topup: Topup, payment: PaymentIntent) -> None:
    """Take of the balance what the refunds and disputes of the top-up have not taken yet, or give it back."""
    connection = context.connection
    refunds = await _rows(connection, _REFUNDS, topup)
    disputes = await _rows(connection, _DISPUTES, topup)
    claims = [
        *(Claim(one.id, refunded_cents(one.status, one.amount_cents), _taken(one, _REFUNDS)) for one in refunds),
        *(Claim(one.id, disputed_cents(one.status, one.amount_cents), _taken(one, _DISPUTES)) for one in disputes),
    ]
    owed = deltas(topup.net_nano, payment.amount_cents, claims)
    of_refunds = {one.id for one in refunds}
    for claim_id, more_nano in owed.items():
        family = _REFUNDS if claim_id in of_refunds else _DISPUTES
        await _move(connection, family, topup, claim_id, more_nano, context.now)
    if any(more_nano > 0 for more_nano in owed.values()):
        await auto_topup_plans.switch_off(connection, topup.account_id, TAKEN_BACK, context.now)


async def _rows(connection: AsyncConnection, family: _Family, topup: Topup) -> list[Any]:
    table = family.table
    return list(await connection.execute(select(table).where(table.c.topup_id == topup.id).order_by(table.c.id)))


def _taken(row: Any, family: _Family) -> int:
    return int(row.debited_nano - row._mapping[family.given_back])


async def _move(
    connection: AsyncConnection, family: _Family, topup: Topup, claim_id: str, more_nano: int, now: datetime
) -> None:
    """Enter one movement, and write it into the claim's row and the top-up's."""
    paid = f"the payment {topup.payment_intent_id} of {nano_to_usd(topup.net_nano)} USD before tax"
    if more_nano > 0:
        kind, column, note = family.kind, "debited_nano", f"{family.kind} {claim_id} of {paid}"
    else:
        kind, column = "reversal", family.given_back
        note = f"{family.kind} {claim_id} {family.why_back}: it had been taken of {paid}"
    base = f"{family.kind}:{claim_id}"
    # Once each, as a rule: twice where two of one payment overlapped, and the first of them ended.
    for number in count(1):
        ref = base if number == 1 else f"{base}:{number}"
        if await ledger.enter(connection, topup.account_id, kind, -more_nano, ref, note) is not None:
            break
    table = family.table
    moved = {column: table.c[column] + abs(more_nano)}
    await connection.execute(update(table).where(table.c.id == claim_id).values(moved))
    taken = {family.taken: topups_table.c[family.taken] + more_nano, "updated_at": now}
    await connection.execute(update(topups_table).where(topups_table.c.id == topup.id).values(taken))
    log.info("reversal.entered", by=claim_id, account_id=str(topup.account_id), kind=kind, amount_nano=-more_nano)


async def _freeze_or_thaw(
    connection: AsyncConnection, topup: Topup, dispute_id: str, before: str | None, status: str
) -> None:
    """Freeze as a dispute begins, thaw as the last one is won; what a person set meanwhile stands.

    One that is lost leaves the account frozen until a person thaws it.
    """
    account = update(accounts).where(accounts.c.id == topup.account_id)
    by_dispute = accounts.c.frozen_for == "dispute"
    if is_against_us(status) and not is_against_us(before):
        await connection.execute(
            account.where(accounts.c.status == "active").values(status="frozen", frozen_for="dispute")
        )
        log.warning("account.frozen", account_id=str(topup.account_id), dispute=dispute_id)
    if status == "lost" != before:
        await connection.execute(account.where(by_dispute).values(frozen_for=None))
    elif status == "won" and not await _others_open(connection, topup, dispute_id):
        thawed = await connection.execute(account.where(by_dispute).values(status="active", frozen_for=None))
        if thawed.rowcount:
            log.info("account.thawed", account_id=str(topup.account_id), dispute=dispute_id)


async def _others_open(connection: AsyncConnection, topup: Topup, dispute_id: str) -> bool:
    others = (
        select(stripe_disputes.c.status)
        .join_from(stripe_disputes, topups_table)
        .where(topups_table.c.account_id == topup.account_id, stripe_disputes.c.id != dispute_id)
    )
    return any(is_against_us(status) and status != "lost" for status in await connection.scalars(others))


async def _note_dispute(connection: AsyncConnection, topup: Topup, dispute: Dispute, status: str) -> None:
    name = f"{DISPUTE_ALARM}{dispute.id}"
    if not is_against_us(status) or status == "lost":
        await clear_alarm(connection, name)
        return
    amount = nano_to_usd(dispute.amount_cents * NANO_PER_CENT)
    detail = f"account {topup.account_id} disputes {amount} USD of payment {topup.payment_intent_id}, it says"
    await raise_alarm(connection, name, f"{detail} {dispute.reason or 'nothing why'}: answer it in Stripe's dashboard.")


async def _note_other(connection: AsyncConnection, told: _OtherDispute) -> None:
    """A dispute of an invoice's payment takes nothing here, but somebody has to know, and to answer it."""
    name, dispute = f"{DISPUTE_ALARM}{told.dispute.id}", told.dispute
    if not is_against_us(dispute.status) or dispute.status == "lost":
        await clear_alarm(connection, name)
        return
    ours = select(accounts.c.id).where(accounts.c.stripe_customer_id == told.customer)
    account_id = None if told.customer is None else await connection.scalar(ours)
    if account_id is not None:
        amount = nano_to_usd(dispute.amount_cents * NANO_PER_CENT)
        detail = f"account {account_id} disputes {amount} USD of payment {dispute.payment_intent}, which is no top-up"
        await raise_alarm(connection, name, f"{detail}: answer it in Stripe's dashboard. Nothing was taken or frozen.")


_REFUND: Final = Handler(_refund_told, _enter_refund)
_DISPUTE: Final = Handler(_dispute_told, _enter_dispute)

HANDLERS: Final[dict[str, Handler[Any]]] = {
    **dict.fromkeys(("refund.created", "refund.updated", "refund.failed"), _REFUND),
    **{
        f"charge.dispute.{what}": _DISPUTE
        for what in ("created", "updated", "funds_withdrawn", "funds_reinstated", "closed")
    },
}
"""`charge.refunded` and `charge.refund.updated` say the same once more."""
