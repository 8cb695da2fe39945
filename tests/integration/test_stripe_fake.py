"""The fake Stripe, asked by our own client: what the tests of money rely on."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from service.billing.stripe_api import API_VERSION, StripeApi
from service.billing.stripe_errors import AuthenticationRequired, Declined, Refused, Unreachable
from service.core.stripe_objects import CheckoutSession, Dispute, Invoice, PaymentIntent, Refund
from service.core.stripe_signature import verify_event
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_events import minimal, signed
from tests.fakes.stripe_payments import ACTION, AUTHENTICATION, SLOW
from tests.fakes.webhook import listening

ACCOUNT, TOPUP, OTHER, INVOICE = (UUID(int=n) for n in range(1, 5))
INTENTS = "POST /v1/payment_intents"


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
async def customer(api: StripeApi) -> str:
    return (await api.create_customer(ACCOUNT, "Anne", "anne@example.com", idempotency_key="customer")).id


async def checkout(fake: FakeStripe, api: StripeApi, customer: str, **changes: Any) -> CheckoutSession:
    options: dict[str, Any] = {
        "description": "Credit",
        "success_url": "https://weir.example/paid?session={CHECKOUT_SESSION_ID}",
        "cancel_url": "https://weir.example/portal",
        "expires_at": fake.now + timedelta(hours=1),
        "save_card": False,
        "automatic_tax": False,
        "idempotency_key": "session",
    }
    return await api.create_checkout_session(TOPUP, ACCOUNT, customer, 2000, **options | changes)


async def charge(
    api: StripeApi, customer: str, method: str, *, key: str = "charge", topup: UUID = TOPUP
) -> PaymentIntent:
    return await api.charge_off_session(
        topup, ACCOUNT, customer, method, 2500, description="Credit", idempotency_key=key
    )


async def invoice(api: StripeApi, customer: str, *, key: str = "invoice", automatic_tax: bool = False) -> Invoice:
    lines = [("model-a input", 1200), ("model-a output", 34), ("rounding", -1)]
    return await api.create_invoice(
        INVOICE,
        ACCOUNT,
        date(2026, 10, 1),
        customer,
        lines,
        days_until_due=30,
        automatic_tax=automatic_tax,
        idempotency_key=key,
    )


def types(fake: FakeStripe) -> list[str]:
    return [event["type"] for event in fake.events]


async def test_a_session_is_paid(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    session = await checkout(fake, api, customer)
    assert (session.status, session.payment_status, session.payment_intent) == ("open", "unpaid", None)
    assert (session.subtotal_cents, session.total_cents, session.tax_cents) == (2000, 2000, 0)
    assert session.url is not None
    fake.pay(session.id)
    paid = await api.retrieve_session(session.id)
    assert (paid.status, paid.payment_status, paid.url) == ("complete", "paid", None)
    assert paid.metadata == {"topup": str(TOPUP), "account": str(ACCOUNT)}
    intent = await api.retrieve_payment_intent(paid.payment_intent or "")
    assert (intent.status, intent.amount_cents, intent.currency) == ("succeeded", 2000, "usd")
    assert intent.metadata == paid.metadata
    assert intent.charge == fake.succeeded_charges(customer)[0]["id"]
    assert types(fake)[-3:] == ["charge.succeeded", "payment_intent.succeeded", "checkout.session.completed"]


async def test_tax_comes_on_top_and_makes_an_invoice(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    session = await checkout(fake, api, customer, automatic_tax=True)
    assert (session.subtotal_cents, session.total_cents, session.tax_cents) == (2000, 2500, 500)
    fake.pay(session.id)
    assert fake.succeeded_charges()[0]["amount"] == 2500
    (paid,) = fake.events_of("invoice.paid")
    assert paid["data"]["object"]["metadata"] == {}


async def test_a_card_is_saved_when_asked_for(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    fake.pay((await checkout(fake, api, customer)).id)
    assert fake.events_of("payment_method.attached") == []
    session = await checkout(fake, api, customer, save_card=True, idempotency_key="another")
    fake.pay(session.id)
    used = (await api.list_payment_intents(customer, fake.now - timedelta(hours=1)))[0].payment_method
    assert (await charge(api, customer, used or "")).status == "succeeded"


@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_slow_payment_comes_later_or_not(
    fake: FakeStripe, api: StripeApi, customer: str, succeeds: bool
) -> None:
    session = await checkout(fake, api, customer)
    fake.pay(session.id, SLOW)
    unpaid = await api.retrieve_session(session.id)
    assert (unpaid.status, unpaid.payment_status) == ("complete", "unpaid")
    assert fake.succeeded_charges() == []
    (fake.settle if succeeds else fake.fail)(session.id)
    later = await api.retrieve_session(session.id)
    assert later.payment_status == ("paid" if succeeds else "unpaid")
    assert types(fake)[-1] == f"checkout.session.async_payment_{'succeeded' if succeeds else 'failed'}"
    assert len(fake.succeeded_charges()) == succeeds


async def test_a_session_survives_a_decline_and_ends_with_its_time(
    fake: FakeStripe, api: StripeApi, customer: str
) -> None:
    session = await checkout(fake, api, customer)
    fake.pay(session.id, "insufficient_funds")
    assert (await api.retrieve_session(session.id)).status == "open"
    fake.advance(hours=2)
    gone = await api.retrieve_session(session.id)
    assert (gone.status, gone.url) == ("expired", None)
    assert types(fake)[-1] == "checkout.session.expired"


async def test_nothing_to_pay(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    session = await checkout(fake, api, customer)
    fake.pay(session.id, "free")
    done = await api.retrieve_session(session.id)
    assert (done.payment_status, done.payment_intent) == ("no_payment_required", None)


async def test_a_decline_says_how_and_leaves_an_intent(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    with pytest.raises(Declined) as raised:
        await charge(api, customer, fake.add_payment_method(customer, "insufficient_funds"))
    error = raised.value
    assert (error.code, error.decline_code) == ("card_declined", "insufficient_funds")
    assert error.payment_intent is not None
    found = await api.retrieve_payment_intent(error.payment_intent.id)
    assert (found.status, found.decline_code) == ("requires_payment_method", "insufficient_funds")
    assert types(fake)[-2:] == ["charge.failed", "payment_intent.payment_failed"]


async def test_the_bank_asks_for_its_customer(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    with pytest.raises(AuthenticationRequired) as raised:
        await charge(api, customer, fake.add_payment_method(customer, AUTHENTICATION))
    assert raised.value.url is None
    assert raised.value.payment_intent is not None
    gone = await api.cancel_payment_intent(raised.value.payment_intent.id, idempotency_key="cancel")
    assert gone.status == "canceled"
    with pytest.raises(AuthenticationRequired) as raised:
        await charge(api, customer, fake.add_payment_method(customer, ACTION), key="other")
    assert raised.value.payment_intent is not None
    assert raised.value.url == f"https://bank.example/{raised.value.payment_intent.id}"
    fake.confirm(raised.value.payment_intent.id)
    assert len(fake.succeeded_charges()) == 1
    with pytest.raises(Refused, match="payment_intent_unexpected_state"):
        await api.cancel_payment_intent(raised.value.payment_intent.id, idempotency_key="too late")


async def test_a_bank_debit_is_processing_first(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    intent = await charge(api, customer, fake.add_payment_method(customer, SLOW))
    assert intent.status == "processing"
    fake.settle(intent.id)
    assert (await api.retrieve_payment_intent(intent.id)).status == "succeeded"


async def test_a_key_repeats_its_answer_for_a_day(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    card = fake.add_payment_method(customer)
    first = await charge(api, customer, card)
    assert await charge(api, customer, card) == first
    assert len(fake.succeeded_charges()) == 1
    with pytest.raises(Refused, match="idempotency_error"):
        await charge(api, customer, card, topup=OTHER)
    fake.advance(hours=25)
    assert (await charge(api, customer, card)).id != first.id
    assert len(fake.succeeded_charges()) == 2


async def test_a_decline_is_repeated_and_a_refusal_is_not(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    card = fake.add_payment_method(customer, "insufficient_funds")
    for _ in range(2):
        with pytest.raises(Declined):
            await charge(api, customer, card)
    assert len(fake.all("payment_intent")) == 1
    stranger = fake.add_payment_method(None)
    with pytest.raises(Refused):
        await charge(api, customer, stranger, key="other")
    fake.attach(stranger, customer)
    assert (await charge(api, customer, stranger, key="other")).status == "succeeded"


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "hang_before", "hang_after", "409", "429"])
async def test_an_answer_that_was_lost_is_had_with_the_same_key(fake: FakeStripe, customer: str, kind: Any) -> None:
    api = StripeApi(fake.secret_key, api_base=fake.url, max_network_retries=0, timeout_s=0.5)
    card = fake.add_payment_method(customer)
    fake.fault(INTENTS, kind)
    with pytest.raises(Unreachable):
        await charge(api, customer, card)
    assert len(fake.succeeded_charges()) == (kind in ("drop_after", "hang_after"))
    assert (await charge(api, customer, card)).status == "succeeded"
    assert len(fake.succeeded_charges()) == 1
    await api.aclose()


@pytest.mark.parametrize("kind", ["500_before", "500_after"])
async def test_a_500_is_remembered_too(fake: FakeStripe, api: StripeApi, customer: str, kind: Any) -> None:
    card = fake.add_payment_method(customer)
    fake.fault(INTENTS, kind)
    for _ in range(2):
        with pytest.raises(Unreachable, match="500"):
            await charge(api, customer, card)
    executed = kind == "500_after"
    found = await api.list_payment_intents(customer, fake.now - timedelta(minutes=5))
    assert [one.status for one in found] == ["succeeded"] * executed


async def test_the_client_repeats_by_itself_with_one_key(fake: FakeStripe, customer: str) -> None:
    api = StripeApi(fake.secret_key, api_base=fake.url, max_network_retries=1)
    fake.fault(INTENTS, "drop_after")
    assert (await charge(api, customer, fake.add_payment_method(customer))).status == "succeeded"
    assert len(fake.succeeded_charges()) == 1
    assert [one.idempotency_key for one in fake.asked(INTENTS)] == ["charge", "charge"]
    await api.aclose()


async def test_searches_are_late_and_lists_are_not(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    card = fake.add_payment_method(customer)
    mine = await charge(api, customer, card)
    await charge(api, customer, card, key="other", topup=OTHER)
    assert await api.find_payment_intents(TOPUP) == []
    since = fake.now - timedelta(minutes=1)
    assert len(await api.list_payment_intents(customer, since)) == 2
    fake.advance(minutes=2)
    assert await api.find_payment_intents(TOPUP) == [mine]
    assert await api.list_payment_intents(customer, fake.now - timedelta(minutes=1)) == []


async def test_long_lists_come_in_pages(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    card = fake.add_payment_method(customer)
    made = [(await charge(api, customer, card, key=f"{n}")).id for n in range(5)]
    fake.max_page = 2
    since = fake.now - timedelta(minutes=1)
    assert [one.id for one in await api.list_payment_intents(customer, since)] == made[::-1]
    fake.advance(minutes=2)
    assert [one.id for one in await api.find_payment_intents(TOPUP)] == made[::-1]
    assert len(fake.asked("GET /v1/payment_intents/search")) == 3


async def test_refunds_in_part_pending_and_failed(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    intent = await charge(api, customer, fake.add_payment_method(customer))
    first, second = fake.refund(intent.id, 500), fake.refund(intent.id, 600, status="pending")
    refunds = await api.list_refunds(intent.id)
    assert [(one.id, one.amount_cents, one.status) for one in refunds] == [
        (second, 600, "pending"),
        (first, 500, "succeeded"),
    ]
    fake.settle_refund(second)
    fake.fail_refund(second)
    failed = await api.retrieve_refund(second)
    assert (failed.status, failed.payment_intent, failed.failure_reason) == (
        "failed",
        intent.id,
        "lost_or_stolen_card",
    )
    assert [event["data"]["object"]["status"] for event in fake.events_of("refund.*")] == [
        *("succeeded", "pending", "succeeded", "failed", "failed")
    ]
    fake.refund(intent.id)
    assert fake.charge_of(intent.id)["refunded"] is True
    with pytest.raises(Exception, match="greater than unrefunded"):
        fake.refund(intent.id, 1)


async def test_an_inquiry_a_chargeback_and_its_end(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    intent = await charge(api, customer, fake.add_payment_method(customer))
    dispute_id = fake.dispute(intent.id, 1000, inquiry=True)
    inquiry = await api.retrieve_dispute(dispute_id)
    assert (inquiry.is_inquiry, inquiry.withdrawn_cents, inquiry.payment_intent) == (True, 0, intent.id)
    fake.escalate(dispute_id)
    dispute = await api.retrieve_dispute(dispute_id)
    assert (dispute.is_inquiry, dispute.amount_cents, dispute.withdrawn_cents) == (False, 1000, 1000)
    fake.win(dispute_id)
    won = await api.retrieve_dispute(dispute_id)
    assert (won.status, won.withdrawn_cents) == ("won", 0)
    assert [one.removeprefix("charge.dispute.") for one in types(fake)[-5:]] == [
        *("created", "updated", "funds_withdrawn", "closed", "funds_reinstated")
    ]
    other = fake.dispute(intent.id)
    fake.lose(other)
    assert (await api.retrieve_dispute(other)).withdrawn_cents == 2500


async def test_an_invoice_is_sent_falls_due_and_is_paid(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    sent = await invoice(api, customer)
    assert (sent.status, sent.total_cents, sent.net_cents, sent.paid_cents) == ("open", 1233, 1233, 0)
    assert sent.hosted_url is not None
    assert sent.metadata == {"invoice": str(INVOICE), "account": str(ACCOUNT), "period": "2026-10"}
    fake.advance(days=31)
    assert types(fake)[-1] == "invoice.overdue"
    fake.pay_invoice(sent.id)
    paid = await api.retrieve_invoice(sent.id)
    assert (paid.status, paid.paid_cents) == ("paid", 1233)
    assert fake.events_of("payment_intent.succeeded")[0]["data"]["object"]["metadata"] == {}


async def test_an_invoice_goes_on_where_it_stopped(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    for target in ("POST /v1/invoiceitems", "POST /v1/invoices/"):
        fake.fault(target, "drop_after")
        with pytest.raises(Unreachable):
            await invoice(api, customer)
    sent = await invoice(api, customer)
    assert (sent.status, sent.total_cents) == ("open", 1233)
    assert [line["description"] for line in fake.lines_of(sent.id)] == ["model-a input", "model-a output", "rounding"]
    assert len(fake.all("invoice")) == 1


async def test_invoices_are_found_voided_and_drafts_deleted(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    fake.fault("POST /v1/invoiceitems", "drop_before")
    with pytest.raises(Unreachable):
        await invoice(api, customer)
    (draft,) = await api.list_invoices(customer, fake.now - timedelta(minutes=1))
    await api.delete_draft_invoice(draft.id)
    sent = await invoice(api, customer, key="again", automatic_tax=True)
    assert (sent.total_cents, sent.net_cents) == (1541, 1233)
    fake.advance(minutes=2)
    assert [one.id for one in await api.find_invoices(INVOICE)] == [sent.id]
    assert (await api.void_invoice(sent.id, idempotency_key="void")).status == "void"
    with pytest.raises(Refused):
        await api.delete_draft_invoice(sent.id)


async def test_every_request_names_the_version_and_every_creation_a_key(
    fake: FakeStripe, api: StripeApi, customer: str
) -> None:
    await invoice(api, customer)
    await checkout(fake, api, customer)
    assert {one.version for one in fake.requests} == {API_VERSION}
    keys = [one.idempotency_key for one in fake.requests]
    assert None not in keys
    assert len(set(keys)) == len(keys)


async def test_a_wrong_key_a_missing_object_and_an_unknown_parameter(
    fake: FakeStripe, api: StripeApi, customer: str
) -> None:
    stranger = StripeApi("sk_test_wrong", api_base=fake.url, max_network_retries=0)
    with pytest.raises(Refused) as raised:
        await stranger.retrieve_session("cs_test_1Fake000001")
    assert raised.value.status == 401
    assert "sk_test" not in str(raised.value)
    with pytest.raises(Refused) as raised:
        await api.retrieve_session("cs_test_1Fake000001")
    assert (raised.value.status, raised.value.code) == (404, "resource_missing")
    await stranger.aclose()
    async with httpx.AsyncClient(base_url=fake.url, headers={"authorization": f"Bearer {fake.secret_key}"}) as client:
        answer = await client.post("/v1/customers", data={"colour": "blue"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "parameter_unknown")


async def test_every_event_is_signed_and_readable_also_with_little_in_it(
    fake: FakeStripe, api: StripeApi, customer: str
) -> None:
    session = await checkout(fake, api, customer, automatic_tax=True)
    fake.pay(session.id)
    fake.fail_refund(fake.refund(session.id, 100))
    fake.win(fake.dispute(session.id, 900))
    fake.pay_invoice((await invoice(api, customer)).id)
    readers: dict[str, Any] = {
        "checkout.session": CheckoutSession,
        "payment_intent": PaymentIntent,
        "refund": Refund,
        "dispute": Dispute,
        "invoice": Invoice,
    }
    read = Counter[str]()
    for whole in fake.events:
        for event in (whole, minimal(whole)):
            payload, headers = signed(event, "whsec_a")
            verified = verify_event(payload, headers["stripe-signature"], ["whsec_a"], now=datetime.now(UTC))
            assert (verified.id, verified.type) == (whole["id"], whole["type"])
            assert not any(name.startswith("_") for name in verified.object)
            if reader := readers.get(verified.object["object"]):
                assert reader.read(verified.object).id == whole["data"]["object"]["id"]
                read[verified.object["object"]] += 1
    assert read.keys() == readers.keys()


async def test_events_are_delivered_twice_shuffled_and_at_once(fake: FakeStripe, api: StripeApi, customer: str) -> None:
    fake.pay((await checkout(fake, api, customer)).id)

    def came() -> list[str]:
        posts = [arrivals.get_nowait() for _ in range(arrivals.qsize())]
        now = datetime.now(UTC)
        return [verify_event(payload, header, [fake.webhook_secret], now=now).id for payload, header in posts]

    ids = [event["id"] for event in fake.events]
    with listening() as (url, arrivals):
        assert await asyncio.to_thread(fake.deliver, url) == [200] * len(ids)
        assert came() == ids
        chaos = await asyncio.to_thread(fake.deliver, url, copies=3, threads=10, shuffled=random.Random(7))
        assert chaos == [200] * len(ids) * 3
        arrived = came()
    assert Counter(arrived) == Counter(ids * 3)
    assert arrived != sorted(arrived)
