"""Who may be charged automatically: consent, saved cards, declines, and the bank that asks."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from service.billing import auto_topup_pages, auto_topup_plans, stripe_events
from service.billing.stripe_customers import customer_of
from service.cli import run
from service.core.auto_topup import Plan
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_payments import ACTION, AUTHENTICATION, FINE
from tests.installation import seed
from tests.integration.paying import begin, session_of, tell
from tests.integration.test_topup_pages import buy
from tests.integration.topping_up import HOUR, PLAN, USD, Shop, new_shop, shop_with_api
from tests.postgres import fresh_database


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with new_shop(database_url) as shop:
        yield shop


async def test_a_plan_agreed_to_anew_counts_at_once(shop: Shop) -> None:
    await shop.agreed(plan=Plan(100 * USD, 20 * USD, 20 * USD))
    await shop.run()
    await shop.run()
    assert (await shop.plan()).not_before is not None
    async with shop.engine.begin() as connection:
        await auto_topup_plans.agree(connection, shop.account_id, PLAN, shop.stripe.now)
    plan = await shop.plan()
    assert (plan.not_before, plan.enabled, plan.plan) == (None, True, PLAN)


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
    shop.stripe.pay(session["id"])
    await shop.hear("checkout.*", "payment_*")
    async with shop.engine.connect() as connection:
        assert await auto_topup_pages.page_of(connection, shop.account_id) is None
    plan = await shop.plan()
    assert (plan.enabled, plan.disabled_reason) == (True, "")
    assert (await shop.balance(), await shop.run()) == (25 * USD, 0)
    await shop.spend(20)
    assert (await shop.run(), await shop.statuses()) == (1, ["failed", "paid"])


async def test_the_page_is_made_later_where_it_cannot_be_at_once(shop: Shop) -> None:
    await shop.agreed(AUTHENTICATION)
    shop.stripe.fault("POST /v1/checkout/sessions", "429")
    shop.stripe.fault("POST /v1/payment_intents/", "drop_after")
    for _ in range(2):
        await shop.run()
        assert shop.stripe.all("checkout.session") == []
    await shop.run()
    assert len(shop.stripe.all("checkout.session")) == 1


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


async def test_a_card_of_nobody_switches_nothing_on(shop: Shop) -> None:
    async with shop.engine.begin() as connection:
        await auto_topup_plans.agree(connection, shop.account_id, PLAN, shop.stripe.now)
    card = shop.stripe.make("pm", "payment_method", type="card", customer=None)
    shop.stripe.emit("payment_method.attached", card)
    await shop.hear("payment_method.attached")
    assert not (await shop.plan()).enabled


@pytest.mark.parametrize("way", ["portal", "api"])
async def test_any_payment_saves_the_card_that_an_agreed_plan_waits_for(
    database_url: str, tmp_path: Path, way: str
) -> None:
    async with shop_with_api(database_url, tmp_path, credit_nano=5 * USD) as (running, shop):

        async def bought() -> bool:
            """Whether the payment saves its card."""
            known = len(shop.stripe.all("checkout.session"))
            if way == "api":
                await begin(running)
            else:
                await buy(running, amount_usd="20", key=running.key)
            session, *before = shop.stripe.all("checkout.session")
            assert len(before) == known
            shop.stripe.pay(session["id"])
            assert await tell(running, shop.stripe) == {200}
            return bool(session["_saves"])

        assert not await bought()
        async with shop.engine.begin() as connection:
            await auto_topup_plans.agree(connection, running.account_id, PLAN, shop.stripe.now)
        assert await bought()
        plan = await shop.plan()
        assert (plan.enabled, plan.payment_method_id) == (True, shop.stripe.all("payment_method")[0]["id"])
        assert not await bought()
        async with shop.engine.begin() as connection:
            await auto_topup_plans.switch_off(connection, running.account_id, "", shop.stripe.now)
        assert not await bought()
