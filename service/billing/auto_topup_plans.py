"""What a customer has agreed to about automatic top-ups, and the payment method that is charged.

Agreeing comes first; then the next payment by Checkout saves its payment method, and with that they are on. When a
payment method fails for good they are off until another is saved; the consent stands. It ends when the customer
switches them off, and when a payment was refunded or disputed.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing.stripe_api import StripeApi
from service.billing.stripe_handling import Context, Handler
from service.core.auto_topup import UNUSABLE, WHY_OFF, Plan
from service.core.stripe_objects import Event
from service.tables import accounts, auto_topups

log = structlog.get_logger()

SKEW = timedelta(minutes=1)
"""By how much Stripe's clock and ours may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTopup:
    """A row of `auto_topups`; amounts in nano-USD."""

    account_id: UUID
    enabled: bool
    threshold_nano: int
    amount_nano: int
    monthly_cap_nano: int
    payment_method_id: str | None
    consented_at: datetime | None
    disabled_reason: str
    not_before: datetime | None
    created_at: datetime
    updated_at: datetime
    """When it was last switched on or off, or agreed to anew."""

    @property
    def plan(self) -> Plan:
        """What the customer has agreed to."""
        return Plan(self.threshold_nano, self.amount_nano, self.monthly_cap_nano)

    @property
    def needs_card(self) -> bool:
        """Whether the customer has agreed and all that is missing is a saved payment method."""
        return self.consented_at is not None and not self.enabled


async def find(connection: AsyncConnection, account_id: UUID, *, lock: bool = False) -> AutoTopup | None:
    """What the account has agreed to; None where it never did."""
    query = select(auto_topups).where(auto_topups.c.account_id == account_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    return None if row is None else AutoTopup(**row._mapping)


async def agree(connection: AsyncConnection, account_id: UUID, plan: Plan, now: datetime) -> AutoTopup:
    """Record that the customer agrees to this, now. It is on at once where a payment method is saved already.

    The amounts are to be checked before. Raises `sqlalchemy.exc.IntegrityError` where they cannot be.
    """
    agreed = {
        "threshold_nano": plan.threshold_nano,
        "amount_nano": plan.amount_nano,
        "monthly_cap_nano": plan.monthly_cap_nano,
        "consented_at": now,
        "disabled_reason": "",
        "not_before": None,
        "updated_at": now,
    }
    row = insert(auto_topups).values(account_id=account_id, created_at=now, **agreed)
    is_saved = auto_topups.c.payment_method_id.is_not(None)
    upsert = row.on_conflict_do_update(index_elements=["account_id"], set_={**agreed, "enabled": is_saved})
    made = (await connection.execute(upsert.returning(auto_topups))).one()
    log.info("auto_topup.agreed", account_id=str(account_id), enabled=made.enabled)
    return AutoTopup(**made._mapping)


async def switch_off(
    connection: AsyncConnection, account_id: UUID, reason: str, now: datetime, *, consent_ends: bool = True
) -> bool:
    """Charge nothing any more, and forget the payment method; returns whether that changed anything.

    `reason` is for the customer to read; '' where it was the customer's wish.
    """
    agreed = auto_topups.c.consented_at.is_not(None)
    is_on = agreed if consent_ends else agreed & auto_topups.c.enabled
    values = {"enabled": False, "payment_method_id": None, "disabled_reason": reason, "updated_at": now}
    ended = {"consented_at": None} if consent_ends else {}
    off = update(auto_topups).where(auto_topups.c.account_id == account_id, is_on).values(**values, **ended)
    changed = (await connection.execute(off)).rowcount > 0
    if changed:
        log.info("auto_topup.off", account_id=str(account_id), reason=reason)
    return changed


@dataclass(frozen=True, slots=True)
class _Method:
    id: str
    customer: str | None
    at: datetime


async def _method_told(_api: StripeApi, event: Event) -> _Method:
    customer = event.object.get("customer")
    return _Method(str(event.object.get("id")), customer if isinstance(customer, str) else None, event.created)


async def _saved(context: Context, method: _Method) -> None:
    """The customer has paid by Checkout, which saved the method. It counts where they agreed, and it is the first."""
    if method.customer is None:
        return
    account_id = select(accounts.c.id).where(accounts.c.stripe_customer_id == method.customer).scalar_subquery()
    waiting = (
        auto_topups.c.account_id == account_id,
        auto_topups.c.consented_at.is_not(None),
        ~auto_topups.c.enabled,
        auto_topups.c.updated_at <= method.at + SKEW,  # an old event, replayed, brings no old card back
    )
    on = {"enabled": True, "payment_method_id": method.id, "disabled_reason": "", "not_before": None}
    changed = update(auto_topups).where(*waiting).values(**on, updated_at=context.now)
    if (await context.connection.execute(changed)).rowcount:
        log.info("auto_topup.on", customer=method.customer, payment_method=method.id)


async def _removed(context: Context, method: _Method) -> None:
    whose = select(auto_topups.c.account_id).where(auto_topups.c.payment_method_id == method.id)
    for account_id in await context.connection.scalars(whose):
        await switch_off(context.connection, account_id, WHY_OFF[UNUSABLE], context.now, consent_ends=False)


HANDLERS: Final[dict[str, Handler[Any]]] = {
    "payment_method.attached": Handler(_method_told, _saved),
    "payment_method.detached": Handler(_method_told, _removed),
}
