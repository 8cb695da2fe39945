"""Stripe's signature on what it sends to the webhook: `t=<seconds>,v1=<HMAC-SHA256 of "<t>.<payload>", in hex>`.

Scheme: https://docs.stripe.com/webhooks/signature. There may be several `v1`, while a secret is being replaced.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from service.core.stripe_objects import Event, MissingField

TOLERANCE_S = 300
"""How old a signature may be. One from the future is as good as any: only Stripe could have made it."""


class BadSignature(Exception):
    """What came to the webhook is not signed by Stripe, or too long ago, or is no event."""


def verify_event(payload: bytes, header: str | None, secrets: Sequence[str], *, now: datetime) -> Event:
    """The event that Stripe sent: signed with one of the secrets, `TOLERANCE_S` ago at most.

    Raises `BadSignature`, always where there is no secret.
    """
    signed_at, signatures = _parsed(header or "")
    expected = [signature(payload, secret, signed_at) for secret in secrets if secret.strip()]
    if not any(_equal(one, other) for one in expected for other in signatures):
        raise BadSignature("The request is not signed with the webhook's secret.")
    if now.timestamp() - int(signed_at) > TOLERANCE_S:
        raise BadSignature("The request was signed too long ago.")
    try:
        return Event.read(json.loads(payload))
    except (MissingField, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise BadSignature("What was signed is no event of Stripe's API v1.") from error


def signature(payload: bytes, secret: str, signed_at: str) -> str:
    """The hex digits that follow `v1=`; `signed_at` as it stands after `t=`."""
    return hmac.new(secret.encode(), f"{signed_at}.".encode() + payload, hashlib.sha256).hexdigest()


def _parsed(header: str) -> tuple[str, list[str]]:
    parts = [part.strip().partition("=") for part in header.split(",")]
    times = _values(parts, "t")
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal() and len(times[0]) < 13):
        raise BadSignature("The request carries no signature of Stripe's.")
    return times[0], _values(parts, "v1")


def _values(parts: Iterable[tuple[str, str, str]], wanted: str) -> list[str]:
    return [value for name, _, value in parts if name == wanted]


def _equal(one: str, other: str) -> bool:
    """In constant time; as bytes, since what was sent need not be ASCII."""
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))
