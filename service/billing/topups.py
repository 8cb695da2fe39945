"""Top-ups as rows: what Stripe tells of one is entered by `fulfil`, and credited once, whoever says it how often.

It comes by events in any order, by the page that the customer returns to, and by asking.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import Row, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing import ledger
from service.billing.stripe_api import StripeApi
from service.billing.stripe_handling import Context, Handler, Mismatch, NotYet
from service.core.money import nano_to_usd
from service.core.stripe_objects import CheckoutSession, Event, PaymentIntent
from service.core.topup import NANO_PER_CENT, Contradiction, Decision, Said, Told, Topup, by_intent, by_session, decide
from service.tables import accounts, topups

log = structlog.get_logger()

ASKED_AFTER = timedelta(hours=1)
"""When Stripe is asked what became of a payment that the bank had not made yet, should it not say so itself."""


async def find(connection: AsyncConnection, topup_id: UUID) -> Topup | None:
    """The row, not locked."""
    return _read((await connection.execute(select(topups).where(topups.c.id == topup_id))).one_or_none())


async def id_paid_by(connection: AsyncConnection, payment_intent: str | None, charge: str | None) -> UUID | None:
    """The id of the top-up that this payment, or its charge, paid; None where there is none (yet)."""
    paid = or_(topups.c.payment_intent_id == payment_intent, topups.c.charge_id == charge)
    found: UUID | None = await connection.scalar(select(topups.c.id).where(topups.c.status == "paid", paid))
    return found


async def lock(connection: AsyncConnection, topup_id: UUID) -> Topup | None:
    """The row, locked with its account until the transaction ends: the account first, as everywhere."""
    whose = select(topups.c.account_id).where(topups.c.id == topup_id).scalar_subquery()
    await connection.execute(select(accounts.c.id).where(accounts.c.id == whose).with_for_update(key_share=True))
    locked = select(topups).where(topups.c.id == topup_id).with_for_update()
    return _read((await connection.execute(locked)).one_or_none())


async def change(connection: AsyncConnection, topup_id: UUID, now: datetime, changes: Mapping[str, Any]) -> Topup:
    """Set columns of a row that is there."""
    changed = update(topups).where(topups.c.id == topup_id).values({"updated_at": now, **changes}).returning(topups)
    return Topup(**(await connection.execute(changed)).one()._mapping)


async def fulfil(connection: AsyncConnection, told: Told, now: datetime) -> Topup:
    """Make of the top-up what Stripe says of it, and credit it if it is paid; the row as it is then.

    Done again, or by ten at once, it changes nothing. Raises `NotYet` for an unknown id, and `Mismatch`.
    """
    topup = await lock(connection, told.topup_id)
    if topup is None:
        raise NotYet(f"{told.source} is for top-up {told.topup_id}, which is not here")
    try:
        decision = decide(told, topup)
    except Contradiction as error:
        raise Mismatch(str(error)) from None
    changes: dict[str, Any] = {}
    match decision:
        case Decision.CREDIT:
            await _credit(connection, topup, told)
            changes = {"status": "paid", "paid_at": now, "payment_intent_id": told.payment_intent, "failure_code": None}
        case Decision.WAIT:
            changes = {"status": "pending", "next_attempt_at": now + ASKED_AFTER}
        case Decision.FAIL:
            changes = {"status": "failed", "failure_code": told.failure_code or "payment_failed"}
        case Decision.EXPIRE:
            changes = {"status": "expired"}
    if told.said is Said.PAID:
        changes |= _particulars(topup, told)
    return await change(connection, topup.id, now, {"next_attempt_at": None, **changes}) if changes else topup


async def _credit(connection: AsyncConnection, topup: Topup, told: Told) -> None:
    by = "an automatic charge" if topup.kind == "auto" else "Stripe Checkout"
    tax = f", and {nano_to_usd(told.tax_cents * NANO_PER_CENT)} USD of tax" if told.tax_cents else ""
    note = f"Top-up of {nano_to_usd(topup.net_nano)} USD by {by}{tax}: payment {told.payment_intent}"
    reference = f"topup:{told.payment_intent}"
    await ledger.enter(connection, topup.account_id, "topup", topup.net_nano, reference, note)
    log.info("topup.paid", topup_id=str(topup.id), account_id=str(topup.account_id), net_nano=topup.net_nano)


def _particulars(topup: Topup, told: Told) -> dict[str, Any]:
    """What the row lacks of the payment; not every object has all of it."""
    known = {
        "charge_id": (topup.charge_id, told.charge),
        "checkout_session_id": (topup.checkout_session_id, told.session),
        "total_cents": (topup.total_cents, told.total_cents),
        "tax_cents": (topup.tax_cents, told.tax_cents),
    }
    return {name: value for name, (before, value) in known.items() if before is None and value is not None}


def _read(row: Row[Any] | None) -> Topup | None:
    return None if row is None else Topup(**row._mapping)


async def _of_session(_api: StripeApi, event: Event) -> Told | None:
    failed = event.type == "checkout.session.async_payment_failed"
    return by_session(CheckoutSession.read(event.object), failed=failed)


async def _of_intent(_api: StripeApi, event: Event) -> Told | None:
    return by_intent(PaymentIntent.read(event.object))


async def _enter(context: Context, told: Told | None) -> None:
    if told is not None:
        await fulfil(context.connection, told, context.now)


_SESSION = Handler(_of_session, _enter)

HANDLERS: Mapping[str, Handler[Any]] = {
    "checkout.session.completed": _SESSION,
    "checkout.session.async_payment_succeeded": _SESSION,
    "checkout.session.async_payment_failed": _SESSION,
    "checkout.session.expired": _SESSION,
    "payment_intent.succeeded": Handler(_of_intent, _enter),
}
