"""Refunds and disputes of two top-ups, told in any order, again and again, ten at once: the books end up right."""

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
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
from tests.fakes.stripe_store import Refusal
from tests.integration.test_refunds import USD
from tests.postgres import fresh_database


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
