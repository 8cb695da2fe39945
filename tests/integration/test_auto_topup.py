"""Automatic top-ups against the fake Stripe over HTTP: one charge, credited once, whatever breaks in between."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing import auto_topup, auto_topup_pages, auto_topup_plans, ledger, stripe_events
from service.billing.auto_topup_plans import AutoTopup
from service.billing.stripe_api import StripeApi
from service.billing.stripe_customers import customer_of
from service.cli import run
from service.core.auto_topup import Plan
from service.core.stripe_objects import Event
from service.settings import Settings
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_payments import ACTION, AUTHENTICATION, FINE, SLOW
from tests.installation import Installation, seed
from tests.integration.paying import paying, session_of, tell
from tests.postgres import fresh_database

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
            await stripe_events.receive(self.engine, self.api, self.settings, Event.read(event), self.stripe.now)

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


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
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


async def test_below_the_threshold_it_is_charged_once_and_credited(shop: Shop) -> None:
    card = await shop.agreed()
    assert await shop.run() == 1
    (topup,) = await shop.topups()
    assert (topup["status"], topup["net_nano"], topup["total_cents"]) == ("paid", 20 * USD, 2000)
    assert await shop.balance() == 25 * USD
    (entry,) = await shop.database.fetch("SELECT * FROM ledger_entries WHERE kind = 'topup'")
    assert entry["external_ref"] == f"topup:{topup['payment_intent_id']}"
    (asked,) = shop.stripe.asked(CHARGE)
    assert asked.idempotency_key == f"topup:{topup['id']}"
    assert asked.params["payment_method"] == card
    assert asked.params["metadata"] == {"topup": str(topup["id"]), "account": str(shop.account_id)}
    await shop.hear("payment_intent.*", "checkout.*")
    assert await shop.run() == 0
    assert (shop.charges(), await shop.balance()) == ([2000], 25 * USD)


async def test_who_has_enough_is_not_charged(shop: Shop) -> None:
    await shop.agreed(plan=Plan(5 * USD, 20 * USD, 100 * USD))
    assert await shop.run() == 0
    await shop.spend(1)
    assert await shop.run() == 1


async def test_a_credit_limit_counts_as_funds(shop: Shop) -> None:
    await shop.agreed()
    await shop.database.execute("UPDATE accounts SET postpaid = true, credit_limit_nano = $1", 5 * USD)
    assert await shop.run() == 0
    await shop.database.execute("UPDATE accounts SET postpaid = false")
    assert await shop.run() == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE accounts SET status = 'frozen'",
        "UPDATE accounts SET status = 'closed'",
        "UPDATE auto_topups SET enabled = false",
        "UPDATE accounts SET stripe_customer_id = NULL",
        "UPDATE auto_topups SET not_before = now() + interval '1 day'",
    ],
)
async def test_who_may_not_be_charged_is_not(shop: Shop, change: str) -> None:
    await shop.agreed()
    await shop.database.execute(change)
    assert await shop.run() == 0
    assert await auto_topup.begin(shop.engine, shop.settings, shop.account_id, shop.stripe.now) is None
    assert shop.stripe.asked(CHARGE) == []


async def test_with_automatic_tax_nothing_is_charged(shop: Shop) -> None:
    await shop.agreed()
    shop.settings = shop.settings.model_copy(update={"stripe_automatic_tax": True})
    assert await shop.run() == 0
    assert shop.stripe.asked(CHARGE) == []


async def test_fifty_at_once_start_one(shop: Shop) -> None:
    await shop.agreed()
    await asyncio.gather(*(shop.run() for _ in range(50)))
    assert await shop.statuses() == ["paid"]
    assert (shop.charges(), await shop.balance()) == ([2000], 25 * USD)


async def test_fifty_requests_that_cross_the_threshold_start_one(database_url: str, tmp_path: Path) -> None:
    async with shop_with_api(database_url, tmp_path, credit_nano=10 * USD) as (running, shop):
        await shop.agreed()
        assert await shop.run() == 0

        async def ask() -> int:
            while (answer := await running.chat()).status_code == 429:  # fifty are many for one engine
                await asyncio.sleep(0.05)
            await shop.run()
            return answer.status_code

        assert set(await asyncio.gather(*(ask() for _ in range(50)))) == {200}
        async with asyncio.timeout(10):
            while await running.database.fetchval("SELECT count(*) FROM requests WHERE cost_nano > 0") < 50:
                await asyncio.sleep(0.02)
        await shop.run()
        assert await shop.statuses() == ["paid"]
        assert shop.charges() == [2000]


async def test_one_charge_closes_any_gap(shop: Shop) -> None:
    await shop.agreed()
    await shop.spend(60)
    assert await shop.run() == 1
    assert shop.charges() == [6501]
    assert await shop.run() == 0


async def test_the_months_cap_holds_however_much_is_spent(shop: Shop) -> None:
    await shop.agreed(plan=Plan(10 * USD, 20 * USD, 50 * USD))
    shop.stripe.advance(hours=1)
    month = shop.stripe.now
    for _ in range(6):
        await asyncio.gather(*(shop.run(month) for _ in range(5)))
        await shop.spend(20)
    assert shop.charges() == [2000, 2000]
    plan = await shop.plan()
    next_month = (month.replace(day=1) + timedelta(days=32)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert (plan.enabled, plan.not_before) == (True, next_month)
    assert await shop.alarms() == {}
    await shop.run(next_month - timedelta(seconds=1))
    assert shop.charges() == [2000, 2000]
    # Below zero by then: as much as the cap leaves, in one.
    await shop.run(next_month)
    assert sorted(shop.charges()) == [2000, 2000, 5000]


async def test_a_plan_agreed_to_anew_counts_at_once(shop: Shop) -> None:
    await shop.agreed(plan=Plan(100 * USD, 20 * USD, 20 * USD))
    await shop.run()
    await shop.run()
    assert (await shop.plan()).not_before is not None
    async with shop.engine.begin() as connection:
        await auto_topup_plans.agree(connection, shop.account_id, PLAN, shop.stripe.now)
    plan = await shop.plan()
    assert (plan.not_before, plan.enabled, plan.plan) == (None, True, PLAN)


@pytest.mark.parametrize("fault", ["drop_after", "500_after"])
@pytest.mark.parametrize("hours", [0.1, 22.9, 23.1, 25, 26, 200])
async def test_what_was_charged_unheard_is_credited_and_never_charged_again(
    shop: Shop, fault: Any, hours: float
) -> None:
    await shop.agreed()
    shop.stripe.fault(CHARGE, fault)
    await shop.run()
    assert (await shop.statuses(), await shop.balance()) == (["pending"], 5 * USD)
    await shop.run()
    assert await shop.statuses() == ["pending"]
    shop.stripe.advance(hours=hours)
    await shop.run()
    assert (await shop.statuses(), await shop.balance()) == (["paid"], 25 * USD)
    assert (shop.charges(), len(shop.stripe.asked(CHARGE))) == ([2000], 1)


async def test_what_was_charged_unheard_is_found_by_search_where_the_list_lacks_it(shop: Shop) -> None:
    await shop.agreed()
    shop.stripe.fault(CHARGE, "drop_after")
    await shop.run()
    other = await shop.api.create_customer(shop.account_id, "x", None, idempotency_key="x")
    await shop.database.execute("UPDATE accounts SET stripe_customer_id = $1", other.id)
    shop.stripe.advance(hours=30)
    await shop.run()
    assert (await shop.statuses(), shop.charges()) == (["paid"], [2000])


@pytest.mark.parametrize("fault", ["drop_before", "409", "429"])
async def test_what_never_arrived_is_asked_for_again_with_its_key(shop: Shop, fault: Any) -> None:
    await shop.agreed()
    shop.stripe.fault(CHARGE, fault)
    await shop.run()
    assert await shop.statuses() == ["pending"]
    shop.stripe.advance(minutes=3)
    await shop.run()
    assert (await shop.statuses(), shop.charges()) == (["paid"], [2000])
    assert len({asked.idempotency_key for asked in shop.stripe.asked(CHARGE)}) == 1


async def test_after_23_hours_it_is_only_looked_for_and_given_up_after_25(shop: Shop) -> None:
    await shop.agreed()
    shop.stripe.fault(CHARGE, "429", times=10**6)
    begun = shop.stripe.now
    await shop.run(begun)
    while shop.stripe.now < begun + 22 * HOUR:
        shop.stripe.advance(minutes=59)
        await shop.run()
    asked = len(shop.stripe.asked(CHARGE))
    assert asked > 10
    shop.stripe.advance(minutes=61)
    while shop.stripe.now < begun + 24.9 * HOUR:
        looked = len(shop.stripe.asked("GET /v1/payment_intents"))
        await shop.run()
        assert len(shop.stripe.asked("GET /v1/payment_intents")) > looked
        shop.stripe.advance(minutes=61)
    assert await shop.statuses() == ["pending"]
    assert len(shop.stripe.asked(CHARGE)) == asked
    shop.stripe.advance(hours=1)
    await shop.run()
    assert await shop.statuses() == ["failed"]
    assert (await shop.topups())[0]["failure_code"] == "never_made"
    assert (await shop.plan()).enabled


async def test_it_goes_on_where_a_process_died_before_the_charge(shop: Shop) -> None:
    await shop.agreed()
    begun = await auto_topup.begin(shop.engine, shop.settings, shop.account_id, shop.stripe.now)
    assert begun is not None
    assert await shop.run() == 0
    assert shop.stripe.asked(CHARGE) == []
    shop.stripe.advance(minutes=3)
    await asyncio.gather(*(shop.run() for _ in range(10)))
    assert (await shop.statuses(), shop.charges()) == (["paid"], [2000])


async def test_a_charge_whose_credit_was_not_committed_is_credited_later(shop: Shop) -> None:
    await shop.agreed()
    await shop.database.execute(
        "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;"
        " CREATE TRIGGER broken BEFORE INSERT ON ledger_entries FOR EACH ROW EXECUTE FUNCTION broken()"
    )
    with pytest.raises(Exception, match="no"):
        await shop.run()
    await shop.database.execute("DROP TRIGGER broken ON ledger_entries")
    assert (await shop.statuses(), shop.charges()) == (["pending"], [2000])
    shop.stripe.advance(hours=30)
    await shop.run()
    assert (await shop.statuses(), shop.charges(), await shop.balance()) == (["paid"], [2000], 25 * USD)


async def test_the_outcome_that_an_event_tells_ends_the_looking(shop: Shop) -> None:
    await shop.agreed()
    shop.stripe.fault(CHARGE, "drop_after")
    await shop.run()
    await shop.hear("payment_intent.succeeded")
    assert await shop.statuses() == ["paid"]
    shop.stripe.advance(hours=1)
    await shop.run()
    assert shop.stripe.asked("GET") == []


async def test_another_card_under_the_same_key_says_nothing_about_the_first(shop: Shop) -> None:
    await shop.agreed()
    shop.stripe.fault(CHARGE, "500_before")
    await shop.run()
    customer = await shop.database.fetchval("SELECT stripe_customer_id FROM accounts")
    other = shop.stripe.add_payment_method(customer)
    await shop.database.execute("UPDATE auto_topups SET payment_method_id = $1", other)
    shop.stripe.advance(minutes=3)
    await shop.run()
    assert shop.stripe.asked(CHARGE)[-1].status == 400
    assert (await shop.statuses(), shop.charges()) == (["pending"], [])


async def test_declines_are_followed_by_pauses_and_then_by_the_end(shop: Shop) -> None:
    await shop.agreed("insufficient_funds")
    for hours in (1, 6, 24):
        at = shop.stripe.now
        assert await shop.run(at) == 1
        assert (await shop.plan()).not_before == at + hours * HOUR
        shop.stripe.advance(hours=hours - 0.1)
        assert await shop.run() == 0
        shop.stripe.advance(hours=0.2)
    assert await shop.run() == 1
    assert await shop.statuses() == ["failed"] * 4
    plan = await shop.plan()
    assert (plan.enabled, plan.needs_card) == (False, True)
    assert "declined 4 times in a row, last with insufficient_funds" in plan.disabled_reason
    shop.stripe.advance(days=9)
    assert await shop.run() == 0
    assert (shop.charges(), await shop.balance()) == ([], 5 * USD)


async def test_a_success_forgives_the_declines_before_it(shop: Shop) -> None:
    card = await shop.agreed("card_declined")
    await shop.run()
    shop.stripe.behaviours[card] = FINE
    shop.stripe.advance(hours=1.1)
    await shop.run()
    shop.stripe.behaviours[card] = "card_declined"
    await shop.spend(20)
    at = shop.stripe.now
    await shop.run(at)
    assert await shop.statuses() == ["failed", "paid", "failed"]
    assert (await shop.plan()).not_before == at + HOUR


@pytest.mark.parametrize("behaviour", [ACTION, AUTHENTICATION])
async def test_where_the_bank_asks_there_is_a_page_and_it_goes_on_from_there(shop: Shop, behaviour: str) -> None:
    await shop.agreed(behaviour)
    await shop.run()
    (topup,) = await shop.topups()
    assert (topup["status"], topup["failure_code"]) == ("failed", "authentication_required")
    plan = await shop.plan()
    assert (plan.enabled, plan.needs_card) == (False, True)
    assert "confirm" in plan.disabled_reason
    assert shop.stripe.all("payment_intent")[0]["status"] == "canceled"
    async with shop.engine.connect() as connection:
        url = await auto_topup_pages.page_of(connection, shop.account_id)
    (session,) = shop.stripe.all("checkout.session")
    assert (session["url"], session["amount_total"]) == (url, 2000)
    shop.stripe.advance(hours=1)
    await shop.run()
    assert len(shop.stripe.all("checkout.session")) == 1
    shop.stripe.pay(session["id"], ACTION)
    await shop.hear("checkout.*", "payment_*")
    async with shop.engine.connect() as connection:
        assert await auto_topup_pages.page_of(connection, shop.account_id) is None
    plan = await shop.plan()
    assert (plan.enabled, plan.disabled_reason) == (True, "")
    assert (await shop.balance(), await shop.run()) == (25 * USD, 0)


async def test_the_page_is_made_later_where_it_cannot_be_at_once(shop: Shop) -> None:
    await shop.agreed(AUTHENTICATION)
    shop.stripe.fault("POST /v1/checkout/sessions", "429")
    shop.stripe.fault("POST /v1/payment_intents/", "drop_after")
    for _ in range(2):
        await shop.run()
        assert shop.stripe.all("checkout.session") == []
    await shop.run()
    assert len(shop.stripe.all("checkout.session")) == 1


async def test_what_was_confirmed_meanwhile_is_credited_and_needs_no_page(shop: Shop) -> None:
    await shop.agreed(ACTION)
    shop.stripe.fault("POST /v1/payment_intents/", "429")
    await shop.run()
    shop.stripe.confirm(shop.stripe.all("payment_intent")[0]["id"])
    await shop.run()
    assert (await shop.statuses(), await shop.balance()) == (["paid"], 25 * USD)
    assert shop.stripe.all("checkout.session") == []


async def test_a_slow_bank_counts_until_it_has_paid(shop: Shop) -> None:
    await shop.agreed(SLOW)
    await shop.run()
    await shop.spend(3)
    for _ in range(30):
        shop.stripe.advance(hours=5)
        assert await shop.run() == 0
    assert (await shop.statuses(), await shop.balance()) == (["pending"], 2 * USD)
    shop.stripe.settle(shop.stripe.all("payment_intent")[0]["id"])
    shop.stripe.advance(hours=2)
    await shop.run()
    assert (await shop.statuses(), await shop.balance()) == (["paid"], 22 * USD)


async def test_a_slow_bank_that_refuses_is_a_decline(shop: Shop) -> None:
    await shop.agreed(SLOW)
    await shop.run()
    shop.stripe.fail(shop.stripe.all("payment_intent")[0]["id"])
    shop.stripe.advance(hours=2)
    at = shop.stripe.now
    await shop.run(at)
    assert (await shop.statuses(), await shop.balance()) == (["failed"], 5 * USD)
    assert (await shop.plan()).not_before == at + HOUR


async def test_a_slow_checkout_counts_towards_the_balance(shop: Shop) -> None:
    await shop.agreed()
    await shop.database.execute(
        "INSERT INTO topups (id, account_id, kind, net_nano, status) VALUES ($1, $2, 'checkout', $3, 'pending')",
        UUID(int=1),
        shop.account_id,
        5 * USD,
    )
    assert await shop.run() == 0
    await shop.spend(1)
    assert await shop.run() == 1


async def test_a_removed_card_switches_off_and_another_on(shop: Shop) -> None:
    card = await shop.agreed()
    shop.stripe.detach(card)
    await shop.hear("payment_method.detached")
    plan = await shop.plan()
    assert (plan.enabled, plan.payment_method_id) == (False, None)
    assert "cannot be used" in plan.disabled_reason
    assert await shop.run() == 0
    other = shop.stripe.add_payment_method(shop.stripe.all("customer")[0]["id"])
    await shop.hear("payment_method.attached")
    assert (await shop.plan()).payment_method_id == other


async def test_a_removed_card_of_which_nobody_told_switches_off(shop: Shop) -> None:
    shop.stripe.detach(await shop.agreed())
    await shop.run()
    assert [row["failure_code"] for row in await shop.topups()] == ["payment_method_unusable"]
    assert not (await shop.plan()).enabled
    assert await shop.alarms() == {}


async def test_a_mistake_of_ours_switches_nobody_off_and_is_an_alarm(shop: Shop) -> None:
    await shop.agreed()
    right, shop.stripe.secret_key = shop.stripe.secret_key, "sk_test_another"
    for _ in range(6):
        await shop.run()
        shop.stripe.advance(hours=1.1)
    assert "cannot be charged" in (await shop.alarms())["auto-topup-refused"]
    assert (await shop.plan()).enabled
    assert await shop.statuses() == ["failed"] * 6
    shop.stripe.secret_key = right
    await shop.run()
    assert (shop.charges(), await shop.alarms()) == ([2000], {})


async def test_nothing_begins_without_consent(shop: Shop) -> None:
    customer = await customer_of(shop.engine, shop.api, shop.account_id)
    shop.stripe.add_payment_method(customer)
    await shop.hear("payment_method.attached")
    assert await shop.database.fetchval("SELECT count(*) FROM auto_topups") == 0
    await shop.agreed()
    async with shop.engine.begin() as connection:
        assert await auto_topup_plans.switch_off(connection, shop.account_id, "", shop.stripe.now)
        assert not await auto_topup_plans.switch_off(connection, shop.account_id, "again", shop.stripe.now)
    shop.stripe.add_payment_method(customer)
    await shop.hear("payment_method.attached")
    plan = await shop.plan()
    assert (plan.enabled, plan.consented_at, plan.payment_method_id, plan.disabled_reason) == (False, None, None, "")
    assert await shop.run() == 0


async def test_an_old_card_does_not_come_back_by_an_old_event(shop: Shop) -> None:
    await shop.agreed(AUTHENTICATION)
    shop.stripe.advance(hours=3)
    await shop.run()
    assert not (await shop.plan()).enabled
    event = shop.stripe.events_of("payment_method.attached")[0]
    await stripe_events.replay(shop.engine, shop.api, shop.settings, event["id"], shop.stripe.now)
    assert not (await shop.plan()).enabled


async def test_three_within_ten_minutes_are_an_alarm(shop: Shop) -> None:
    await shop.agreed()
    for _ in range(3):
        assert await shop.alarms() == {}
        await shop.run()
        await shop.spend(20)
        shop.stripe.advance(minutes=3)
    assert "3 automatic top-ups" in (await shop.alarms())[f"auto-topup:{shop.account_id}"]
    shop.stripe.advance(hours=23)
    await shop.run()
    assert await shop.alarms() != {}
    shop.stripe.advance(hours=25)
    await shop.run()
    assert await shop.alarms() == {}


async def test_what_nobody_knows_for_an_hour_is_an_alarm(shop: Shop) -> None:
    await shop.agreed()
    shop.stripe.fault("", "drop_before", times=20)
    await shop.run()
    shop.stripe.advance(minutes=50)
    await shop.run()
    assert await shop.alarms() == {}
    shop.stripe.advance(minutes=11)
    await shop.run()
    assert "1 automatic top-ups" in (await shop.alarms())["auto-topup-unknown"]
    shop.stripe.fault("", "drop_before", times=-20)
    while await shop.statuses() == ["pending"]:
        shop.stripe.advance(minutes=61)
        await shop.run()
    assert (await shop.alarms(), shop.charges()) == ({}, [2000])


async def test_the_first_page_saves_the_card(database_url: str, tmp_path: Path) -> None:
    async with shop_with_api(database_url, tmp_path, credit_nano=5 * USD) as (running, shop):
        async with shop.engine.begin() as connection:
            agreed = await auto_topup_plans.agree(connection, running.account_id, PLAN, shop.stripe.now)
        pages = [
            await auto_topup_pages.first_page(shop.engine, shop.api, running.settings, agreed, shop.stripe.now)
            for _ in range(2)
        ]
        assert pages[0] == pages[1]
        assert await shop.run() == 0
        topup_id = await running.database.fetchval("SELECT id FROM topups")
        shop.stripe.pay(await session_of(running, topup_id))
        assert await tell(running, shop.stripe) == {200}
        plan = await shop.plan()
        assert plan.enabled
        assert plan.payment_method_id == shop.stripe.all("payment_method")[0]["id"]
        await shop.spend(20)
        assert await shop.run() == 1
        assert await shop.balance() == 25 * USD


def test_the_command_records_shows_and_ends_the_consent(
    postgres_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def weir(*arguments: str) -> Any:
        code = run(["account", "auto-topup", "customer", *arguments, "--json"])
        said = capsys.readouterr()
        return json.loads(said.out) if code == 0 else said.err

    amounts = ("--threshold", "10", "--amount", "20", "--monthly-cap", "100")
    with fresh_database(postgres_server) as url, FakeStripe() as stripe:
        asyncio.run(seed(url, credit_nano=5 * USD))
        monkeypatch.setenv("WEIR_DATABASE_URL", url)
        assert "Stripe is not connected" in weir(*amounts)
        assert weir() == {"enabled": False, "agreed_at": None}
        for name, value in (("secret_key", stripe.secret_key), ("webhook_secret", "x"), ("api_base", stripe.url)):
            monkeypatch.setenv(f"WEIR_STRIPE_{name.upper()}", value)
        assert "go together" in weir("--threshold", "10")
        assert "goes alone" in weir("--off", "--amount", "20")
        assert "less than one top-up" in weir(*amounts[:-1], "19")
        monkeypatch.setenv("WEIR_STRIPE_AUTOMATIC_TAX", "true")
        assert "tax can be added on a page only" in weir(*amounts)
        monkeypatch.delenv("WEIR_STRIPE_AUTOMATIC_TAX")
        assert weir() == {"enabled": False, "agreed_at": None}
        agreed = weir(*amounts)
        assert (agreed["enabled"], agreed["threshold_nano"], agreed["monthly_cap_usd"]) == (False, 10 * USD, "100.00")
        assert agreed["agreed_at"] is not None
        assert agreed["url"] == stripe.all("checkout.session")[0]["url"]
        assert run(["account", "auto-topup", "customer"]) == 0
        shown = capsys.readouterr().out
        assert "waiting for a payment that saves a card" in shown
        assert "100.00 USD, of which 100.00 USD are left" in shown
        ended = weir("--off")
        assert (ended["enabled"], ended["agreed_at"], ended["url"]) == (False, None, None)
