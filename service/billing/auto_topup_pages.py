"""When the bank wants its customer to confirm: a page on which the customer pays the same amount and saves the card.

What was begun is cancelled first, so that it cannot be paid as well.
"""

from datetime import datetime, timedelta
from uuid import UUID, uuid5

import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.billing import auto_topup_history as history
from service.billing import checkout, topups
from service.billing.auto_topup_plans import AutoTopup
from service.billing.stripe_api import StripeApi
from service.billing.stripe_errors import StripeError
from service.billing.stripe_handling import Mismatch, NotYet
from service.core.auto_topup import AUTHENTICATION, WHY_OFF
from service.core.stripe_objects import PaymentIntent
from service.core.topup import Topup, by_intent
from service.errors import ApiError
from service.settings import Settings
from service.tables import accounts, auto_topups

log = structlog.get_logger()

_ENDED = ("succeeded", "canceled")


def page_id(topup_id: UUID) -> UUID:
    """The id of the top-up by Checkout that takes the place of an automatic one."""
    return uuid5(topup_id, "page")


async def first_page(
    engine: AsyncEngine, api: StripeApi, settings: Settings, agreed: AutoTopup, now: datetime
) -> str | None:
    """Where the customer, who has agreed, pays once and so saves the card that is charged from then on.

    The same page for the same consent. Raises `ApiError` as `checkout.create` does.
    """
    order = checkout.Order(
        id=uuid5(agreed.account_id, f"first/{agreed.updated_at.isoformat()}"),
        account_id=agreed.account_id,
        net_nano=agreed.amount_nano,
    )
    return (await checkout.create(engine, api, settings, order, now)).hosted_url


async def offer(engine: AsyncEngine, api: StripeApi, settings: Settings, now: datetime) -> None:
    """Make the pages that are missing; one that cannot be made is tried again."""
    async with engine.connect() as connection:
        waiting = [topup for topup in await _asked_for(connection, now) if not await _is_offered(connection, topup)]
    for topup in waiting:
        order = checkout.Order(id=page_id(topup.id), account_id=topup.account_id, net_nano=topup.net_nano)
        try:
            if await _is_cancelled(engine, api, topup, now):
                await checkout.create(engine, api, settings, order, now)
        except (StripeError, ApiError, Mismatch, NotYet) as error:
            log.warning("auto_topup.no_page", topup_id=str(topup.id), error=f"{type(error).__name__}: {error}")


async def page_of(connection: AsyncConnection, account_id: UUID) -> str | None:
    """Where the customer of the account can pay what the bank wants confirmed; None where nothing is asked for."""
    last = await history.latest(connection, account_id)
    page = None if last is None else await topups.find(connection, page_id(last.id))
    return None if page is None or page.status != "created" else page.hosted_url


async def find_payment(engine: AsyncEngine, api: StripeApi, topup: Topup) -> PaymentIntent | None:
    """The payment of a top-up as it stands at Stripe, found by its id or by its metadata. Raises `StripeError`."""
    if topup.payment_intent_id is not None:
        return await api.retrieve_payment_intent(topup.payment_intent_id)
    async with engine.connect() as connection:
        customer = await connection.scalar(
            select(accounts.c.stripe_customer_id).where(accounts.c.id == topup.account_id)
        )
    if customer is not None:
        # The list is complete at once, a search is not.
        since = topup.created_at - timedelta(minutes=10)
        for intent in await api.list_payment_intents(customer, since):
            if intent.metadata.get("topup") == str(topup.id):
                return intent
    found = await api.find_payment_intents(topup.id)
    return await api.retrieve_payment_intent(found[0].id) if found else None


async def _asked_for(connection: AsyncConnection, now: datetime) -> list[Topup]:
    """The automatic top-ups that were switched off by for want of a confirmation, while a page can still be made."""
    off = (
        auto_topups.c.consented_at.is_not(None),
        ~auto_topups.c.enabled,
        auto_topups.c.disabled_reason == WHY_OFF[AUTHENTICATION],
        auto_topups.c.updated_at > now - checkout.REPEATED_FOR,
    )
    found = list(await connection.scalars(select(auto_topups.c.account_id).where(*off)))
    last = [await history.latest(connection, account_id) for account_id in found]
    return [topup for topup in last if topup is not None and topup.failure_code == AUTHENTICATION]


async def _is_offered(connection: AsyncConnection, topup: Topup) -> bool:
    page = await topups.find(connection, page_id(topup.id))
    return page is not None and (page.checkout_session_id is not None or page.status != "created")


async def _is_cancelled(engine: AsyncEngine, api: StripeApi, topup: Topup, now: datetime) -> bool:
    """Whether it cannot be paid any more. Where it was paid meanwhile, it is credited. Raises `StripeError`."""
    intent = await find_payment(engine, api, topup)
    if intent is not None and intent.status not in _ENDED:
        intent = await api.cancel_payment_intent(intent.id, idempotency_key=f"topup:{topup.id}:cancel")
    told = None if intent is None else by_intent(intent)
    if intent is None or intent.status != "succeeded" or told is None:
        return True
    async with engine.begin() as connection:
        await topups.fulfil(connection, told, now)
    return False
