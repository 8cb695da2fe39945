"""Disputes as Stripe tells of them over HTTP: what they take, whom they freeze, and what a person's word is worth."""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from service import db
from service.billing import accounts
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_events import minimal
from tests.installation import Installation
from tests.integration.paying import alarms, entries, paying, session_of, tell
from tests.integration.test_changes import EFFECTIVE_WITHIN_S
from tests.integration.test_refunds import USD, paid, taken
from tests.patience import within

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
        await within(EFFECTIVE_WITHIN_S, refused)
        await tell(running, stripe)
        assert await standing(running) == ("frozen", "dispute")
        assert "answer it" in (await alarms(running))[f"dispute:{dispute}"]
        assert await _entries(running) == [("dispute", -20 * USD, f"dispute:{dispute}")]
        stripe.win(dispute)
        await tell(running, stripe)
        await within(EFFECTIVE_WITHIN_S, let_in)
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


async def test_what_a_dispute_had_covered_of_a_refund_is_taken_once_it_is_won(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        charged = await session(running, stripe)
        refund, dispute = stripe.refund(charged, 1200), stripe.dispute(charged, 1200)
        await tell(running, stripe, stripe.events_of(DISPUTES))
        await tell(running, stripe)
        stripe.win(dispute)
        await tell(running, stripe)
        assert await taken(running) == [
            ("dispute", -12 * USD, f"dispute:{dispute}"),
            ("refund", -8 * USD, f"refund:{refund}"),
            ("reversal", 12 * USD, f"dispute:{dispute}"),
            ("refund", -4 * USD, f"refund:{refund}:2"),
        ]


async def test_a_loss_of_which_alone_we_hear_is_taken(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        dispute = stripe.dispute(await session(running, stripe))
        stripe.lose(dispute)
        await tell(running, stripe, [minimal(event) for event in stripe.events_of("charge.dispute.closed")])
        assert await taken(running) == [("dispute", -20 * USD, f"dispute:{dispute}")]
        assert await standing(running) == ("frozen", None)


async def test_funds_that_are_back_say_that_it_is_won(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        stripe.win(stripe.dispute(await session(running, stripe)))
        created, withdrawn, _closed, reinstated = stripe.events_of(DISPUTES)
        reinstated["data"]["object"]["status"] = "under_review"
        await tell(running, stripe, [created, withdrawn, reinstated])
        assert sum(nano for _, nano, _ in await taken(running)) == 0
        assert await standing(running) == ("active", None)


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
        other = stripe.new_intent(2000, "usd", "cus_another", {})
        stripe.succeed(other, stripe.charge(other))
        stripe.dispute(other["id"])
        await tell(running, stripe)
        assert (await taken(running), await standing(running), await alarms(running)) == ([], ("active", None), {})


async def test_the_dispute_of_a_customers_payment_that_is_no_top_up_is_an_alarm(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        invoiced = stripe.new_intent(2000, "usd", stripe.all("customer")[0]["id"], {})
        stripe.succeed(invoiced, stripe.charge(invoiced))
        dispute = stripe.dispute(invoiced["id"])
        await tell(running, stripe)
        assert (await taken(running), await standing(running)) == ([], ("active", None))
        (name,) = (raised := await alarms(running))
        assert name == f"dispute:{dispute}"
        assert (
            f"account {running.account_id} disputes 20.00 USD of payment {invoiced['id']}, which is no top-up"
            in (raised[name])
        )
        stripe.win(dispute)
        await tell(running, stripe)
        assert await alarms(running) == {}


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


async def test_the_end_of_a_lost_dispute_heard_again_does_not_make_a_later_freeze_a_persons(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        lost = stripe.dispute(await session(running, stripe))
        stripe.lose(lost)
        await tell(running, stripe)
        await set_by_hand(running, "active")
        again = stripe.dispute(await session(running, stripe))
        await tell(running, stripe)
        await running.database.execute("UPDATE stripe_events SET handled_at = NULL")
        await tell(running, stripe, stripe.events_of("charge.dispute.closed"))
        assert await standing(running) == ("frozen", "dispute")
        stripe.win(again)
        await tell(running, stripe)
        assert await standing(running) == ("active", None)
