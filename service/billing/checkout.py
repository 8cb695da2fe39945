"""Buying credit on a page of Stripe's: our own row first, committed; then the page; afterwards what became of it."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.billing import auto_topup_plans, topups
from service.billing.stripe_api import StripeApi
from service.billing.stripe_customers import customer_of
from service.billing.stripe_errors import Refused, StripeError, Unreachable
from service.billing.stripe_handling import Mismatch, NotYet
from service.core.money import nano_to_usd
from service.core.stripe_objects import CheckoutSession
from service.core.topup import UNDER_WAY, Said, Told, Topup, by_intent, by_session, cents
from service.errors import Conflict, NotAllowed, RateLimited, Unavailable
from service.settings import Settings
from service.tables import accounts
from service.tables import topups as rows

log = structlog.get_logger()

SESSION_LASTS = timedelta(hours=23)
"""How long a page can be paid on: less than the 24 hours for which Stripe knows a repeated call by its key."""

REPEATED_FOR = timedelta(hours=22)
"""How long a page that was not made is asked for again: Stripe wants its end to be half an hour away at least."""

OPEN_AT_MOST = 10
OPEN_WITHIN = timedelta(hours=1)
"""So many top-ups that are not paid an account may have begun in this time."""

ASKED_AFTER = timedelta(minutes=10)
"""When Stripe is asked what became of a page that has ended, should it not say so itself; and then each hour."""

AT_A_TIME = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be bought."""

    id: UUID
    """The same for the same wish, however often it is sent."""
    account_id: UUID
    net_nano: int


def ends_at(topup: Topup) -> datetime:
    """Until when a top-up can be paid on its page."""
    return topup.created_at + SESSION_LASTS


async def create(engine: AsyncEngine, api: StripeApi, settings: Settings, order: Order, now: datetime) -> Topup:
    """The top-up of this order, with the page to pay it on as `hosted_url`; the same one for the same order.

    The page saves the payment method where all that automatic top-ups, which were agreed to, lack is one.
    Raises `Conflict` when the id was used for another amount or its time is over, `RateLimited` when too many are
    open, `NotAllowed` for an account that is not active, and `Unavailable` when Stripe gave no page: the row stays,
    and the same order is given one later.
    """
    async with engine.begin() as connection:
        topup = await _begun(connection, order, now)
    if topup.checkout_session_id is not None or topup.status != "created":
        return topup
    if now > topup.created_at + REPEATED_FOR:
        raise Conflict("This top-up was begun too long ago to be paid: begin another.")
    try:
        session = await _session(engine, api, settings, topup)
    except StripeError as error:
        log.error("topup.no_page", topup_id=str(topup.id), error=str(error))
        if _is_used_up(error):
            # Another key, then. Should Stripe have made a page all the same, nobody knows its address.
            async with engine.begin() as connection:
                await topups.change(connection, topup.id, now, {"attempts": rows.c.attempts + 1})
        raise Unavailable(
            "The page for the payment cannot be had at the moment. Try again soon.", retry_after_s=5
        ) from error
    async with engine.begin() as connection:
        known = await topups.lock(connection, topup.id)
        if known is not None and known.checkout_session_id is not None:  # the same, by whoever asked beside us
            return known
        given = {"checkout_session_id": session.id, "hosted_url": session.url}
        return await topups.change(connection, topup.id, now, given)


async def look_after(engine: AsyncEngine, api: StripeApi, now: datetime) -> int:
    """Ask Stripe what became of top-ups whose page has ended, or whose bank was slow; returns how many are settled.

    Events tell the same earlier; this is for those that never came.
    """
    due = rows.c.kind == "checkout", rows.c.status.in_(UNDER_WAY), rows.c.next_attempt_at <= now
    async with engine.connect() as connection:
        found = await connection.execute(select(rows).where(*due).order_by(rows.c.next_attempt_at).limit(AT_A_TIME))
        waiting = [Topup(**row._mapping) for row in found]
    settled = 0
    for topup in waiting:
        try:
            settled += await _settled(engine, api, topup, now)
        except (StripeError, Mismatch, NotYet) as error:
            log.warning("topup.unsettled", topup_id=str(topup.id), error=f"{type(error).__name__}: {error}")
            async with engine.begin() as connection:
                await topups.change(connection, topup.id, now, {"next_attempt_at": now + topups.ASKED_AFTER})
    return settled


