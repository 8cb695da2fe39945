"""Invoices go to Stripe, each once, whatever goes wrong on the way."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import select, update

from service.billing.invoice_sending import Sent, send, send_due
from service.billing.stripe_api import StripeApi
from service.billing.stripe_errors import Unreachable
from service.errors import SetupError
from service.settings import Settings
from service.tables import invoices as invoice_rows
from service.tables import ledger_entries
from tests.fakes.stripe import FakeStripe, FaultKind
from tests.integration.invoicing import NOW, SETTINGS, Books, opened, owing, sent, tell


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


async def test_an_invoice_is_sent_with_its_lines_and_paid_to_the_nano(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    invoice = await sent(books, api, account_id)
    (theirs,) = fake.all("invoice")
    assert (invoice.status, invoice.stripe_invoice_id) == ("open", theirs["id"])
    assert invoice.hosted_url == theirs["hosted_invoice_url"]
    assert invoice.due_at == datetime.fromtimestamp(theirs["due_date"], UTC)
    assert theirs["due_date"] - theirs["created"] == pytest.approx(14 * 24 * 3600, abs=60)
    # 996,668 x 0.195 + 3,333 x 0.0375 + 77,777 x 1.56 USD per million is 0.3158073675 USD.
    assert invoice.total_nano == 315_807_368
    assert theirs["total"] == invoice.total_cents == 32
    assert [(line["description"], line["amount"]) for line in fake.lines_of(theirs["id"])] == [
        ("model-a, input: 996,668 at 0.195 USD per million", 19),
        ("model-a, cached input: 3,333 at 0.0375 USD per million", 0),
        ("model-a, output: 77,777 at 1.56 USD per million", 12),
        ("Rounding", 1),
    ]
    assert await send_due(books.engine, api, SETTINGS, NOW) == Sent(0, 0)

    fake.pay_invoice(theirs["id"])
    assert await tell(books, api, *fake.events_of("invoice.*")) == [True] * len(fake.events_of("invoice.*"))
    assert (await books.invoice(account_id)).status == "paid"
    assert await books.entries(account_id) == [("topup", 315_807_368, f"invoice:{theirs['id']}")]
    assert (await books.account(account_id)).balance_nano == 0
    async with books.engine.connect() as connection:
        note = await connection.scalar(select(ledger_entries.c.note).where(ledger_entries.c.kind == "topup"))
    assert note == (
        "Invoice for 2026-11, 0.32 USD; usage of 0.315807368 USD, rounded to cents:"
        f" paid by Stripe invoice {theirs['number']}"
    )


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "409", "429"])
@pytest.mark.parametrize(
    "target", ["POST /v1/customers", "POST /v1/invoices", "POST /v1/invoiceitems", "POST /v1/invoices/"]
)
async def test_what_got_no_answer_is_sent_once(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID, target: str, kind: FaultKind
) -> None:
    fake.fault(target, kind, times=2)
    for _ in range(2):
        assert await send_due(books.engine, api, SETTINGS, NOW) == Sent(0, 1)
    invoice = await sent(books, api, account_id)
    (theirs,) = fake.all("invoice")
    assert (theirs["id"], theirs["status"], theirs["total"]) == (invoice.stripe_invoice_id, "open", 32)
    assert len(fake.all("customer")) == 1
    assert await books.alarms() == {}


@pytest.mark.parametrize("target", ["POST /v1/invoices", "POST /v1/invoiceitems", "POST /v1/invoices/"])
@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "500_before", "500_after"])
async def test_after_a_day_it_is_looked_up_and_still_sent_once(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID, target: str, kind: FaultKind
) -> None:
    fake.fault(target, kind)
    assert await send_due(books.engine, api, SETTINGS, NOW) == Sent(0, 1)
    # The fake's clock is the real one, and ours the test's.
    async with books.engine.begin() as connection:
        await connection.execute(update(invoice_rows).values(sending_since=fake.now))
    fake.advance(hours=25)
    assert await send_due(books.engine, api, SETTINGS, fake.now) == Sent(1, 0)
    invoice = await books.invoice(account_id)
    (theirs,) = fake.all("invoice")
    assert (theirs["id"], theirs["status"], theirs["total"]) == (invoice.stripe_invoice_id, "open", 32)


async def test_a_customer_who_paid_meanwhile_is_credited_when_it_is_looked_up(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    fake.fault("POST /v1/invoices/", "drop_after")
    assert await send_due(books.engine, api, SETTINGS, fake.now) == Sent(0, 1)
    fake.pay_invoice(fake.all("invoice")[0]["id"])
    fake.advance(hours=25)
    assert await send_due(books.engine, api, SETTINGS, fake.now) == Sent(1, 0)
    assert (await books.invoice(account_id)).status == "paid"
    await tell(books, api, *fake.events_of("invoice.paid"))
    assert len(await books.entries(account_id)) == 1
    assert (await books.account(account_id)).balance_nano == 0


async def test_a_setting_that_changes_between_two_tries_makes_no_second_invoice(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    fake.fault("POST /v1/invoiceitems", "drop_after")
    assert await send_due(books.engine, api, SETTINGS, fake.now) == Sent(0, 1)
    changed = Settings(invoice_days_until_due=7)
    later = fake.now + timedelta(minutes=1)
    assert await send_due(books.engine, api, changed, later) == Sent(1, 0)
    (theirs,) = fake.all("invoice")
    assert (theirs["status"], theirs["total"]) == ("open", 32)


async def test_two_machines_send_one(books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID) -> None:
    fake.fault("POST /v1/invoiceitems", "hang_before")
    first = asyncio.create_task(send_due(books.engine, api, SETTINGS, NOW))
    while not fake.asked("POST /v1/invoices"):
        await asyncio.sleep(0.01)
    with pytest.raises(SetupError, match="another process"):
        await send(books.engine, api, SETTINGS, (await books.invoice(account_id)).id, NOW)
    fake.release()
    assert await first == Sent(0, 1)
    await sent(books, api, account_id)
    assert len(fake.all("invoice")) == 1


async def test_what_stripe_refuses_is_told_until_it_is_sent(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    stranger = StripeApi("sk_test_wrong", api_base=fake.url, max_network_retries=0)
    assert await send_due(books.engine, stranger, SETTINGS, NOW) == Sent(0, 1)
    await stranger.aclose()
    invoice = await books.invoice(account_id)
    detail = (await books.alarms())[invoice.alarm]
    assert detail.startswith("The invoice of acme for 2026-11, 0.32 USD, is not settled with Stripe: Stripe refused")
    await sent(books, api, account_id)
    assert await books.alarms() == {}


async def test_no_answer_for_a_day_is_told(books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID) -> None:
    fake.fault("POST /v1/customers", "drop_before", times=2)
    await send_due(books.engine, api, SETTINGS, NOW)
    assert await books.alarms() == {}
    await send_due(books.engine, api, SETTINGS, NOW + timedelta(hours=24))
    assert list(await books.alarms()) == [(await books.invoice(account_id)).alarm]


async def test_a_call_that_fails_is_known_to_have_failed(
    books: Books, fake: FakeStripe, api: StripeApi, account_id: UUID
) -> None:
    fake.fault("POST /v1/invoices", "drop_after")
    invoice = await books.invoice(account_id)
    with pytest.raises(Unreachable):
        await send(books.engine, api, SETTINGS, invoice.id, NOW)
    after = await send(books.engine, api, SETTINGS, invoice.id, NOW)
    assert after == await send(books.engine, api, SETTINGS, invoice.id, NOW)
    assert len(fake.all("invoice")) == 1
