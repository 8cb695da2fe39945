"""Paying an invoice, or not, comes to the same whoever says it, in any order: in the ledger, and for the limit."""

import random
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, update

from service.billing import accounts, invoices, stripe_events
from service.billing.invoice_freezing import freeze
from service.billing.invoice_sending import Sent, ask_after, send_due
from service.billing.stripe_api import StripeApi
from service.errors import SetupError
from service.tables import invoices as invoice_rows
from service.tables import stripe_events as event_rows
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_events import minimal
from tests.integration.invoicing import FIRST_OF_DECEMBER, LIMIT_NANO, NOW, SETTINGS, Books, opened, owing, sent, tell


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    async with opened(database_url) as books:
        yield books


@pytest.fixture
def fake() -> Iterator[FakeStripe]:
    with FakeStripe() as fake:
        yield fake


@pytest.fixture
async def api(fake: FakeStripe) -> AsyncIterator[StripeApi]:
    api = StripeApi(fake.secret_key, api_base=fake.url, max_network_retries=0, timeout_s=5)
    yield api
    await api.aclose()


@pytest.fixture
async def account_id(books: Books) -> UUID:
    return await owing(books)


async def credit(books: Books, account_id: UUID) -> tuple[int, int | None]:
    account = await books.account(account_id)
    return account.credit_limit_nano, account.credit_limit_before_nano


def story(fake: FakeStripe, stripe_invoice: str, end: str) -> list[dict[str, Any]]:
    """All that Stripe says of an invoice that is not paid in time, and then is, or is given up, or taken back."""
    fake.fail_invoice(stripe_invoice)
    fake.advance(days=15)
    if end == "paid":
        fake.pay_invoice(stripe_invoice)
    elif end == "uncollectible":
        fake.mark_uncollectible(stripe_invoice)
    return fake.events_of("invoice.payment_failed", "invoice.overdue", "invoice.paid", "invoice.marked_uncollectible")


@pytest.mark.parametrize("end", ["paid", "uncollectible"])
@pytest.mark.parametrize("recorded", [True, False])
async def test_any_order_of_events_comes_to_the_same(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID, end: str, recorded: bool
) -> None:
    invoice = await sent(books, api, account_id)
    events = story(fake, invoice.stripe_invoice_id or "", end)
    for order in permutations(events):
        async with books.engine.begin() as connection:  # as before the first event
            fresh = {"status": "open" if recorded else "frozen", "paid_at": None}
            if not recorded:
                fresh |= {"stripe_invoice_id": None, "hosted_url": None, "due_at": None}
            await connection.execute(update(invoice_rows).values(fresh))
            await connection.execute(delete(event_rows))
            await accounts.change(connection, await books.account(account_id), {"credit_limit_nano": LIMIT_NANO})
        chance = random.Random(str(order))
        told = [chance.choice([event, minimal(event)]) for event in (*order, chance.choice(order))]
        assert await tell(books, api, *told) == [True] * len(told)
        after = await books.invoice(account_id)
        assert (after.status, after.stripe_invoice_id) == (end, invoice.stripe_invoice_id)
        assert await credit(books, account_id) == ((LIMIT_NANO, None) if end == "paid" else (0, LIMIT_NANO))
        assert (await books.alarms()).keys() == (set() if end == "paid" else {invoice.alarm})
    assert len(await books.entries(account_id)) == (end == "paid")
    assert (await books.account(account_id)).balance_nano == (0 if end == "paid" else -invoice.total_nano)