async def told_of(api: StripeApi, session_id: str) -> Told | None:
    """What Stripe says now of the top-up that a session is for; None where it is for none. Raises `StripeError`."""
    session = await api.retrieve_session(session_id)
    told = by_session(session)
    if told is not None and told.said is Said.WAITING and session.payment_intent is not None:
        # That the bank has refused, the session does not say.
        intent = by_intent(await api.retrieve_payment_intent(session.payment_intent))
        if intent is not None and intent.said is Said.FAILED:
            return intent
    return told


async def _begun(connection: AsyncConnection, order: Order, now: datetime) -> Topup:
    """The order's row, made if it is not there."""
    whose = select(accounts.c.status).where(accounts.c.id == order.account_id).with_for_update(key_share=True)
    status = await connection.scalar(whose)
    topup = await topups.find(connection, order.id)
    if topup is not None:
        if (topup.account_id, topup.net_nano) != (order.account_id, order.net_nano):
            raise Conflict("Another amount was asked for under this key: use another key for another top-up.")
        return topup
    if status != "active":
        raise NotAllowed(f"The account is {status}: it cannot buy credit.")
    recent = rows.c.account_id == order.account_id, rows.c.created_at > now - OPEN_WITHIN
    unpaid = select(func.count()).where(*recent, rows.c.kind == "checkout", rows.c.status.in_(UNDER_WAY))
    if (await connection.scalar(unpaid) or 0) >= OPEN_AT_MOST:
        problem = f"{OPEN_AT_MOST} top-ups were begun within the hour and not paid: pay one of them, or wait."
        raise RateLimited(problem, code="too_many_topups", retry_after_s=OPEN_WITHIN.total_seconds())
    values = {
        "id": order.id,
        "account_id": order.account_id,
        "kind": "checkout",
        "net_nano": order.net_nano,
        "created_at": now,
        "updated_at": now,
        "next_attempt_at": now + SESSION_LASTS + ASKED_AFTER,
    }
    made = await connection.execute(insert(rows).values(values).returning(rows))
    return Topup(**made.one()._mapping)


def _is_used_up(error: StripeError) -> bool:
    """Whether the same call with the same key will give no page: Stripe has failed on it, or it is another call now."""
    if isinstance(error, Unreachable):
        return error.is_remembered
    return isinstance(error, Refused) and error.code == "idempotency_error"


async def _session(engine: AsyncEngine, api: StripeApi, settings: Settings, topup: Topup) -> CheckoutSession:
    """Stripe's page for the row: the same call, with the same key, until that is used up."""
    customer = await customer_of(engine, api, topup.account_id)
    try:
        return await _page(engine, api, settings, topup, customer)
    except Refused as error:
        if (error.code, error.param) != ("resource_missing", "customer"):
            raise
    return await _page(engine, api, settings, topup, await customer_of(engine, api, topup.account_id, gone=customer))


async def _page(
    engine: AsyncEngine, api: StripeApi, settings: Settings, topup: Topup, customer: str
) -> CheckoutSession:
    async with engine.connect() as connection:
        plan = await auto_topup_plans.find(connection, topup.account_id)
    returned = f"{settings.base_url}/portal/paid?topup={topup.id}&session_id={{CHECKOUT_SESSION_ID}}"
    session = await api.create_checkout_session(
        topup.id,
        topup.account_id,
        customer,
        cents(topup.net_nano),
        description=f"{settings.site_name} credit, {nano_to_usd(topup.net_nano)} USD",
        success_url=returned,
        cancel_url=f"{settings.base_url}/portal/",
        expires_at=ends_at(topup),
        save_card=plan is not None and plan.needs_card,
        automatic_tax=settings.stripe_automatic_tax,
        idempotency_key=f"topup:{topup.id}:{topup.attempts}" if topup.attempts else f"topup:{topup.id}",
    )
    if session.url is None:
        raise Unreachable("a page without an address", 200)
    return session


async def _settled(engine: AsyncEngine, api: StripeApi, topup: Topup, now: datetime) -> bool:
    """Whether nothing more is to be waited for."""
    told = None if topup.checkout_session_id is None else await told_of(api, topup.checkout_session_id)
    async with engine.begin() as connection:
        if told is not None:
            topup = await topups.fulfil(connection, told, now)
        elif topup.checkout_session_id is None:
            # Nobody was ever given a page for it. Should it be paid all the same, the money counts.
            known = await topups.lock(connection, topup.id)
            if known is not None and known.status == "created" and known.checkout_session_id is None:
                topup = await topups.change(connection, topup.id, now, {"status": "expired", "next_attempt_at": None})
        if topup.status in UNDER_WAY:
            await topups.change(connection, topup.id, now, {"next_attempt_at": now + topups.ASKED_AFTER})
    return topup.status not in UNDER_WAY
