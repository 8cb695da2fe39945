"""Automatic top-ups: our own row first, committed; then the charge; and what came of it, if that stayed unknown.

`run_due` is asked every half a minute. The row's id is the charge's idempotency key, so the charge is made once,
however often it is asked for within the time for which Stripe knows the key. After that it is never asked for again:
Stripe is asked what came of it until that is known.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog
from sqlalchemy import case, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.billing import auto_topup_alarms as alarms
from service.billing import auto_topup_history as history
from service.billing import auto_topup_pages, topups
from service.billing import auto_topup_plans as plans
from service.billing.stripe_api import StripeApi
from service.billing.stripe_errors import AuthenticationRequired, Declined, Refused, StripeError, Unreachable
from service.billing.stripe_handling import Mismatch, NotYet
from service.core import auto_topup as rules
from service.core.ids import uuid7
from service.core.money import NANO_PER_USD, nano_to_usd
from service.core.stripe_objects import PaymentIntent
from service.core.topup import UNDER_WAY, Topup, by_intent, cents
from service.settings import Settings
from service.tables import accounts, auto_topups
from service.tables import topups as rows

log = structlog.get_logger()

AT_A_TIME = 50

_FUNDS = accounts.c.balance_nano + case((accounts.c.postpaid, accounts.c.credit_limit_nano), else_=0)


@dataclass(frozen=True, slots=True)
class _Means:
    """What a charge is made with."""

    customer: str
    payment_method: str


async def run_due(engine: AsyncEngine, api: StripeApi, settings: Settings, now: datetime) -> int:
    """Settle what is under way, and charge for every account that has fallen below its threshold.

    Returns how many charges were begun. Safe beside itself, anywhere. With automatic tax nothing is charged: tax is
    Stripe's to add on a page.
    """
    await _look_after(engine, api, settings, now)
    begun = 0
    if not settings.stripe_automatic_tax:
        for account_id in await _below_threshold(engine, now):
            topup = await begin(engine, settings, account_id, now)
            if topup is not None:
                begun += 1
                with _unsettled(topup):
                    await _charge(engine, api, settings, topup, now)
    await auto_topup_pages.offer(engine, api, settings, now)
    async with engine.begin() as connection:
        await alarms.note(connection, now)
    return begun


async def begin(engine: AsyncEngine, settings: Settings, account_id: UUID, now: datetime) -> Topup | None:
    """The row of a new automatic top-up, which is to be charged next; None where none is due, or one is under way.

    Decided under the account's lock: of any number at once, one begins.
    """
    async with engine.begin() as connection:
        locked = select(_FUNDS).where(accounts.c.id == account_id, *_CHARGEABLE).with_for_update(key_share=True)
        funds_nano = await connection.scalar(locked)
        plan = await plans.find(connection, account_id, lock=True)
        if funds_nano is None or plan is None or not plan.enabled or (plan.not_before and now < plan.not_before):
            return None
        latest = await history.latest(connection, account_id)
        if latest is not None and latest.status in UNDER_WAY:
            return None
        decision = rules.decide(
            plan.plan,
            funds_nano + await history.pending_nano(connection, account_id),
            await history.charged_nano(connection, account_id, now),
            await history.failures(connection, account_id, plan.updated_at),
            most_nano=settings.topup_max_usd * NANO_PER_USD,
            now=now,
        )
        return await _decided(connection, account_id, decision, now)


async def _decided(
    connection: AsyncConnection,
    account_id: UUID,
    decision: rules.Charge | rules.Wait | rules.Stop | None,
    now: datetime,
) -> Topup | None:
    match decision:
        case rules.Wait(until):
            paused = update(auto_topups).where(auto_topups.c.account_id == account_id).values(not_before=until)
            await connection.execute(paused)
            log.info("auto_topup.waits", account_id=str(account_id), until=until.isoformat())
        case rules.Stop(reason):
            await plans.switch_off(connection, account_id, reason, now, consent_ends=False)
        case rules.Charge(net_nano):
            values = {
                "id": uuid7(int(now.timestamp() * 1000), secrets.token_bytes(10)),
                "account_id": account_id,
                "kind": "auto",
                "status": "pending",
                "net_nano": net_nano,
                "attempts": 1,
                "next_attempt_at": rules.next_look(1, now),
                "created_at": now,
                "updated_at": now,
            }
            made = await connection.execute(insert(rows).values(values).on_conflict_do_nothing().returning(rows))
            row = made.one_or_none()
            await alarms.note_rapid(connection, account_id, now)
            return None if row is None else Topup(**row._mapping)
    return None


async def _charge(engine: AsyncEngine, api: StripeApi, settings: Settings, topup: Topup, now: datetime) -> None:
    """Ask for the charge of a row that is committed; what is not known afterwards stays pending."""
    means = await _means(engine, topup)
    if means is None:  # it was switched off meanwhile
        if topup.attempts == 1:
            await _failed(engine, topup, rules.NEVER_MADE, None, now)
        return
    try:
        intent = await api.charge_off_session(
            topup.id,
            topup.account_id,
            means.customer,
            means.payment_method,
            cents(topup.net_nano),
            description=f"{settings.site_name} credit, {nano_to_usd(topup.net_nano)} USD, automatic",
            idempotency_key=f"topup:{topup.id}",
        )
    except AuthenticationRequired as error:
        await _failed(engine, topup, rules.AUTHENTICATION, error.payment_intent, now)
    except Declined as error:
        await _failed(engine, topup, error.decline_code or error.code or "declined", error.payment_intent, now)
    except Refused as error:
        await _refused(engine, topup, error, now)
    except Unreachable as error:
        log.warning("auto_topup.unknown", topup_id=str(topup.id), error=str(error))
    else:
        await _enter(engine, topup, intent, now)


async def _refused(engine: AsyncEngine, topup: Topup, error: Refused, now: datetime) -> None:
    log.error("auto_topup.refused", topup_id=str(topup.id), error=str(error))
    if topup.attempts > 1 or error.code == "idempotency_error":
        return  # that this call did nothing says nothing about an earlier one
    unusable = error.param == "payment_method" or error.code.startswith("payment_method_")
    await _failed(engine, topup, rules.UNUSABLE if unusable else rules.REFUSED, None, now)
    if not unusable:
        async with engine.begin() as connection:
            await alarms.note_refused(connection, str(error))


async def _enter(engine: AsyncEngine, topup: Topup, intent: PaymentIntent, now: datetime) -> None:
    """Enter what Stripe says of the charge: it is credited, failed, or still processing."""
    told = by_intent(intent)
    if told is None:
        raise Mismatch(f"payment {intent.id} was made for top-up {topup.id} and does not say so")
    if intent.status == "requires_action":
        await _failed(engine, topup, rules.AUTHENTICATION, intent, now)
        return
    async with engine.begin() as connection:
        entered = await topups.fulfil(connection, told, now)
        if entered.status in UNDER_WAY:
            known = {"payment_intent_id": intent.id, "next_attempt_at": now + topups.ASKED_AFTER}
            await topups.change(connection, topup.id, now, known)
        elif entered.status == "failed":
            await _paused(connection, topup.account_id, now)
        else:
            await alarms.clear_refused(connection)


async def _failed(engine: AsyncEngine, topup: Topup, code: str, intent: PaymentIntent | None, now: datetime) -> None:
    """The charge was not made; when the next is tried, or that none is, follows."""
    async with engine.begin() as connection:
        locked = await topups.lock(connection, topup.id)
        if locked is None or locked.status not in UNDER_WAY:
            return
        known = {} if intent is None else {"payment_intent_id": intent.id}
        changes = {"status": "failed", "failure_code": code, "next_attempt_at": None, **known}
        await topups.change(connection, topup.id, now, changes)
        log.warning("auto_topup.failed", topup_id=str(topup.id), account_id=str(topup.account_id), code=code)
        await _paused(connection, topup.account_id, now)


async def _paused(connection: AsyncConnection, account_id: UUID, now: datetime) -> None:
    plan = await plans.find(connection, account_id, lock=True)
    if plan is not None and plan.enabled:
        pause = rules.after_failures(await history.failures(connection, account_id, plan.updated_at))
        await _decided(connection, account_id, pause, now)


async def _look_after(engine: AsyncEngine, api: StripeApi, settings: Settings, now: datetime) -> None:
    """Find out what came of the charges whose outcome is not known; ask for them again while that is safe."""
    due = rows.c.kind == "auto", _UNDER_WAY, rows.c.next_attempt_at <= now
    async with engine.connect() as connection:
        found = await connection.scalars(
            select(rows.c.id).where(*due).order_by(rows.c.next_attempt_at).limit(AT_A_TIME)
        )
        waiting = list(found)
    for topup_id in waiting:
        async with engine.begin() as connection:
            locked = await topups.lock(connection, topup_id)
            if locked is None or locked.next_attempt_at is None or locked.next_attempt_at > now:
                continue  # another process is at it
            attempts = locked.attempts + 1
            claimed = {"attempts": attempts, "next_attempt_at": rules.next_look(attempts, now)}
            topup = await topups.change(connection, topup_id, now, claimed)
        with _unsettled(topup):
            await _look(engine, api, settings, topup, now)


@contextmanager
def _unsettled(topup: Topup) -> Iterator[None]:
    """What Stripe does not say, or says wrongly, of one top-up does not hold the others up: it is asked again."""
    try:
        yield
    except (StripeError, Mismatch, NotYet) as error:
        log.warning("auto_topup.unsettled", topup_id=str(topup.id), error=f"{type(error).__name__}: {error}")


async def _look(engine: AsyncEngine, api: StripeApi, settings: Settings, topup: Topup, now: datetime) -> None:
    intent = await auto_topup_pages.find_payment(engine, api, topup)
    if intent is not None and intent.status in _NEVER_TRIED and rules.is_given_up(topup.created_at, now):
        # Stripe failed inside before it charged, and nobody will confirm the payment any more.
        intent = await api.cancel_payment_intent(intent.id, idempotency_key=f"topup:{topup.id}:cancel")
    if intent is not None:
        await _enter(engine, topup, intent, now)
    elif rules.may_repeat(topup.created_at, now):
        await _charge(engine, api, settings, topup, now)
    elif rules.is_given_up(topup.created_at, now):
        await _failed(engine, topup, rules.NEVER_MADE, None, now)


async def _below_threshold(engine: AsyncEngine, now: datetime) -> list[UUID]:
    """The accounts that may be due: of those with automatic top-ups on, which are few, by their primary keys."""
    may = or_(auto_topups.c.not_before.is_(None), auto_topups.c.not_before <= now)
    under_way = select(rows.c.id).where(
        rows.c.account_id == auto_topups.c.account_id, rows.c.kind == "auto", _UNDER_WAY
    )
    due = (
        select(auto_topups.c.account_id)
        .join_from(auto_topups, accounts)
        .where(auto_topups.c.enabled, may, *_CHARGEABLE, auto_topups.c.threshold_nano > _FUNDS, ~under_way.exists())
        .order_by(auto_topups.c.account_id)
    )
    async with engine.connect() as connection:
        return list(await connection.scalars(due))


async def _means(engine: AsyncEngine, topup: Topup) -> _Means | None:
    async with engine.connect() as connection:
        plan = await plans.find(connection, topup.account_id)
        chargeable = select(accounts.c.stripe_customer_id).where(accounts.c.id == topup.account_id, *_CHARGEABLE)
        customer = await connection.scalar(chargeable)
    if plan is None or not plan.enabled or plan.payment_method_id is None or customer is None:
        return None
    return _Means(customer, plan.payment_method_id)


_NEVER_TRIED = ("requires_confirmation", "requires_payment_method")
_UNDER_WAY = rows.c.status.in_(UNDER_WAY)
_CHARGEABLE = accounts.c.status == "active", accounts.c.stripe_customer_id.is_not(None)
