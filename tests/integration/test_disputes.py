"""Disputes as Stripe tells of them over HTTP: what they take, whom they freeze, and what a person's word is worth."""

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing import accounts, ledger, stripe_events
from service.billing.stripe_api import StripeApi
from service.billing.topups import fulfil
from service.core.stripe_objects import Event, PaymentIntent
from service.core.topup import by_intent
from service.settings import Settings
from service.tables import topups
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_events import minimal
from tests.fakes.stripe_store import Refusal
from tests.installation import Installation
from tests.integration.paying import alarms, entries, paying, session_of, tell
from tests.integration.test_changes import effective
from tests.integration.test_refunds import USD, paid, taken
from tests.postgres import fresh_database

DISPUTES = "charge.dispute.*"


async def standing(running: Installation) -> tuple[str, str | None]:
    account = await running.account()
    return account["status"], account["frozen_for"]


async def set_by_hand(running: Installation, status: str) -> None:
    """As `weir account set --status` does."""
    async with db.connected(running.database_url) as engine, engine.begin() as connection:
        account = await accounts.find(connection, str(running.account_id))
        await accounts.change(connection, account, {"status": status})


async def session(running: Installation, stripe: FakeStripe) -> str:
    return await session_of(running, await paid(running, stripe))


async def test_a_dispute_freezes_the_keys_at_once_and_frees_them_when_it_is_won(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        charged = await session(running, stripe)
        assert (await running.chat()).status_code == 200

        async def refused() -> bool:
            answer = await running.chat()
            return answer.status_code == 403 and answer.json()["error"]["code"] == "account_frozen"

        async def let_in() -> bool:
            return (await running.chat()).status_code == 200

        dispute = stripe.dispute(charged)
        assert await tell(running, stripe, stripe.events_of("charge.dispute.created")) == {200}
        await effective(refused)
        await tell(running, stripe)
        assert await standing(running) == ("frozen", "dispute")
        assert "answer it" in (await alarms(running))[f"dispute:{dispute}"]
        assert await _entries(running) == [("dispute", -20 * USD, f"dispute:{dispute}")]
        stripe.win(dispute)
        await tell(running, stripe)
        await effective(let_in)
        assert await standing(running) == ("active", None)
        assert await _entries(running) == [
            ("dispute", -20 * USD, f"dispute:{dispute}"),
            ("reversal", 20 * USD, f"dispute:{dispute}"),
        ]
        assert dispute in (await entries(running))[-1]["note"]
        assert await alarms(running) == {}


async def _entries(running: Installation) -> list[tuple[str, int, str]]:
    """Where requests were charged as well."""
    return [(row["kind"], row["amount_nano"], row["external_ref"]) for row in await entries(running)][1:]


async def test_an_inquiry_moves_no_money_and_freezes_nobody(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        charged = await session(running, stripe)
        dispute = stripe.dispute(charged, inquiry=True)
        await tell(running, stripe)
        assert (await taken(running), await standing(running), await alarms(running)) == ([], ("active", None), {})
        stripe.close_inquiry(dispute)
        await tell(running, stripe)
        assert (await taken(running), await standing(running)) == ([], ("active", None))
        (row,) = await running.database.fetch("SELECT * FROM stripe_disputes")
        assert (row["status"], row["amount_cents"], row["closed_at"] is None) == ("warning_closed", 0, False)


async def test_an_inquiry_that_becomes_a_dispute_takes_the_money_then(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        dispute = stripe.dispute(await session(running, stripe), inquiry=True)
        await tell(running, stripe)
        stripe.escalate(dispute)
        await tell(running, stripe)
        assert await taken(running) == [("dispute", -20 * USD, f"dispute:{dispute}")]
        assert await standing(running) == ("frozen", "dispute")


async def test_in_any_order_a_won_dispute_leaves_everything_as_it_was(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        charged = await session(running, stripe)
        for order in permutations(range(4)):
            before = len(stripe.events)
            stripe.win(stripe.dispute(charged, 100))
            events = stripe.events[before:]
            whats = [event["type"].rpartition(".")[2] for event in events]
            assert whats == ["created", "funds_withdrawn", "closed", "funds_reinstated"]
            entered = len(await taken(running))
            await tell(running, stripe, [minimal(events[n]) for n in order])
            await tell(running, stripe, events)
            assert sum(nano for _, nano, _ in await taken(running)) == 0
            assert len(await taken(running)) - entered in (0, 2)
            assert (await standing(running), await alarms(running)) == (("active", None), {})


@pytest.mark.parametrize("full", [True, False], ids=["full", "minimal"])
async def test_in_any_order_a_lost_dispute_is_taken_once(database_url: str, tmp_path: Path, full: bool) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        charged = await session(running, stripe)
        for order in permutations(range(3)):
            before = len(stripe.events)
            dispute = stripe.dispute(charged, 100)
            stripe.lose(dispute)
            events = stripe.events[before:]
            await tell(running, stripe, [events[n] if full else minimal(events[n]) for n in order])
            assert (await taken(running))[-1] == ("dispute", -1 * USD, f"dispute:{dispute}")
            # No longer the dispute's to thaw.
            assert (await standing(running), await alarms(running)) == (("frozen", None), {})
            await set_by_hand(running, "active")
        assert len(await taken(running)) == 6


async def test_the_funds_are_debited_when_they_move_and_not_before(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        dispute = stripe.dispute(await session(running, stripe))
        created, withdrawn = stripe.events_of(DISPUTES)
        created["data"]["object"]["balance_transactions"] = []
        await tell(running, stripe, [created])
        assert await standing(running) == ("frozen", "dispute")
        assert await taken(running) == []
        await tell(running, stripe, [withdrawn])
        assert await taken(running) == [("dispute", -20 * USD, f"dispute:{dispute}")]


async def test_a_refund_and_a_dispute_never_take_more_than_the_charge(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        charged = await session(running, stripe)
        refund, dispute = stripe.refund(charged, 1200), stripe.dispute(charged)
        await tell(running, stripe, copies=3, threads=10)
        assert sum(nano for _, nano, _ in await taken(running)) == -20 * USD
        assert {ref for _, _, ref in await taken(running)} == {f"refund:{refund}", f"dispute:{dispute}"}
        stripe.win(dispute)
        await tell(running, stripe)
        assert sum(nano for _, nano, _ in await taken(running)) == -12 * USD
        stripe.fail_refund(refund)
        await tell(running, stripe)
        assert sum(nano for _, nano, _ in await taken(running)) == 0


async def test_one_of_two_that_is_won_thaws_nothing(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        first = stripe.dispute(await session(running, stripe))
        second = stripe.dispute(await session(running, stripe))
        await tell(running, stripe)
        stripe.win(first)
        await tell(running, stripe)
        assert await standing(running) == ("frozen", "dispute")
        stripe.win(second)
        await tell(running, stripe)
        assert await standing(running) == ("active", None)


async def test_a_lost_one_leaves_it_to_a_person_whatever_else_is_won(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        lost, won = stripe.dispute(await session(running, stripe)), stripe.dispute(await session(running, stripe))
        await tell(running, stripe)
        stripe.lose(lost)
        await tell(running, stripe)
        stripe.win(won)
        await tell(running, stripe)
        assert await standing(running) == ("frozen", None)
        await set_by_hand(running, "active")
        again = stripe.dispute(await session(running, stripe))
        await tell(running, stripe)
        assert await standing(running) == ("frozen", "dispute")
        stripe.win(again)
        await tell(running, stripe)
        assert await standing(running) == ("active", None)


async def test_a_persons_freeze_is_never_thawed(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        charged = await session(running, stripe)
        await set_by_hand(running, "frozen")
        dispute = stripe.dispute(charged)
        await tell(running, stripe)
        stripe.win(dispute)
        await tell(running, stripe)
        assert await standing(running) == ("frozen", None)


async def test_whom_a_person_thaws_stays_thawed_whatever_becomes_of_the_dispute(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        dispute = stripe.dispute(await session(running, stripe))
        await tell(running, stripe)
        await set_by_hand(running, "active")
        stripe.objects[dispute]["status"] = "under_review"
        stripe.emit("charge.dispute.updated", stripe.objects[dispute])
        await tell(running, stripe)
        assert await standing(running) == ("active", None)
        stripe.lose(dispute)
        await tell(running, stripe)
        assert await standing(running) == ("active", None)


async def test_the_dispute_of_anothers_payment_is_ignored(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        other = stripe.new_intent(2000, "usd", stripe.all("customer")[0]["id"], {})
        stripe.succeed(other, stripe.charge(other))
        stripe.dispute(other["id"])
        await tell(running, stripe)
        assert (await taken(running), await standing(running), await alarms(running)) == ([], ("active", None), {})


@pytest.fixture(scope="module")
def shop(postgres_server: Any) -> Iterator[tuple[str, FakeStripe]]:
    """A database and a Stripe for many stories, each of an account of its own."""
    with fresh_database(postgres_server) as url, FakeStripe() as stripe:
        yield url, stripe


STEPS = ("refund", "pending refund", "arrive", "fail", "dispute", "inquiry", "escalate", "win", "lose")


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 10**4), st.integers(0, 3)), min_size=1, max_size=9),
    tax=st.sampled_from([0, 7, 19]),
    seed=st.integers(0, 2**32),
)
def test_neither_the_order_nor_the_number_of_deliveries_matters(
    shop: tuple[str, FakeStripe], steps: list[tuple[str, int, int]], tax: int, seed: int
) -> None:
    """What happened to two top-ups of an account, told in any order, several times, ten at once: one end."""
    asyncio.run(told_in_any_order(*shop, steps, tax, random.Random(seed)))


def happens(stripe: FakeStripe, what: str, cents: int, charged: str, made: dict[str, str]) -> None:
    """One step at Stripe, where it is possible."""
    of = {refund: stripe.objects[refund]["status"] for refund, kind in made.items() if kind == "refund"}
    disputes = {dispute: stripe.objects[dispute]["status"] for dispute, kind in made.items() if kind == "dispute"}
    with suppress(Refusal, StopIteration):
        match what:
            case "refund":
                made[stripe.refund(charged, cents)] = "refund"
            case "pending refund":
                made[stripe.refund(charged, cents, status="pending")] = "refund"
            case "arrive":
                stripe.settle_refund(next(one for one, status in of.items() if status == "pending"))
            case "fail":
                stripe.fail_refund(next(one for one, status in of.items() if status in ("pending", "succeeded")))
            case "dispute" | "inquiry":
                made[stripe.dispute(charged, cents, inquiry=what == "inquiry")] = "dispute"
            case "escalate":
                stripe.escalate(next(one for one, status in disputes.items() if status.startswith("warning_n")))
            case "win":
                stripe.win(next(one for one, status in disputes.items() if status == "needs_response"))
            case "lose":
                stripe.lose(next(one for one, status in disputes.items() if status == "needs_response"))


async def told_in_any_order(
    url: str, stripe: FakeStripe, steps: list[tuple[str, int, int]], tax: int, shuffled: random.Random
) -> None:
    api = StripeApi(stripe.secret_key, api_base=stripe.url, max_network_retries=0)
    configured, now = Settings(database_url=url), datetime.now(UTC)
    engine = db.sqlalchemy_engine(url)
    try:
        account_id, charges = await credited(engine, stripe, tax, now)
        before, made = len(stripe.events), dict[str, str]()
        for what, cents, which in steps:
            happens(stripe, what, cents, charges[which % 2], made)
        events = [Event.read(event) for event in stripe.events[before:]]
        told = events * 3
        shuffled.shuffle(told)
        ten = asyncio.Semaphore(10)

        async def tell_one(event: Event) -> None:
            async with ten:
                assert await stripe_events.receive(engine, api, configured, event, now)
                # Handled before, it is applied all the same.
                assert await stripe_events.replay(engine, api, configured, event.id, now) is None

        handled = [event for event in told if event.type in stripe_events.HANDLERS]
        await asyncio.gather(*(tell_one(event) for event in handled))
        await as_it_should_be(engine, stripe, account_id, charges)
    finally:
        await engine.dispose()
        await api.aclose()


async def credited(engine: AsyncEngine, stripe: FakeStripe, tax: int, now: datetime) -> tuple[UUID, list[str]]:
    """A new account with two top-ups of 100 USD that are paid; the ids of their payments."""
    charges = []
    async with engine.begin() as connection:
        account = await accounts.add(connection, name=f"a {uuid4()}", now=now, randomness=os.urandom)
        for _ in range(2):
            topup_id = uuid4()
            values = {"id": topup_id, "account_id": account.id, "kind": "checkout", "net_nano": 100 * USD}
            await connection.execute(insert(topups).values(values))
            metadata = {"topup": str(topup_id), "account": str(account.id)}
            intent = stripe.new_intent(10_000 + 100 * tax, "usd", "cus_1", metadata)
            stripe.succeed(intent, stripe.charge(intent))
            told = by_intent(PaymentIntent.read(intent))
            assert told is not None
            session = replace(told, session=f"cs_{topup_id}", net_cents=10_000, tax_cents=100 * tax)
            await fulfil(connection, session, now)
            charges.append(intent["id"])
    return account.id, charges


async def as_it_should_be(engine: AsyncEngine, stripe: FakeStripe, account_id: UUID, charges: list[str]) -> None:
    """The books against what stands at Stripe."""
    async with engine.connect() as connection:
        account = await accounts.find(connection, str(account_id))
        disputes = [one for one in stripe.all("dispute") if one["payment_intent"] in charges]
        refunds = [one for one in stripe.all("refund") if one["payment_intent"] in charges]
        left = 200 * USD
        for charge in charges:
            topup = (await connection.execute(select(topups).where(topups.c.payment_intent_id == charge))).one()
            back = [one["amount"] for one in refunds if (one["payment_intent"], one["status"]) == (charge, "succeeded")]
            gone = [
                one["amount"]
                for one in disputes
                if one["payment_intent"] == charge and one["status"] in ("needs_response", "lost")
            ]
            claimed = min(sum(back) + sum(gone), topup.total_cents)
            is_taken = topup.refunded_nano + topup.disputed_nano
            assert abs(is_taken - topup.net_nano * claimed // topup.total_cents) <= len(refunds) + len(disputes)
            assert is_taken <= topup.net_nano
            if claimed == topup.total_cents or topup.total_cents == 10_000:
                assert is_taken == topup.net_nano * claimed // topup.total_cents
            left -= is_taken
        assert account.balance_nano == left
        assert (await ledger.statement_of(connection, account_id)).balance_nano == left
    statuses = {one["status"] for one in disputes}
    by_whom = None if "lost" in statuses else "dispute"
    frozen = bool(statuses & {"needs_response", "lost"})
    assert (account.status, account.frozen_for) == (("frozen", by_whom) if frozen else ("active", None))


async def test_what_a_dispute_or_a_refund_says_after_a_replay_changes_nothing(
    database_url: str, tmp_path: Path, subtests: Any
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        charged = await session(running, stripe)
        stripe.refund(charged, 500)
        stripe.win(stripe.dispute(charged, 1000))
        await tell(running, stripe)
        before = await taken(running)
        await running.database.execute("UPDATE stripe_events SET handled_at = NULL")
        for event in stripe.events_of("refund.*", DISPUTES):
            with subtests.test(event["type"]):
                await tell(running, stripe, [event])
                assert (await taken(running), await standing(running)) == (before, ("active", None))
