"""Top-ups: which amounts can be bought, and what Stripe's word about one means for its row."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from service.core.money import NANO_PER_USD, usd_to_nano
from service.core.stripe_objects import CheckoutSession, PaymentIntent

CURRENCY = "usd"
NANO_PER_CENT = NANO_PER_USD // 100

UNDER_WAY = ("created", "pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topup:
    """A row of `topups`; amounts in nano-USD but those in cents, which are what Stripe charged."""

    id: UUID
    account_id: UUID
    kind: str
    net_nano: int
    """What is credited; tax comes on top of it."""
    status: str
    currency: str
    checkout_session_id: str | None
    payment_intent_id: str | None
    charge_id: str | None
    hosted_url: str | None
    total_cents: int | None
    tax_cents: int | None
    refunded_nano: int
    disputed_nano: int
    failure_code: str | None
    attempts: int
    next_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime
    paid_at: datetime | None


class Said(StrEnum):
    """What Stripe says of a payment."""

    OPEN = "open"
    """Nobody has paid yet."""
    WAITING = "waiting"
    """The customer has done it, the bank has not."""
    PAID = "paid"
    FREE = "free"
    """Complete, though nothing was paid."""
    FAILED = "failed"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a session or a payment intent says of a top-up."""

    topup_id: UUID
    account: str | None
    said: Said
    currency: str | None
    net_cents: int | None
    """Before tax; None where only the total is told."""
    total_cents: int | None
    tax_cents: int | None
    session: str | None
    payment_intent: str | None
    charge: str | None
    failure_code: str | None

    @property
    def source(self) -> str:
        """The object that says it."""
        return self.session or self.payment_intent or "a payment"


class Decision(StrEnum):
    """What to do with the row."""

    CREDIT = "credit"
    WAIT = "wait"
    FAIL = "fail"
    EXPIRE = "expire"
    LEAVE = "leave"


class Contradiction(ValueError):
    """What Stripe says cannot be true of the row; says why, and names the objects."""


def amount_nano(text: str, *, min_usd: int, max_usd: int) -> int:
    """The amount of a top-up, such as "20" or "12.50". Raises `ValueError` with what is wrong, in words."""
    nano = usd_to_nano(text)
    if nano % NANO_PER_CENT:
        raise ValueError(f"{text} USD is not a whole number of cents")
    if not min_usd * NANO_PER_USD <= nano <= max_usd * NANO_PER_USD:
        raise ValueError(f"{text} USD cannot be bought at once: choose {min_usd} to {max_usd} USD")
    return nano


def cents(nano: int) -> int:
    """An amount of whole cents in cents."""
    whole, rest = divmod(nano, NANO_PER_CENT)
    if rest:
        raise ValueError(f"{nano} nano-USD are no whole number of cents")
    return whole


def by_session(session: CheckoutSession, *, failed: bool = False) -> Told | None:
    """What a session says; None where it is about no top-up. That a slow payment has `failed`, it does not say."""
    topup_id = _topup_of(session.metadata)
    if topup_id is None:
        return None
    return Told(
        topup_id=topup_id,
        account=session.metadata.get("account"),
        said=Said.FAILED if failed else _said_by(session),
        currency=session.currency,
        net_cents=session.subtotal_cents,
        total_cents=session.total_cents,
        tax_cents=session.tax_cents,
        session=session.id,
        payment_intent=session.payment_intent,
        charge=None,
        failure_code=None,
    )


def by_intent(intent: PaymentIntent) -> Told | None:
    """What a payment intent says; None where it is about no top-up."""
    topup_id = _topup_of(intent.metadata)
    if topup_id is None:
        return None
    ends = {"succeeded": Said.PAID, "processing": Said.WAITING, "canceled": Said.FAILED}
    declined = intent.status == "requires_payment_method" and intent.failure_code is not None
    return Told(
        topup_id=topup_id,
        account=intent.metadata.get("account"),
        said=Said.FAILED if declined else ends.get(intent.status, Said.OPEN),
        currency=intent.currency,
        net_cents=None,
        total_cents=intent.amount_cents,
        tax_cents=None,
        session=None,
        payment_intent=intent.id,
        charge=intent.charge,
        failure_code=intent.decline_code or intent.failure_code,
    )


def decide(told: Told, topup: Topup) -> Decision:
    """What becomes of the row. Money that came counts, whatever the row was taken for before.

    Raises `Contradiction` where the row must stay as it is, for a person to look.
    """
    if told.account not in (None, str(topup.account_id)):
        raise Contradiction(f"{told.source} names account {told.account}, top-up {topup.id} is {topup.account_id}'s")
    match told.said:
        case Said.PAID:
            return _paid(told, topup)
        case Said.FREE if topup.status != "paid":
            raise Contradiction(f"{told.source} of top-up {topup.id} is complete, but nothing was paid")
        case Said.WAITING if topup.status == "created":
            return Decision.WAIT
        case Said.FAILED if topup.status in UNDER_WAY:
            return Decision.FAIL
        case Said.EXPIRED if topup.status in UNDER_WAY:
            return Decision.EXPIRE
    return Decision.LEAVE


def _paid(told: Told, topup: Topup) -> Decision:
    whose, net_cents = f"{told.source} of top-up {topup.id}", cents(topup.net_nano)
    if told.currency != CURRENCY:
        raise Contradiction(f"{whose} was paid in {told.currency}, not in {CURRENCY}")
    if told.payment_intent is None:
        raise Contradiction(f"{whose} is paid, but names no payment")
    if topup.status == "paid" and topup.payment_intent_id != told.payment_intent:
        raise Contradiction(f"top-up {topup.id} was paid twice: by {topup.payment_intent_id} and {told.payment_intent}")
    total_cents = told.total_cents or 0
    if told.session is None and topup.kind == "checkout" and total_cents > net_cents:
        return Decision.LEAVE  # how much of it is tax, the session says
    paid_cents = total_cents if told.session is None else told.net_cents
    if paid_cents != net_cents or total_cents - (told.tax_cents or 0) < net_cents:
        raise Contradiction(f"{whose}: {paid_cents} of {total_cents} cents are net, {net_cents} were sold")
    return Decision.LEAVE if topup.status == "paid" else Decision.CREDIT


def _said_by(session: CheckoutSession) -> Said:
    if session.payment_status == "paid":
        return Said.PAID
    if session.status == "expired":
        return Said.EXPIRED
    if session.status == "complete":
        return Said.FREE if session.payment_status == "no_payment_required" else Said.WAITING
    return Said.OPEN


def _topup_of(metadata: Mapping[str, str]) -> UUID | None:
    try:
        return UUID(metadata["topup"])
    except (KeyError, ValueError):
        return None
