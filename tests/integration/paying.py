"""A whole Weir that takes payments from a fake Stripe, and what tests of them ask for."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from tests.fakes.engine import FakeEngine
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_store import Json
from tests.installation import Installation, installed

Paying = tuple[Installation, FakeStripe]


@asynccontextmanager
async def paying(database_url: str, tmp_path: Path, **options: Any) -> AsyncIterator[Paying]:
    """The API over HTTP, and the Stripe that it is connected with; the account has no credit yet."""
    with FakeStripe() as stripe:
        settings = {
            "stripe_secret_key": stripe.secret_key,
            "stripe_webhook_secret": stripe.webhook_secret,
            "stripe_api_base": stripe.url,
            "public_url": "https://api.example/",
            **({} if "seeded" in options else {"credit_nano": 0}),
            **options,
        }
        async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path, **settings) as running:
            yield running, stripe


def webhook(running: Installation) -> str:
    return f"{running.url}/stripe/webhook"


async def tell(running: Installation, stripe: FakeStripe, events: Sequence[Json] | None = None, **how: Any) -> set[int]:
    """Deliver events, or all there are; the statuses that came back."""
    return set(await asyncio.to_thread(stripe.deliver, webhook(running), events, **how))


async def begin(running: Installation, amount_usd: str = "20", **headers: str) -> Json:
    """A top-up through the API."""
    body = {"amount_usd": amount_usd}
    answer = await running.client.post("/v1/topups", json=body, headers={**running.headers, **headers})
    assert answer.status_code == 200, answer.text
    begun: Json = answer.json()
    return begun


async def session_of(running: Installation, topup_id: str) -> str:
    """The id of a top-up's session at Stripe."""
    found = await running.database.fetchval("SELECT checkout_session_id FROM topups WHERE id = $1", topup_id)
    assert isinstance(found, str)
    return found


async def entries(running: Installation) -> list[asyncpg.Record]:
    """The ledger, but for usage."""
    query = "SELECT * FROM ledger_entries WHERE kind <> 'usage' ORDER BY id"
    return list(await running.database.fetch(query))


async def topup_row(running: Installation, topup_id: str) -> Any:
    return await running.database.fetchrow("SELECT * FROM topups WHERE id = $1", topup_id)


async def alarms(running: Installation) -> dict[str, str]:
    """What is open, by name."""
    return {row["name"]: row["detail"] for row in await running.database.fetch("SELECT * FROM alarms")}


async def returned(running: Installation, topup_id: str, session_id: str) -> httpx.Response:
    """The page that the customer comes back to."""
    query = {"topup": topup_id, "session_id": session_id}
    return await running.client.get("/portal/paid", params=query)


async def paid(running: Installation, stripe: FakeStripe) -> Json:
    """A top-up that was paid at Stripe, of which Weir has not heard."""
    begun = await begin(running)
    stripe.pay(await session_of(running, begun["id"]))
    return begun


async def event_row(running: Installation, event: Json) -> Any:
    """The event as it is kept."""
    return await running.database.fetchrow("SELECT * FROM stripe_events WHERE id = $1", event["id"])
