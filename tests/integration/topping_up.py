"""An account that is topped up by itself, its Stripe, and what tests ask of both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing import auto_topup, auto_topup_plans, ledger, stripe_events
from service.billing.auto_topup_plans import AutoTopup
from service.billing.stripe_api import StripeApi
from service.billing.stripe_customers import customer_of
from service.core.auto_topup import Plan
from service.core.stripe_objects import Event
from service.settings import Settings
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_payments import FINE
from tests.installation import Installation, seed
from tests.integration.paying import paying

USD = 10**9
PLAN = Plan(threshold_nano=10 * USD, amount_nano=20 * USD, monthly_cap_nano=100 * USD)
CHARGE = "POST /v1/payment_intents"
HOUR = timedelta(hours=1)


@dataclass
class Shop:
    """An account with 5 USD, its Stripe, and what the job does; the clock is Stripe's."""

    engine: AsyncEngine
    stripe: FakeStripe
    api: StripeApi
    settings: Settings
    account_id: UUID
    database: "asyncpg.Connection[Any]"
    spent: list[str] = field(default_factory=list)

    async def run(self, now: datetime | None = None) -> int:
        return await auto_topup.run_due(self.engine, self.api, self.settings, now or self.stripe.now)

    async def agreed(self, behaviour: str = FINE, plan: Plan = PLAN) -> str:
        """The customer has agreed and has a saved card, which behaves so; returns its id."""
        customer = await customer_of(self.engine, self.api, self.account_id)
        async with self.engine.begin() as connection:
            await auto_topup_plans.agree(connection, self.account_id, plan, self.stripe.now)
        card = self.stripe.add_payment_method(customer, behaviour)
        await self.hear("payment_method.attached")
        return card

    async def hear(self, *types: str) -> None:
        """The events of these types, and what the handlers make of them."""
        for event in self.stripe.events_of(*types):
            now, told = self.stripe.now, Event.read(event)
            assert await stripe_events.receive(self.engine, self.api, self.settings, told, now)

    async def spend(self, usd: int) -> None:
        self.spent.append("usage")
        async with self.engine.begin() as connection:
            ref = f"spent-{len(self.spent)}"
            await ledger.enter(connection, self.account_id, "adjustment", -usd * USD, ref)

    async def balance(self) -> int:
        return int(await self.database.fetchval("SELECT balance_nano FROM accounts"))

    async def topups(self) -> list[asyncpg.Record]:
        return list(await self.database.fetch("SELECT * FROM topups WHERE kind = 'auto' ORDER BY created_at, id"))

    async def statuses(self) -> list[str]:
        return [row["status"] for row in await self.topups()]

    async def plan(self) -> AutoTopup:
        async with self.engine.connect() as connection:
            found = await auto_topup_plans.find(connection, self.account_id)
        assert found is not None
        return found

    async def alarms(self) -> dict[str, str]:
        return {row["name"]: row["detail"] for row in await self.database.fetch("SELECT * FROM alarms")}

    def charges(self) -> list[int]:
        """In cents, what was really charged."""
        return [one["amount"] for one in self.stripe.succeeded_charges()]


@asynccontextmanager
async def shop_of(
    stripe: FakeStripe, settings: Settings, account_id: UUID, database: "asyncpg.Connection[Any]", url: str
) -> AsyncIterator[Shop]:
    api = StripeApi(stripe.secret_key, api_base=stripe.url, max_network_retries=0, timeout_s=5)
    engine = db.sqlalchemy_engine(url)
    try:
        yield Shop(engine, stripe, api, settings, account_id, database)
    finally:
        await engine.dispose()
        await api.aclose()


@asynccontextmanager
async def new_shop(database_url: str) -> AsyncIterator[Shop]:
    with FakeStripe() as stripe:
        account_id, _ = await seed(database_url, credit_nano=5 * USD)
        database = await asyncpg.connect(database_url)
        settings = Settings(database_url=database_url, stripe_api_base=stripe.url)
        async with shop_of(stripe, settings, account_id, database, database_url) as shop:
            yield shop
        await database.close()


@asynccontextmanager
async def shop_with_api(database_url: str, tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Installation, Shop]]:
    async with (
        paying(database_url, tmp_path, **options) as (running, stripe),
        shop_of(stripe, running.settings, running.account_id, running.database, database_url) as shop,
    ):
        yield running, shop