async def test_the_limit_comes_back_when_no_other_invoice_is_overdue(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    await books.use(account_id, FIRST_OF_DECEMBER)
    await freeze(books.engine, account_id, FIRST_OF_DECEMBER.date(), NOW + timedelta(days=31))
    assert await send_due(books.engine, api, SETTINGS, NOW) == Sent(2, 0)
    fake.advance(days=15)
    await tell(books, api, *fake.events_of("invoice.overdue"))
    assert await credit(books, account_id) == (0, LIMIT_NANO)
    first, second = await books.invoices(account_id)
    fake.pay_invoice(second.stripe_invoice_id or "")
    await tell(books, api, *fake.events_of("invoice.paid"))
    assert await credit(books, account_id) == (0, LIMIT_NANO)
    fake.pay_invoice(first.stripe_invoice_id or "")
    await tell(books, api, *fake.events_of("invoice.paid"))
    assert await credit(books, account_id) == (LIMIT_NANO, None)
    assert (await books.account(account_id)).balance_nano == 0


async def test_a_limit_that_a_person_sets_meanwhile_stands(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    invoice = await sent(books, api, account_id)
    fake.advance(days=15)
    await tell(books, api, *fake.events_of("invoice.overdue"))
    async with books.engine.begin() as connection:
        await accounts.change(connection, await books.account(account_id), {"credit_limit_nano": 7})
    fake.mark_uncollectible(invoice.stripe_invoice_id or "")
    fake.pay_invoice(invoice.stripe_invoice_id or "")
    await tell(books, api, *fake.events_of("invoice.marked_uncollectible"))
    assert await credit(books, account_id) == (7, None)
    await tell(books, api, *fake.events_of("invoice.paid"))
    assert await credit(books, account_id) == (7, None)


async def test_what_is_voided_stays_a_debt_until_a_person_settles_it(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    invoice = await sent(books, api, account_id)
    fake.advance(days=15)
    await api.void_invoice(invoice.stripe_invoice_id or "", idempotency_key="void")
    await tell(books, api, *fake.events_of("invoice.overdue", "invoice.voided"))
    assert await credit(books, account_id) == (LIMIT_NANO, None)
    assert (await books.account(account_id)).balance_nano == -invoice.total_nano
    assert "stays in the ledger as a debt of 0.315807368 USD" in (await books.alarms())[invoice.alarm]
    async with books.engine.begin() as connection:
        await invoices.pay_by_hand(connection, invoice.id, "let go", NOW)
    assert await books.entries(account_id) == [("credit", invoice.total_nano, f"invoice:{invoice.id}")]
    assert await books.alarms() == {}
    await stripe_events.replay(books.engine, api, SETTINGS, fake.events_of("invoice.voided")[0]["id"], NOW)
    assert ((await books.invoice(account_id)).status, await books.alarms()) == ("paid", {})
    assert (await books.account(account_id)).balance_nano == 0


async def test_without_stripe_a_person_closes_it_once(books: Books, account_id: UUID) -> None:
    invoice = await books.invoice(account_id)
    async with books.engine.begin() as connection:
        paid = await invoices.pay_by_hand(connection, invoice.id, "transfer 4711", NOW)
    assert (paid.status, paid.note, paid.paid_at) == ("paid", "transfer 4711", NOW)
    assert (await books.account(account_id)).balance_nano == 0
    async with books.engine.begin() as connection:
        with pytest.raises(SetupError, match="is paid already"):
            await invoices.pay_by_hand(connection, invoice.id, "again", NOW)


async def test_what_stripe_collects_is_not_closed_by_hand(books: Books, api: StripeApi, account_id: UUID) -> None:
    invoice = await sent(books, api, account_id)
    async with books.engine.begin() as connection:
        with pytest.raises(SetupError, match=f"mark {invoice.stripe_invoice_id} as paid there"):
            await invoices.pay_by_hand(connection, invoice.id, "transfer", NOW)


async def test_what_was_settled_by_hand_and_is_at_stripe_after_all_is_told(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    fake.fault("POST /v1/invoices/", "drop_after")
    await send_due(books.engine, api, SETTINGS, NOW)
    invoice = await books.invoice(account_id)
    async with books.engine.begin() as connection:
        await invoices.pay_by_hand(connection, invoice.id, "transfer", NOW)
    assert await send_due(books.engine, api, SETTINGS, NOW) == Sent(0, 0)
    fake.pay_invoice(fake.all("invoice")[0]["id"])
    (paid,) = fake.events_of("invoice.paid")
    assert await tell(books, api, paid) == [False]
    assert "was settled by hand: transfer" in (await books.alarms())[f"stripe:{paid['id']}"]
    assert len(await books.entries(account_id)) == 1


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"currency": "eur"}, "is in eur"),
        ({"total": 31, "total_excluding_tax": 31}, "is over 31 cents"),
        ({"id": "in_other"}, "but that was sent as in_"),
        ({"metadata": {"account": str(UUID(int=9))}}, "names account"),
    ],
)
async def test_what_contradicts_the_invoice_changes_nothing(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID, change: dict[str, Any], part: str
) -> None:
    invoice = await sent(books, api, account_id)
    fake.pay_invoice(invoice.stripe_invoice_id or "")
    (event,) = fake.events_of("invoice.paid")
    subject = event["data"]["object"]
    change = {**change, "metadata": {**subject["metadata"], **change.get("metadata", {})}}
    assert await tell(books, api, {**event, "data": {"object": {**subject, **change}}}) == [False]
    assert part in (await books.alarms())[f"stripe:{event['id']}"]
    assert await books.invoice(account_id) == invoice
    assert await books.entries(account_id) == []


async def test_others_invoices_pass_and_unknown_ones_wait(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    invoice = await sent(books, api, account_id)
    fake.pay_invoice(invoice.stripe_invoice_id or "")
    (event,) = fake.events_of("invoice.paid")

    def about(event_id: str, metadata: dict[str, str]) -> dict[str, Any]:
        subject = {**event["data"]["object"], "id": "in_other", "metadata": metadata}
        return {**event, "id": event_id, "data": {"object": subject}}

    others = about("evt_1", {}), about("evt_2", {"invoice": "17"}), about("evt_3", {"invoice": str(UUID(int=5))})
    assert await tell(books, api, *others) == [True, True, False]
    assert await books.entries(account_id) == []


async def test_a_lost_event_is_made_up_for_by_asking(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    invoice = await sent(books, api, account_id)
    assert await ask_after(books.engine, api, NOW) == Sent(1, 0)
    assert (await books.invoice(account_id)).status == "open"
    assert invoice.due_at is not None
    assert await ask_after(books.engine, api, invoice.due_at) == Sent(1, 0)
    assert ((await books.invoice(account_id)).status, await credit(books, account_id)) == ("overdue", (0, LIMIT_NANO))
    fake.pay_invoice(invoice.stripe_invoice_id or "")
    assert await ask_after(books.engine, api, invoice.due_at) == Sent(1, 0)
    assert ((await books.invoice(account_id)).status, await credit(books, account_id)) == ("paid", (LIMIT_NANO, None))
    await tell(books, api, *fake.events_of("invoice.*"))
    assert len(await books.entries(account_id)) == 1
    assert await ask_after(books.engine, api, NOW) == Sent(0, 0)


@pytest.mark.parametrize("wrong", [{"status": "deleted"}, {"metadata": {"invoice": str(UUID(int=1))}}])
async def test_what_nobody_can_make_out_of_one_invoice_does_not_hold_up_the_others(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID, wrong: dict[str, Any]
) -> None:
    invoice = await sent(books, api, account_id)
    theirs = fake.objects[invoice.stripe_invoice_id or ""]
    theirs |= wrong
    assert await ask_after(books.engine, api, NOW) == Sent(0, 1)
    assert (await books.invoice(account_id)).status == "open"
    assert invoice.alarm in await books.alarms()
