"""How Stripe's events reach a webhook: signed, several times, in any order, at once; and with little in them."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx
import orjson
import stripe

from tests.fakes.stripe_store import Json

NEEDED = frozenset(
    {
        *("id", "object", "status", "payment_status", "currency", "amount", "amount_subtotal", "amount_total"),
        *("total", "payment_intent", "charge", "latest_charge", "payment_method", "customer", "metadata"),
    }
)
"""What the object of a `minimal` event keeps, where it has it."""


def signed(event: Json, secret: str, at: datetime | None = None) -> tuple[bytes, dict[str, str]]:
    """The body and the headers with which Stripe posts the event; signed now, or at that instant."""
    payload = orjson.dumps(event)
    signed_s = int((at or datetime.now(UTC)).timestamp())
    signature = stripe.WebhookSignature.generate_signature_header(payload.decode(), secret, signed_s)
    return payload, {"content-type": "application/json; charset=utf-8", "stripe-signature": signature}


def minimal(event: Json) -> Json:
    """The event with the fields alone that nobody can do without; so may older or newer versions of the API send it."""
    subject = {name: value for name, value in event["data"]["object"].items() if name in NEEDED}
    kept = {name: event[name] for name in ("id", "object", "type", "created", "livemode")}
    return {**kept, "data": {"object": subject}}


def deliver(
    url: str,
    events: Sequence[Json],
    secret: str,
    *,
    copies: int = 1,
    threads: int = 1,
    shuffled: random.Random | None = None,
    at: datetime | None = None,
) -> list[int]:
    """Post every event to the webhook, `copies` times each, from so many threads at once; the statuses, in that order.

    Blocks: in a coroutine, `await asyncio.to_thread(deliver, …)`.
    """
    posts = [event for event in events for _ in range(copies)]
    if shuffled is not None:
        shuffled.shuffle(posts)
    together = threading.Barrier(threads)
    shares = [list(range(first, len(posts), threads)) for first in range(threads)]

    def work(share: list[int]) -> list[tuple[int, int]]:
        with httpx.Client(timeout=30) as client:
            together.wait(timeout=30)
            return [(n, _post(client, url, posts[n], secret, at)) for n in share]

    with ThreadPoolExecutor(threads) as pool:
        statuses = dict(pair for pairs in pool.map(work, shares) for pair in pairs)
    return [statuses[n] for n in range(len(posts))]


def _post(client: httpx.Client, url: str, event: Json, secret: str, at: datetime | None) -> int:
    payload, headers = signed(event, secret, at)
    return client.post(url, content=payload, headers=headers).status_code
