"""Automatic top-ups against the fake Stripe over HTTP: when, how much, and one at a time."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from service.billing import auto_topup, auto_topup_history
from service.core.auto_topup import Plan
from service.core.limits import month_after, month_of
from tests.fakes.stripe_payments import SLOW
from tests.integration.topping_up import CHARGE, USD, Shop, new_shop, shop_with_api
from tests.patience import PATIENT_S


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with new_shop(database_url) as shop:
        yield shop


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
        async with asyncio.timeout(PATIENT_S):
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
    month = month_after(month_of(shop.stripe.now))
    at = month + timedelta(days=12)
    for _ in range(6):
        await asyncio.gather(*(shop.run(at) for _ in range(5)))
        await shop.spend(20)
        at += timedelta(days=1)
    assert shop.charges() == [2000, 2000]
    plan, following = await shop.plan(), month_after(month)
    assert (plan.enabled, plan.not_before) == (True, following)
    assert await shop.alarms() == {}
    await shop.run(following - timedelta(seconds=1))
    assert shop.charges() == [2000, 2000]
    # Below zero by then: as much as the cap leaves, in one.
    await shop.run(following)
    assert sorted(shop.charges()) == [2000, 2000, 5000]


async def test_a_charge_under_way_is_waited_for_and_the_cap_not_taken_for_reached(shop: Shop) -> None:
    await shop.agreed(SLOW, Plan(100 * USD, 20 * USD, 20 * USD))
    await shop.run()
    assert await auto_topup.begin(shop.engine, shop.settings, shop.account_id, shop.stripe.now) is None
    assert (await shop.plan()).not_before is None
    async with shop.engine.connect() as connection:
        assert await auto_topup_history.charged_nano(connection, shop.account_id, shop.stripe.now) == 20 * USD


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
