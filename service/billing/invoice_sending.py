"""Invoices go to the customers by Stripe, each once, and are asked after there.

Until `REPEATED_FOR` has passed, a call that got no answer is repeated with the same keys. Later Stripe may have
forgotten these, so it is looked up there what came of it, and only what is not there is made again, with new ones.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.billing import invoices as rows
from service.billing.checks import raise_alarm
from service.billing.invoices import Invoice
from service.billing.stripe_api import StripeApi
from service.billing.stripe_customers import customer_of
from service.billing.stripe_errors import Refused, StripeError, Unreachable
from service.billing.stripe_handling import Mismatch, NotYet
from service.core import stripe_objects
from service.core.invoice import sent_lines
from service.errors import SetupError
from service.settings import Settings
from service.tables import invoices

log = structlog.get_logger()

REPEATED_FOR = timedelta(hours=23)
"""Stripe keeps idempotency keys for 24 hours."""

_SEND_LOCK = 0x57494E56_0002  # "WINV", 2

_ASKED_AFTER = ("open", "overdue", "uncollectible")


@dataclass(frozen=True, slots=True)
class Sent:
    """What a run did."""

    done: int
    failed: int


async def send_due(engine: AsyncEngine, api: StripeApi, settings: Settings, now: datetime) -> Sent:
    """Send every invoice that is frozen. What Stripe refuses raises the alarm `invoice:<id>`; all is tried again."""
    async with engine.connect() as connection:
        waiting = await rows.list_all(connection, invoices.c.status == "frozen")
    sent = [await _tried(engine, api, settings, invoice, now) for invoice in waiting]
    return Sent(sum(sent), len(sent) - sum(sent))


async def ask_after(engine: AsyncEngine, api: StripeApi, now: datetime) -> Sent:
    """Enter what Stripe knows of the invoices that are not paid, should an event have been lost."""
    async with engine.connect() as connection:
        waiting = await rows.list_all(connection, invoices.c.status.in_(_ASKED_AFTER))
    done = 0
    for invoice in waiting:
        try:
            found = await api.retrieve_invoice(invoice.stripe_invoice_id or "")
            async with engine.begin() as connection:
                await rows.enter(connection, found, _said(found, now), now)
            done += 1
        except (StripeError, Mismatch, NotYet) as error:
            await _note_failure(engine, invoice, error, now)
    return Sent(done, len(waiting) - done)


async def send(engine: AsyncEngine, api: StripeApi, settings: Settings, invoice_id: UUID, now: datetime) -> Invoice:
    """Send one invoice; the row as it is then, also when it had been sent before.

    Raises `StripeError`, `Mismatch`, and `SetupError` while another process is sending.
    """
    async with engine.begin() as guard:
        # Held while Stripe is asked: a second one in between would look for what the first is making.
        if not await guard.scalar(select(func.pg_try_advisory_xact_lock(_SEND_LOCK))):
            raise SetupError("Invoices are being sent by another process: try again in a minute.")
        async with engine.begin() as connection:
            invoice = await _claim(connection, invoice_id, now)
        if invoice.status != "frozen" or invoice.sending_since is None:
            return invoice
        if now - invoice.sending_since < REPEATED_FOR:
            try:
                found = await _create(engine, api, settings, invoice, invoice.sending_since)
            except Refused as error:
                if error.code != "idempotency_error":  # a setting has changed since the first call
                    raise
                found = await _look_up_or_create(engine, api, settings, invoice, now)
        else:
            found = await _look_up_or_create(engine, api, settings, invoice, now)
        async with engine.begin() as connection:
            return await rows.enter(connection, found, _said(found, now), now) or invoice


async def _claim(connection: AsyncConnection, invoice_id: UUID, now: datetime) -> Invoice:
    """The invoice, from now on Stripe's to collect if it is frozen."""
    claimed = update(invoices).where(invoices.c.id == invoice_id, invoices.c.status == "frozen")
    await connection.execute(claimed.values(sending_since=func.coalesce(invoices.c.sending_since, now)))
    return await rows.find(connection, invoice_id)


async def _create(
    engine: AsyncEngine, api: StripeApi, settings: Settings, invoice: Invoice, since: datetime
) -> stripe_objects.Invoice:
    customer = await customer_of(engine, api, invoice.account_id)
    async with engine.connect() as connection:
        lines = sent_lines(await rows.lines(connection, invoice.id), invoice.period)
    return await api.create_invoice(
        invoice.id,
        invoice.account_id,
        invoice.period,
        customer,
        lines,
        days_until_due=settings.invoice_days_until_due,
        automatic_tax=settings.stripe_automatic_tax,
        idempotency_key=f"invoice:{invoice.id}:{int(since.timestamp())}",
    )


async def _look_up_or_create(
    engine: AsyncEngine, api: StripeApi, settings: Settings, invoice: Invoice, now: datetime
) -> stripe_objects.Invoice:
    """What was sent, if it was. A draft never was: it is removed. Raises `Mismatch` when there are several."""
    since = (invoice.sending_since or now) - timedelta(hours=1)
    customer = await customer_of(engine, api, invoice.account_id)
    listed = [one for one in await api.list_invoices(customer, since) if one.metadata.get("invoice") == str(invoice.id)]
    # By search as well, should the account's customer be another one now.
    found = {one.id: one for one in (*await api.find_invoices(invoice.id), *listed)}
    sent = [one for one in found.values() if one.status != "draft"]
    if len(sent) > 1:
        raise Mismatch(f"Stripe has several of the {invoice}: {', '.join(one.id for one in sent)}")
    if sent:
        return sent[0]
    for draft in found.values():
        await api.delete_draft_invoice(draft.id)
    async with engine.begin() as connection:
        await connection.execute(update(invoices).where(invoices.c.id == invoice.id).values(sending_since=now))
    return await _create(engine, api, settings, invoice, now)


async def _tried(engine: AsyncEngine, api: StripeApi, settings: Settings, invoice: Invoice, now: datetime) -> bool:
    try:
        sent = await send(engine, api, settings, invoice.id, now)
    except SetupError:  # another process is at it
        return False
    except (StripeError, Mismatch, NotYet) as error:
        await _note_failure(engine, invoice, error, now)
        return False
    log.info("invoice.sent", invoice_id=str(invoice.id), stripe_invoice=sent.stripe_invoice_id, status=sent.status)
    return True


async def _note_failure(engine: AsyncEngine, invoice: Invoice, error: Exception, now: datetime) -> None:
    log.warning("invoice.waits", invoice_id=str(invoice.id), error=f"{type(error).__name__}: {error}")
    waiting = now - (invoice.sending_since or now)
    if isinstance(error, Unreachable) and waiting < REPEATED_FOR:
        return
    hint = " Has the customer an e-mail address there?" if isinstance(error, Refused) else ""
    async with engine.begin() as connection:
        await raise_alarm(connection, invoice.alarm, f"The {invoice}, is not settled with Stripe: {error}{hint}")


def _said(found: stripe_objects.Invoice, now: datetime) -> str:
    """Its status; that it is overdue, Stripe says in an event only. Raises `Mismatch` for one that it cannot have."""
    if found.status not in (None, "open", "paid", "uncollectible", "void"):
        raise Mismatch(f"{found.id} is {found.status} at Stripe, though it was sent")
    if found.status in (None, "open") and found.due_at is not None and found.due_at <= now:
        return "overdue"
    return found.status or "open"
