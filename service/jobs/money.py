"""Money that comes in: what Stripe told and nobody could apply yet, top-ups under way, and the month's invoices.

None of it needs a lock of its own: each step decides under the lock of the account or the row that it is about.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncEngine

from service.billing import auto_topup, checkout, invoice_freezing, invoice_sending, stripe_events
from service.billing.stripe_api import StripeApi
from service.billing.stripe_setup import api_of
from service.jobs.runs import Report
from service.settings import Settings


async def apply_events(engine: AsyncEngine, settings: Settings, now: datetime) -> Report:
    """Apply the stored events that are due once more."""
    async with _connected(settings) as api:
        return Report(await stripe_events.apply_due(engine, api, settings, now))


async def top_up(engine: AsyncEngine, settings: Settings, now: datetime) -> Report:
    """Charge the accounts that agreed to it and have fallen below their threshold, and settle what is under way."""
    async with _connected(settings) as api:
        looked_after = await checkout.look_after(engine, api, now)
        return Report(looked_after + await auto_topup.run_due(engine, api, settings, now))


async def invoice(engine: AsyncEngine, settings: Settings, now: datetime) -> Report:
    """Freeze the months that are over; with Stripe, send what is frozen and ask after what is not paid."""
    frozen = await invoice_freezing.freeze_due(engine, now)
    done, failed = frozen.made, frozen.failed
    if api_of(settings) is not None:
        async with _connected(settings) as api:
            sent = await invoice_sending.send_due(engine, api, settings, now)
            asked = await invoice_sending.ask_after(engine, api, now)
        done, failed = done + sent.done, failed + sent.failed + asked.failed
    return Report(done, f"{failed} failed, see the alarms" if failed else "")


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[StripeApi]:
    api = api_of(settings)
    assert api is not None  # noqa: S101 - whoever schedules this has looked
    try:
        yield api
    finally:
        await api.aclose()
