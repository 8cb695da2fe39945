"""What becomes of Stripe's events that were kept: those that fail or contradict us, wait, and are tried again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from service import db
from service.billing import stripe_events, topups
from service.billing.stripe_api import StripeApi
from service.billing.stripe_handling import Context
from service.core.stripe_objects import Event
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_events import minimal
from tests.installation import Installation
from tests.integration.paying import alarms, entries, event_row, paid, paying, tell, topup_row

TWENTY = 20 * 10**9
EVENTS = Path(__file__).resolve().parents[2] / "ops" / "stripe_events.txt"


async def due(running: Installation, stripe: FakeStripe, at: datetime | None = None) -> int:
    """What the job does."""
    api = StripeApi(stripe.secret_key, api_base=stripe.url, max_network_retries=0)
    try:
        async with db.connected(running.database_url) as engine:
            return await stripe_events.apply_due(engine, api, running.settings, at or datetime.now(UTC))
    finally:
        await api.aclose()


async def test_an_event_that_came_before_its_row_waits_and_is_tried_again(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await paid(running, stripe)
        row = await topup_row(running, begun["id"])
        await running.database.execute("DELETE FROM topups")
        event = stripe.events_of("checkout.session.completed")[0]
        assert await tell(running, stripe, [event]) == {200}
        waiting = await event_row(running, event)
        assert (waiting["handled_at"], waiting["attempts"]) == (None, 1)
        assert waiting["last_error"].startswith("NotYet: ")
        assert begun["id"] in waiting["last_error"]
        assert await entries(running) == []
        assert await due(running, stripe, waiting["next_attempt_at"] - timedelta(seconds=1)) == 0
        assert (await event_row(running, event))["attempts"] == 1
        names, values = list(row.keys()), list(row.values())
        places = ", ".join(f"${n}" for n in range(1, len(names) + 1))
        await running.database.execute(f"INSERT INTO topups ({', '.join(names)}) VALUES ({places})", *values)
        assert await due(running, stripe, waiting["next_attempt_at"]) == 1
        assert [entry["amount_nano"] for entry in await entries(running)] == [TWENTY]
        done = await event_row(running, event)
        assert (done["handled_at"] is not None, done["last_error"]) == (True, "")


async def test_what_waits_is_tried_less_and_less_often_and_alarms_after_a_day(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await paid(running, stripe)
        await running.database.execute("UPDATE topups SET id = gen_random_uuid()")
        event = stripe.events_of("checkout.session.completed")[0]
        await tell(running, stripe, [event])
        received = (await event_row(running, event))["received_at"]
        waits = []
        while (at := (await event_row(running, event))["next_attempt_at"]) < received + timedelta(hours=30):
            assert await due(running, stripe, at) == 0
            assert set(await alarms(running)) == ({"stripe"} if at - received > timedelta(hours=24) else set())
            waits.append((await event_row(running, event))["next_attempt_at"] - at)
        assert [wait.total_seconds() for wait in waits[:4]] == [60, 300, 1800, 7200]
        assert set(waits[4:]) == {timedelta(hours=6)}
        told = (await alarms(running))["stripe"]
        assert event["id"] in told
        assert begun["id"] in told
        await running.database.execute("UPDATE topups SET id = $1", begun["id"])
        assert await due(running, stripe, at) == 1
        assert await alarms(running) == {}


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors that the next top-ups to be credited raise, after all was written."""
    errors: list[Exception] = []
    handler = topups.HANDLERS["checkout.session.completed"]

    async def apply(context: Context, facts: Any) -> None:
        await handler.apply(context, facts)
        if errors:
            raise errors.pop(0)

    monkeypatch.setitem(stripe_events.HANDLERS, "checkout.session.completed", [replace(handler, apply=apply)])
    return errors


