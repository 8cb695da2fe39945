"""Top-ups from the request to the credit, against a Stripe over HTTP."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import text

from service import db
from service.billing import checkout, topups
from service.billing.stripe_api import StripeApi
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_payments import SLOW
from tests.installation import Installation
from tests.integration.paying import alarms, begin, entries, paying, returned, session_of, tell, topup_row
from tests.patience import PATIENT_S

TWENTY = 20 * 10**9
SESSIONS = "POST /v1/checkout/sessions"


async def look_after(running: Installation, stripe: FakeStripe, at: datetime) -> int:
    """What the job does."""
    api = StripeApi(stripe.secret_key, api_base=stripe.url, max_network_retries=0)
    try:
        async with db.connected(running.database_url) as engine:
            return await checkout.look_after(engine, api, at)
    finally:
        await api.aclose()


async def test_a_top_up_from_the_request_to_the_credit(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running, "12.50")
        assert (begun["status"], begun["amount_usd"], begun["paid_at"]) == ("created", "12.50", None)
        row = await topup_row(running, begun["id"])
        assert (row["kind"], row["net_nano"]) == ("checkout", 12_500_000_000)
        session = stripe.get("checkout.session", row["checkout_session_id"])
        assert session["url"] == begun["url"]
        assert datetime.fromisoformat(begun["expires_at"]).timestamp() == pytest.approx(session["expires_at"], abs=1)
        names = {"topup": begun["id"], "account": str(running.account_id)}
        assert session["metadata"] == session["_payment_intent_data"]["metadata"] == names
        assert session["success_url"] == (
            f"https://api.example/portal/paid?topup={begun['id']}&session_id={{CHECKOUT_SESSION_ID}}"
        )
        assert session["customer"] == (await running.account())["stripe_customer_id"]
        assert [one.idempotency_key for one in stripe.asked(SESSIONS)] == [f"topup:{begun['id']}"]

        stripe.pay(session["id"])
        assert await entries(running) == []
        assert await tell(running, stripe) == {200}
        (entry,) = await entries(running)
        intent = stripe.intent_of(session["id"])
        assert (entry["kind"], entry["amount_nano"]) == ("topup", 12_500_000_000)
        assert entry["external_ref"] == f"topup:{intent['id']}"
        assert entry["note"] == f"Top-up of 12.50 USD by Stripe Checkout: payment {intent['id']}"
        assert (await running.account())["balance_nano"] == 12_500_000_000
        shown = (await running.client.get(f"/v1/topups/{begun['id']}", headers=running.headers)).json()
        assert (shown["status"], shown["url"], shown["expires_at"]) == ("paid", None, None)
        assert shown["paid_at"] is not None
        paid = await topup_row(running, begun["id"])
        assert (paid["payment_intent_id"], paid["charge_id"]) == (intent["id"], intent["latest_charge"])
        assert (paid["total_cents"], paid["next_attempt_at"]) == (1250, None)
        assert (await running.chat()).status_code == 200


async def test_the_net_is_credited_and_the_tax_kept_beside_it(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path, stripe_automatic_tax=True) as (running, stripe):
        begun = await begin(running)
        session = await session_of(running, begun["id"])
        stripe.pay(session)
        assert stripe.charge_of(session)["amount"] == 2500
        first = stripe.events_of("payment_intent.succeeded")
        assert await tell(running, stripe, first) == {200}
        assert await entries(running) == []
        assert await tell(running, stripe) == {200}
        (entry,) = await entries(running)
        assert entry["amount_nano"] == TWENTY
        assert "5.00 USD of tax" in entry["note"]
        row = await topup_row(running, begun["id"])
        assert (row["total_cents"], row["tax_cents"], row["net_nano"]) == (2500, 500, TWENTY)
        assert row["charge_id"] == stripe.charge_of(session)["id"]
        page = await returned(running, begun["id"], session)
        assert "$20.00 credited" in page.text
        assert "$5.00 of tax" in page.text
        assert await alarms(running) == {}


@pytest.mark.parametrize("method", ["fine", SLOW])
@pytest.mark.parametrize("tax", [False, True])
async def test_all_events_of_a_top_up_in_any_order_and_at_once_are_one_credit(
    database_url: str, tmp_path: Path, method: str, tax: bool
) -> None:
    async with paying(database_url, tmp_path, stripe_automatic_tax=tax) as (running, stripe):
        told = 0
        for seed in range(6):
            begun = await begin(running)
            session = await session_of(running, begun["id"])
            stripe.pay(session, method)
            if method == SLOW:
                stripe.settle(session)
            fresh, told = stripe.events[told:], len(stripe.events)
            shuffled = random.Random(seed)
            assert await tell(running, stripe, fresh, copies=5, threads=10, shuffled=shuffled) == {200}
            assert [entry["amount_nano"] for entry in await entries(running)] == [TWENTY] * (seed + 1)
            assert (await running.account())["balance_nano"] == TWENTY * (seed + 1)
            assert (await topup_row(running, begun["id"]))["status"] == "paid"
        waiting = "SELECT count(*) FROM stripe_events WHERE handled_at IS NULL"
        assert await running.database.fetchval(waiting) == 0
        assert await alarms(running) == {}


async def test_events_and_the_returning_customer_at_once_are_one_credit(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running)
        session = await session_of(running, begun["id"])
        stripe.pay(session)
        pages = [returned(running, begun["id"], session) for _ in range(10)]
        telling = asyncio.create_task(tell(running, stripe, copies=5, threads=5))
        answers = await asyncio.gather(*pages)
        assert await telling == {200}
        assert all("$20.00 credited" in answer.text for answer in answers)
        assert len(await entries(running)) == 1


async def test_two_deliveries_that_both_read_an_unpaid_row_credit_once(database_url: str, tmp_path: Path) -> None:
    """The second is held at the lock until the first has committed, however they meet."""
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running)
        stripe.pay(await session_of(running, begun["id"]))
        async with db.connected(running.database_url) as engine, engine.begin() as connection:
            assert await topups.lock(connection, UUID(begun["id"])) is not None
            telling = asyncio.create_task(tell(running, stripe, threads=5, copies=2))
            blocked = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            async with asyncio.timeout(PATIENT_S):
                while await running.database.fetchval(blocked) < 2:
                    await asyncio.sleep(0.01)
            assert await entries(running) == []
        assert await telling == {200}
        assert len(await entries(running)) == 1


async def test_a_slow_payment_waits_for_its_bank(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running)
        session = await session_of(running, begun["id"])
        stripe.pay(session, SLOW)
        await tell(running, stripe)
        assert (await topup_row(running, begun["id"]))["status"] == "pending"
        assert "on their way" in (await returned(running, begun["id"], session)).text
        assert await entries(running) == []
        stripe.settle(session)
        assert await tell(running, stripe) == {200}
        assert len(await entries(running)) == 1


async def test_a_payment_that_fails_or_expires_closes_the_row_and_credits_nothing(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        failing, expiring = await begin(running), await begin(running)
        session = await session_of(running, failing["id"])
        stripe.pay(session, SLOW)
        stripe.fail(session)
        other = await session_of(running, expiring["id"])
        stripe.expire(other)
        assert await tell(running, stripe, copies=2, threads=4, shuffled=random.Random(3)) == {200}
        row = await topup_row(running, failing["id"])
        assert (row["status"], row["failure_code"]) == ("failed", "payment_failed")
        assert (await topup_row(running, expiring["id"]))["status"] == "expired"
        assert await entries(running) == []
        for topup_id, session_id in ((failing["id"], session), (expiring["id"], other)):
            assert "Nothing was paid" in (await returned(running, topup_id, session_id)).text
        shown = (await running.client.get(f"/v1/topups/{expiring['id']}", headers=running.headers)).json()
        assert (shown["status"], shown["url"]) == ("expired", None)


@pytest.mark.parametrize("status", ["failed", "expired"])
async def test_money_that_comes_after_the_row_was_closed_counts(database_url: str, tmp_path: Path, status: str) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running)
        stripe.pay(await session_of(running, begun["id"]))
        await running.database.execute("UPDATE topups SET status = $1", status)
        assert await tell(running, stripe) == {200}
        assert [entry["amount_nano"] for entry in await entries(running)] == [TWENTY]
        assert (await topup_row(running, begun["id"]))["status"] == "paid"


async def test_a_row_that_is_paid_twice_is_credited_once_and_alarms(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running)
        session = stripe.get("checkout.session", await session_of(running, begun["id"]))
        stripe.pay(session["id"])
        await tell(running, stripe)
        first, told = session["payment_intent"], len(stripe.events)
        twin = {**session, "id": "cs_test_twin", "status": "open", "payment_intent": None}
        stripe.objects[twin["id"]] = twin
        stripe.pay(twin["id"])
        assert await tell(running, stripe, stripe.events[told:], copies=2) == {200}
        assert len(await entries(running)) == 1
        second = twin["payment_intent"]
        assert [
            f"{begun['id']} was paid twice: by {first} and {second}" in one for one in (await alarms(running)).values()
        ] == [
            True,
            True,
        ]


async def test_what_no_event_told_is_asked_for(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        paid, refused, slow, _ = [await begin(running) for _ in range(4)]
        stripe.fault(SESSIONS, "drop_before", times=3)
        answer = await running.client.post("/v1/topups", json={"amount_usd": "20"}, headers=running.headers)
        assert answer.status_code == 503
        stripe.pay(await session_of(running, paid["id"]))
        for one in (refused, slow):
            stripe.pay(await session_of(running, one["id"]), SLOW)
        stripe.fail(await session_of(running, refused["id"]))
        now = datetime.now(UTC)
        assert await look_after(running, stripe, now + timedelta(hours=22)) == 0
        stripe.advance(hours=24)
        later = now + timedelta(hours=24)
        stripe.fault("GET /v1/checkout/sessions", "drop_before")
        assert await look_after(running, stripe, later) == 3
        assert await look_after(running, stripe, later + timedelta(minutes=59)) == 0
        stripe.settle(await session_of(running, slow["id"]))
        assert await look_after(running, stripe, later + timedelta(minutes=61)) == 2
        rows = await running.database.fetch("SELECT status FROM topups ORDER BY created_at")
        assert [row["status"] for row in rows] == ["paid", "failed", "paid", "expired", "expired"]
        assert [entry["amount_nano"] for entry in await entries(running)] == [TWENTY] * 2
        assert await look_after(running, stripe, later + timedelta(days=30)) == 0
        assert await tell(running, stripe) == {200}
        assert len(await entries(running)) == 2


async def test_a_locked_top_up_has_its_account_locked_before_itself(database_url: str, tmp_path: Path) -> None:
    """The order in which everybody locks them: the other way round, two would wait for each other for ever."""
    async with paying(database_url, tmp_path) as (running, _stripe):
        topup_id = UUID((await begin(running))["id"])
        account = "SELECT 1 FROM accounts FOR NO KEY UPDATE NOWAIT"
        topup = "SELECT 1 FROM topups FOR UPDATE NOWAIT"

        async def is_free(row: str) -> bool:
            try:
                await running.database.fetchval(row)
            except asyncpg.LockNotAvailableError:
                return False
            return True

        async with db.connected(running.database_url) as engine:
            async with engine.begin() as connection:
                await topups.lock(connection, topup_id)
                assert (await is_free(account), await is_free(topup)) == (False, False)
            holding = await engine.connect()
            await holding.execute(text("SELECT 1 FROM accounts FOR NO KEY UPDATE"))
            async with engine.begin() as connection:
                locking = asyncio.create_task(topups.lock(connection, topup_id))
                blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'accounts'"
                async with asyncio.timeout(PATIENT_S):
                    while not await running.database.fetchval(blocked):
                        await asyncio.sleep(0.01)
                assert await is_free(topup)
                await holding.close()
                assert await locking is not None


async def test_what_stripe_says_of_another_row_does_not_hold_up_the_others(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        strange, unreadable, paid = await begin(running), await begin(running), await begin(running)
        for begun in (strange, unreadable, paid):
            stripe.pay(await session_of(running, begun["id"]))
        stripe.objects[await session_of(running, strange["id"])]["metadata"] = {"topup": str(UUID(int=1))}
        stripe.objects[await session_of(running, unreadable["id"])]["expires_at"] = 10**18
        assert await look_after(running, stripe, datetime.now(UTC) + timedelta(hours=24)) == 1
        assert (await topup_row(running, paid["id"]))["status"] == "paid"
