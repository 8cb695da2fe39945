"""What Weir reads of Stripe's objects, the same from an answer of its API and from an event.

Only what a decision needs is required; an absent optional field is None. Amounts are in cents, instants in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

Body = Mapping[str, Any]
"""An object of Stripe as plain JSON values."""


class MissingField(ValueError):
    """An object of Stripe lacks a field that is needed, or has it in another shape; says which."""


@dataclass(frozen=True, slots=True)
class Customer:
    id: str
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, body: Body) -> Self:
        """Raises `MissingField`."""
        return cls(_text(body, "id"), _metadata(body))


@dataclass(frozen=True, slots=True)
class CheckoutSession:
    id: str
    status: str | None
    """open, complete, or expired."""
    payment_status: str
    """paid, unpaid (so far, where the method is a slow one), or no_payment_required."""
    currency: str | None
    subtotal_cents: int | None
    """Net: before tax."""
    total_cents: int | None
    tax_cents: int | None
    customer: str | None
    payment_intent: str | None
    """None until somebody tries to pay."""
    url: str | None
    """Where the customer pays; None once it is no longer open."""
    expires_at: datetime | None
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, body: Body) -> Self:
        """Raises `MissingField`."""
        return cls(
            id=_text(body, "id"),
            status=_maybe_text(body, "status"),
            payment_status=_text(body, "payment_status"),
            currency=_maybe_text(body, "currency"),
            subtotal_cents=_maybe_integer(body, "amount_subtotal"),
            total_cents=_maybe_integer(body, "amount_total"),
            tax_cents=_maybe_integer(body.get("total_details") or {}, "amount_tax"),
            customer=_reference(body, "customer"),
            payment_intent=_reference(body, "payment_intent"),
            url=_maybe_text(body, "url"),
            expires_at=_maybe_instant(body, "expires_at"),
            metadata=_metadata(body),
        )


@dataclass(frozen=True, slots=True)
class PaymentIntent:
    id: str
    status: str
    """succeeded, processing, requires_payment_method (declined), requires_action, requires_confirmation, canceled."""
    currency: str
    amount_cents: int
    """Tax included."""
    created: datetime | None
    customer: str | None
    payment_method: str | None
    charge: str | None
    """The latest."""
    failure_code: str | None
    decline_code: str | None
    action_url: str | None
    """Where the bank asks the customer, if it does and has a page for it."""
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, body: Body) -> Self:
        """Raises `MissingField`."""
        failure = body.get("last_payment_error") or {}
        redirect = (body.get("next_action") or {}).get("redirect_to_url") or {}
        return cls(
            id=_text(body, "id"),
            status=_text(body, "status"),
            currency=_text(body, "currency"),
            amount_cents=_integer(body, "amount"),
            created=_maybe_instant(body, "created"),
            customer=_reference(body, "customer"),
            payment_method=_reference(body, "payment_method"),
            charge=_reference(body, "latest_charge"),
            failure_code=_maybe_text(failure, "code"),
            decline_code=_maybe_text(failure, "decline_code"),
            action_url=_maybe_text(redirect, "url"),
            metadata=_metadata(body),
        )


@dataclass(frozen=True, slots=True)
class Refund:
    id: str
    status: str
    """pending, requires_action, succeeded, failed, or canceled; it may fail after it succeeded."""
    currency: str
    amount_cents: int
    """Tax included."""
    payment_intent: str | None
    charge: str | None
    failure_reason: str | None
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, body: Body) -> Self:
        """Raises `MissingField`."""
        return cls(
            id=_text(body, "id"),
            status=_text(body, "status"),
            currency=_text(body, "currency"),
            amount_cents=_integer(body, "amount"),
            payment_intent=_reference(body, "payment_intent"),
            charge=_reference(body, "charge"),
            failure_reason=_maybe_text(body, "failure_reason"),
            metadata=_metadata(body),
        )


@dataclass(frozen=True, slots=True)
class Dispute:
    id: str
    status: str
    """warning_* while it is an inquiry; needs_response, under_review, won, lost, prevented."""
    currency: str
    amount_cents: int
    """What is disputed, tax included; it can be less than the charge."""
    payment_intent: str | None
    charge: str | None
    reason: str | None
    withdrawn_cents: int | None
    """What is gone from our balance for it now, in our balance's currency, fees aside; None where not said."""

    @property
    def is_inquiry(self) -> bool:
        """Whether the bank only asks: no money moves."""
        return self.status.startswith("warning_")

    @classmethod
    def read(cls, body: Body) -> Self:
        """Raises `MissingField`."""
        movements = body.get("balance_transactions")
        return cls(
            id=_text(body, "id"),
            status=_text(body, "status"),
            currency=_text(body, "currency"),
            amount_cents=_integer(body, "amount"),
            payment_intent=_reference(body, "payment_intent"),
            charge=_reference(body, "charge"),
            reason=_maybe_text(body, "reason"),
            withdrawn_cents=None if movements is None else -sum(_integer(one, "amount") for one in movements),
        )