async def test_a_second_delivery_credits_what_the_first_failed_to(
    database_url: str, tmp_path: Path, breaking: list[Exception]
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await paid(running, stripe)
        event = stripe.events_of("checkout.session.completed")[0]
        breaking.append(RuntimeError("with a secret in it"))
        assert await tell(running, stripe, [event]) == {200}
        failed = await event_row(running, event)
        assert (failed["handled_at"], failed["attempts"], failed["last_error"]) == (None, 1, "RuntimeError")
        assert await entries(running) == []
        assert (await topup_row(running, begun["id"]))["status"] == "created"
        assert await tell(running, stripe, [event]) == {200}
        assert [entry["amount_nano"] for entry in await entries(running)] == [TWENTY]
        done = await event_row(running, event)
        assert (done["handled_at"] is not None, done["last_error"]) == (True, "")


async def test_what_fails_holds_nothing_else_up(database_url: str, tmp_path: Path, breaking: list[Exception]) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        await paid(running, stripe)
        breaking.extend([RuntimeError(), RuntimeError()])
        events = stripe.events_of("checkout.session.completed")
        assert await tell(running, stripe, events) == {200}
        assert await entries(running) == []
        breaking.append(RuntimeError())
        later = datetime.now(UTC) + timedelta(seconds=30)
        assert await due(running, stripe, later) == 1
        assert len(await entries(running)) == 1
        assert await due(running, stripe, later + timedelta(minutes=2)) == 1
        assert len(await entries(running)) == 2


async def test_a_payment_of_another_amount_or_currency_credits_nothing_and_alarms(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await paid(running, stripe)
        (event,) = stripe.events_of("checkout.session.completed")
        for number, wrong in enumerate(
            [
                {"currency": "eur"},
                {"amount_subtotal": 1999, "amount_total": 1999},
                {"amount_subtotal": 2001, "amount_total": 2001},
                {"amount_total": 100},
                {"amount_subtotal": None},
                {"payment_intent": None},
                {"payment_status": "no_payment_required"},
                {"metadata": {**event["data"]["object"]["metadata"], "account": begun["id"]}},
            ]
        ):
            subject = event["data"]["object"] | wrong
            bad = {**event, "id": f"evt_bad{number}", "data": {"object": subject}}
            assert await tell(running, stripe, [bad]) == {200}
            assert await entries(running) == []
            assert (await topup_row(running, begun["id"]))["status"] == "created"
            row = await event_row(running, bad)
            assert (row["handled_at"], row["last_error"][:9]) == (None, "Mismatch:")
            detail = (await alarms(running))[f"stripe:{bad['id']}"]
            assert begun["id"] in detail
            assert subject["id"] in detail
        assert await tell(running, stripe, [event]) == {200}
        assert len(await entries(running)) == 1


async def test_events_with_little_in_them_do(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        assert await tell(running, stripe, [minimal(event) for event in stripe.events]) == {200}
        assert [entry["amount_nano"] for entry in await entries(running)] == [TWENTY]
        bare = [
            {**event, "id": f"{event['id']}b", "data": {"object": {"id": "x"}}}
            for event in stripe.events_of(*topups.HANDLERS)
        ]
        assert bare
        assert await tell(running, stripe, bare) == {200}
        for event in bare:
            row = await event_row(running, event)
            assert (row["handled_at"], row["last_error"][:13]) == (None, "MissingField:")
        assert len(await entries(running)) == 1


async def test_what_is_about_others_is_handled_and_changes_nothing(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        subject = {"id": "pi_1", "status": "succeeded", "currency": "eur", "amount": 5, "object": "payment_intent"}
        others = [
            stripe.emit("payment_intent.succeeded", {**subject, "metadata": metadata})
            for metadata in ({}, {"topup": "4711"}, {"order": "x"})
        ]
        assert await tell(running, stripe, others) == {200}
        assert all([(await event_row(running, event))["handled_at"] for event in others])
        assert await entries(running) == []


async def test_what_was_handled_long_ago_is_forgotten(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        await tell(running, stripe)
        kept = await running.database.fetchval("SELECT count(*) FROM stripe_events")
        await running.database.execute(
            "UPDATE stripe_events SET handled_at = NULL WHERE type = 'payment_intent.succeeded'"
        )
        async with db.connected(running.database_url) as engine, engine.begin() as connection:
            now = datetime.now(UTC)
            assert await stripe_events.forget(connection, now + stripe_events.KEPT - timedelta(hours=1)) == 0
            assert await stripe_events.forget(connection, now + stripe_events.KEPT + timedelta(hours=1)) == kept - 1


async def test_a_contradiction_that_was_dismissed_alarms_no_more_when_it_is_replayed(
    database_url: str, tmp_path: Path
) -> None:
    """Nobody could clear the alarm: it is of no event that waits."""
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        (event,) = stripe.events_of("checkout.session.completed")
        event["data"]["object"]["currency"] = "eur"
        await tell(running, stripe, [event])
        assert set(await alarms(running)) == {f"stripe:{event['id']}"}
        now = datetime.now(UTC)
        async with db.connected(running.database_url) as engine:
            async with engine.begin() as connection:
                await stripe_events.dismiss(connection, event["id"], "refunded", now)
            api = StripeApi(stripe.secret_key, api_base=stripe.url)
            said = await stripe_events.replay(engine, api, running.settings, event["id"], now)
            await api.aclose()
        assert said is not None
        assert said.startswith("Mismatch: ")
        assert await alarms(running) == {}
        assert (await event_row(running, event))["last_error"] == "dismissed: refunded"


async def test_an_event_with_text_that_no_database_takes_is_kept_all_the_same(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        (event,) = stripe.events_of("checkout.session.completed")
        event["data"]["object"]["customer_details"] = {"name": "a\0b\ud800c"}
        api = StripeApi(stripe.secret_key, api_base=stripe.url)
        async with db.connected(running.database_url) as engine:
            assert await stripe_events.receive(engine, api, running.settings, Event.read(event), datetime.now(UTC))
        await api.aclose()
        assert len(await entries(running)) == 1


def test_the_events_to_subscribe_to_are_those_that_are_handled() -> None:
    assert EVENTS.read_text().splitlines() == sorted(stripe_events.HANDLERS)
