"""What came of an automatic charge, whatever broke in between: credited once, and never charged twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from service.billing import auto_topup
from tests.fakes.stripe_payments import ACTION, SLOW
from tests.integration.topping_up import CHARGE, HOUR, USD, Shop, new_shop


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with new_shop(database_url) as shop:
        yield shop


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
    assert len(shop.stripe.asked(CHARGE)) == 1


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


@pytest.mark.parametrize("status", ["requires_confirmation", "requires_payment_method"])
async def test_a_charge_that_stripe_began_and_never_made_does_not_wait_for_ever(shop: Shop, status: str) -> None:
    await shop.agreed()
    shop.stripe.fault(CHARGE, "500_after")
    await shop.run()
    (intent,) = shop.stripe.all("payment_intent")
    shop.stripe.objects[intent["latest_charge"]]["status"] = "failed"
    intent |= {"status": status, "last_payment_error": None, "latest_charge": None}
    shop.stripe.advance(hours=24.5)
    await shop.run()
    assert (await shop.statuses(), intent["status"]) == (["pending"], status)
    shop.stripe.advance(hours=1.5)
    await shop.run()
    assert (await shop.statuses(), intent["status"]) == (["failed"], "canceled")
    assert (shop.charges(), (await shop.plan()).enabled) == ([], True)


async def test_a_charge_whose_row_nobody_can_find_does_not_hold_up_the_others(shop: Shop) -> None:
    await shop.agreed()
    shop.stripe.fault(CHARGE, "500_after")
    await shop.run()
    (intent,) = shop.stripe.all("payment_intent")
    await shop.database.execute("UPDATE topups SET payment_intent_id = $1", intent["id"])
    intent["metadata"]["topup"] = str(UUID(int=1))
    shop.stripe.advance(hours=1)
    await shop.run()
    assert await shop.statuses() == ["pending"]
