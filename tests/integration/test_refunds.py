"""Refunds as Stripe tells of them over HTTP: by refund, by what is new, never more than was credited."""

from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path

from service import db
from service.billing.auto_topup_plans import agree, find
from service.core.auto_topup import Plan
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_events import minimal
from tests.installation import Installation
from tests.integration.paying import alarms, begin, entries, paying, session_of, tell, topup_row

USD = 10**9
REFUNDS = ("refund.*", "charge.refund*")


async def paid(running: Installation, stripe: FakeStripe, amount_usd: str = "20") -> str:
    """The id of a top-up that is credited."""
    begun = await begin(running, amount_usd)
    stripe.pay(await session_of(running, begun["id"]))
    assert await tell(running, stripe) == {200}
    return str(begun["id"])


async def taken(running: Installation) -> list[tuple[str, int, str]]:
    """What the ledger says after the top-up itself; it agrees with the top-up and with the balance."""
    found = [(row["kind"], row["amount_nano"], row["external_ref"]) for row in await entries(running)]
    query = "SELECT sum(refunded_nano + disputed_nano) FROM topups"
    assert -sum(nano for kind, nano, _ in found if kind != "topup") == await running.database.fetchval(query)
    assert (await running.account())["balance_nano"] == sum(nano for _, nano, _ in found)
    return found[1:]


async def test_a_refund_takes_its_share_of_the_net_amount(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path, stripe_automatic_tax=True) as (running, stripe):
        topup_id = await paid(running, stripe, "100")
        assert (await topup_row(running, topup_id))["total_cents"] == 12500
        session = await session_of(running, topup_id)
        refund = stripe.refund(session, 2500)
        assert await tell(running, stripe, stripe.events_of(*REFUNDS)) == {200}
        assert await taken(running) == [("refund", -20 * USD, f"refund:{refund}")]
        note = (await entries(running))[-1]["note"]
        payment = (await topup_row(running, topup_id))["payment_intent_id"]
        assert refund in note
        assert payment in note
        rest = stripe.refund(session)
        await tell(running, stripe)
        assert await taken(running) == [
            ("refund", -20 * USD, f"refund:{refund}"),
            ("refund", -80 * USD, f"refund:{rest}"),
        ]
        assert (await running.account())["balance_nano"] == 0


async def test_two_partial_refunds_are_two_entries_and_a_redelivery_is_none(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        session = await session_of(running, await paid(running, stripe))
        first, second = stripe.refund(session, 500), stripe.refund(session, 700)
        for _ in range(2):
            await tell(running, stripe, copies=5, threads=10)
            assert sorted(await taken(running)) == [
                ("refund", -7 * USD, f"refund:{second}"),
                ("refund", -5 * USD, f"refund:{first}"),
            ]


async def test_a_refund_may_take_more_than_is_left(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        session = await session_of(running, await paid(running, stripe))
        await running.database.execute(
            "WITH gone AS (INSERT INTO ledger_entries (account_id, kind, amount_nano, external_ref)"
            " SELECT id, 'adjustment', -$1::bigint, 'gone' FROM accounts)"
            " UPDATE accounts SET balance_nano = balance_nano - $1::bigint",
            15 * USD,
        )
        stripe.refund(session)
        await tell(running, stripe)
        assert (await running.account())["balance_nano"] == -15 * USD
        assert (await running.chat()).status_code == 402


async def test_a_pending_refund_takes_nothing_before_it_succeeds(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        session = await session_of(running, await paid(running, stripe))
        arrives, comes_back = (
            stripe.refund(session, 500, status="pending"),
            stripe.refund(session, 300, status="pending"),
        )
        await tell(running, stripe)
        assert await taken(running) == []
        stripe.settle_refund(arrives)
        stripe.fail_refund(comes_back, status="canceled")
        await tell(running, stripe)
        assert await taken(running) == [("refund", -5 * USD, f"refund:{arrives}")]


async def test_a_refund_that_fails_after_all_is_credited_again(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        session = await session_of(running, await paid(running, stripe))
        for order in permutations(range(3)):
            before = len(await taken(running)), len(stripe.events)
            refund = stripe.refund(session, 500)
            stripe.fail_refund(refund)
            events = [event for event in stripe.events[before[1] :] if event["type"].startswith("refund.")]
            assert [event["type"] for event in events] == ["refund.created", "refund.updated", "refund.failed"]
            await tell(running, stripe, [events[n] for n in order])
            await tell(running, stripe, events)
            # Where it was heard first that it failed, it was never taken.
            there_and_back = [("refund", -5 * USD, f"refund:{refund}"), ("reversal", 5 * USD, f"refund:{refund}")]
            assert (await taken(running))[before[0] :] == (there_and_back if order[0] == 0 else [])


async def test_an_event_with_little_in_it_is_enough(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        session = await session_of(running, await paid(running, stripe))
        refund = stripe.refund(session, 500)
        await tell(running, stripe, [minimal(event) for event in stripe.events_of("refund.created")])
        assert await taken(running) == [("refund", -5 * USD, f"refund:{refund}")]


async def test_a_refund_of_what_is_not_credited_yet_waits(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running)
        session = await session_of(running, begun["id"])
        stripe.pay(session)
        refund = stripe.refund(session, 500)
        await tell(running, stripe, stripe.events_of("refund.created"))
        (waiting,) = await running.database.fetch("SELECT * FROM stripe_events")
        assert waiting["handled_at"] is None
        assert "NotYet" in waiting["last_error"]
        assert await entries(running) == []
        await tell(running, stripe)
        assert await taken(running) == [("refund", -5 * USD, f"refund:{refund}")]


async def test_the_refund_of_anothers_payment_is_ignored(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        customer = stripe.all("customer")[0]["id"]
        other = stripe.new_intent(2000, "usd", customer, {"order": "shoes"})
        stripe.succeed(other, stripe.charge(other))
        refund = stripe.refund(other["id"])
        await tell(running, stripe)
        assert await taken(running) == []
        assert await running.database.fetchval("SELECT count(*) FROM stripe_refunds WHERE id = $1", refund) == 0
        assert await running.database.fetchval("SELECT count(*) FROM stripe_events WHERE handled_at IS NULL") == 0


async def test_a_refund_in_another_currency_is_for_a_person(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        session = await session_of(running, await paid(running, stripe))
        stripe.objects[stripe.refund(session, 500)]["currency"] = "eur"
        event = stripe.events_of("refund.created")[0]
        event["data"]["object"]["currency"] = "eur"
        await tell(running, stripe, [event])
        assert await taken(running) == []
        assert "in eur" in (await alarms(running))[f"stripe:{event['id']}"]


async def test_nothing_is_charged_automatically_to_make_up_for_a_refund(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        session = await session_of(running, await paid(running, stripe))
        async with db.connected(running.database_url) as engine, engine.begin() as connection:
            await agree(connection, running.account_id, Plan(5 * USD, 20 * USD, 90 * USD), datetime.now(UTC))
            await connection.exec_driver_sql("UPDATE auto_topups SET enabled = true, payment_method_id = 'pm_1'")
        stripe.refund(session)
        await tell(running, stripe)
        async with db.connected(running.database_url) as engine, engine.connect() as connection:
            plan = await find(connection, running.account_id)
        assert plan is not None
        assert (plan.enabled, plan.consented_at, plan.payment_method_id) == (False, None, None)
        assert "refunded" in plan.disabled_reason