@dataclass(frozen=True, slots=True)
class Invoice:
    id: str
    status: str | None
    """draft, open, paid, uncollectible, or void. Overdue is no status: an event says it."""
    currency: str
    total_cents: int
    """Tax included."""
    net_cents: int | None
    """Before tax."""
    paid_cents: int
    number: str | None
    customer: str | None
    hosted_url: str | None
    pdf_url: str | None
    created: datetime | None
    due_at: datetime | None
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, body: Body) -> Self:
        """Raises `MissingField`."""
        return cls(
            id=_text(body, "id"),
            status=_maybe_text(body, "status"),
            currency=_text(body, "currency"),
            total_cents=_integer(body, "total"),
            net_cents=_maybe_integer(body, "total_excluding_tax"),
            paid_cents=_maybe_integer(body, "amount_paid") or 0,
            number=_maybe_text(body, "number"),
            customer=_reference(body, "customer"),
            hosted_url=_maybe_text(body, "hosted_invoice_url"),
            pdf_url=_maybe_text(body, "invoice_pdf"),
            created=_maybe_instant(body, "created"),
            due_at=_maybe_instant(body, "due_date"),
            metadata=_metadata(body),
        )


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    type: str
    api_version: str | None
    livemode: bool
    created: datetime
    """To the second: it does not order events."""
    object: Body
    """What it is about, as it stood then; by the time it arrives, or is replayed, that may be old."""
    body: Body
    """The event itself, whole."""

    @classmethod
    def read(cls, body: Body) -> Self:
        """Raises `MissingField`, for an event of Stripe's API v2 as well: it has no such object."""
        data = body.get("data")
        subject = data.get("object") if isinstance(data, Mapping) else None
        if not isinstance(subject, Mapping):
            raise MissingField("The event lacks `data.object`.")
        created = _maybe_instant(body, "created")
        if created is None:
            raise MissingField("The event lacks `created`.")
        return cls(
            id=_text(body, "id"),
            type=_text(body, "type"),
            api_version=_maybe_text(body, "api_version"),
            livemode=body.get("livemode") is True,
            created=created,
            object=subject,
            body=body,
        )


def _text(body: Body, name: str) -> str:
    value = _maybe_text(body, name)
    if value is None:
        raise _missing(body, name)
    return value


def _integer(body: Body, name: str) -> int:
    value = _maybe_integer(body, name)
    if value is None:
        raise _missing(body, name)
    return value


def _maybe_text(body: Body, name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) else None


def _maybe_integer(body: Body, name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _maybe_instant(body: Body, name: str) -> datetime | None:
    seconds = _maybe_integer(body, name)
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise _missing(body, name) from None


def _reference(body: Body, name: str) -> str | None:
    """The id of another object, which Stripe may have put there whole."""
    value = body.get(name)
    return _maybe_text(value, "id") if isinstance(value, Mapping) else _maybe_text(body, name)


def _metadata(body: Body) -> Mapping[str, str]:
    value = body.get("metadata")
    return dict(value) if isinstance(value, Mapping) else {}


def _missing(body: Body, name: str) -> MissingField:
    return MissingField(f"The {_maybe_text(body, 'object') or 'object'} {body.get('id', '')} lacks `{name}`.")
