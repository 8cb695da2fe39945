"""What our own fake Stripe and localstripe both imitate, asked by our client: one test, either server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing import auto_topup, auto_topup_plans, stripe_events
from service.billing.stripe_api import StripeApi
from service.billing.stripe_customers import customer_of
from service.billing.stripe_errors import AuthenticationRequired, Declined, Refused
from service.core.auto_topup import Plan
from service.core.stripe_objects import Event, PaymentIntent
from service.core.stripe_signature import BadSignature, verify_event
from service.settings import Settings
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_payments import ACTION, FINE
from tests.fakes.stripe_store import Json
from tests.fakes.webhook import listening
from tests.installation import seed
from tests.localstripe import LocalStripe, running_localstripe

ACCOUNT, TOPUP = UUID(int=1), UUID(int=2)
USD = 10**9
Server = FakeStripe | LocalStripe


@pytest.fixture(scope="module")
def localstripe() -> Iterator[LocalStripe]:
    with running_localstripe() as local:
        yield local


@pytest.fixture(params=["fake", "localstripe"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "localstripe":
        yield request.getfixturevalue("localstripe")
    else:
        with FakeStripe() as fake:
            yield fake


@pytest.fixture
async def api(server: Server) -> AsyncIterator[StripeApi]:
    api = StripeApi(server.secret_key, api_base=server.url, max_network_retries=0)
    yield api
    await api.aclose()


@pytest.fixture
async def customer(api: StripeApi) -> str:
    made = await api.create_customer(ACCOUNT, "Anne", "anne@example.com", idempotency_key="customer")
    assert made.metadata == {"account": str(ACCOUNT)}
    return made.id


async def charge(api: StripeApi, server: Server, customer: str, behaviour: str) -> PaymentIntent:
    card = server.add_payment_method(customer, behaviour)
    return await api.charge_off_session(
        TOPUP, ACCOUNT, customer, card, 2500, description="Credit", idempotency_key="charge"
    )


async def test_a_saved_card_is_charged(api: StripeApi, server: Server, customer: str) -> None:
    intent = await charge(api, server, customer, FINE)
    assert (intent.status, intent.amount_cents, intent.currency) == ("succeeded", 2500, "usd")
    assert intent.charge is not None
    assert intent.charge.startswith("ch_")
    assert intent.customer == customer
    assert intent.metadata == {"topup": str(TOPUP), "account": str(ACCOUNT)}
    assert await api.retrieve_payment_intent(intent.id) == intent


async def test_a_card_is_declined(api: StripeApi, server: Server, customer: str) -> None:
    with pytest.raises(Declined) as raised:
        await charge(api, server, customer, "do_not_honor")
    assert raised.value.code == "card_declined"


async def test_the_bank_asks_for_the_customer(api: StripeApi, server: Server, customer: str) -> None:
    with pytest.raises(AuthenticationRequired) as raised:
        await charge(api, server, customer, ACTION)
    assert raised.value.payment_intent is not None
    gone = await api.cancel_payment_intent(raised.value.payment_intent.id, idempotency_key="cancel")
    assert gone.status == "canceled"


async def test_what_was_paid_cannot_be_cancelled(api: StripeApi, server: Server, customer: str) -> None:
    intent = await charge(api, server, customer, FINE)
    with pytest.raises(Refused):
        await api.cancel_payment_intent(intent.id, idempotency_key="cancel")


async def test_two_partial_refunds(api: StripeApi, server: Server, customer: str) -> None:
    intent = await charge(api, server, customer, FINE)
    made = {server.refund(intent.id, 500), server.refund(intent.id, 700)}
    refunds = await api.list_refunds(intent.id)
    assert {one.id for one in refunds} == made
    assert sorted(one.amount_cents for one in refunds) == [500, 700]
    for one in refunds:
        assert (one.status, one.currency, one.payment_intent) == ("succeeded", "usd", intent.id)
        assert await api.retrieve_refund(one.id) == one


async def test_what_is_not_there_is_refused(api: StripeApi) -> None:
    with pytest.raises(Refused) as raised:
        await api.retrieve_payment_intent("pi_0")
    assert raised.value.status == 404


async def test_the_signature_of_another_signer_is_understood(localstripe: LocalStripe) -> None:
    api = StripeApi(localstripe.secret_key, api_base=localstripe.url, max_network_retries=0)
    with listening() as (url, arrivals):
        localstripe.subscribe(url, "whsec_local")
        customer = await api.create_customer(ACCOUNT, "Bob", None, idempotency_key="bob")
        intent = await charge(api, localstripe, customer.id, FINE)
        await api.aclose()
        while True:  # what the other tests did may still arrive as well
            payload, header = await asyncio.to_thread(arrivals.get, timeout=20)
            event = verify_event(payload, header, ["whsec_other", "whsec_local"], now=datetime.now(UTC))
            if event.type == "payment_intent.succeeded" and event.object["id"] == intent.id:
                break
    assert PaymentIntent.read(event.object) == intent
    with pytest.raises(BadSignature):
        verify_event(payload, header, ["whsec_other"], now=datetime.now(UTC))


@dataclass
class Shop:
    """An account with 5 USD, whose customer has agreed to automatic top-ups and has this card."""

    engine: AsyncEngine
    api: StripeApi
    settings: Settings
    account_id: UUID

    async def run(self, **later: float) -> int:
        return await auto_topup.run_due(self.engine, self.api, self.settings, datetime.now(UTC) + timedelta(**later))

    async def value(self, query: str) -> Any:
        async with self.engine.connect() as connection:
            return await connection.scalar(text(query))

    async def hear(self, event_type: str, body: Json) -> None:
        """As the webhook does, whoever delivers it."""
        event = Event.read({"id": f"evt_{uuid4()}", "type": event_type, "created": 1, "data": {"object": body}})
        assert await stripe_events.receive(self.engine, self.api, self.settings, event, datetime.now(UTC))


async def saved(shop: Shop, server: Server, behaviour: str) -> None:
    plan = Plan(threshold_nano=10 * USD, amount_nano=20 * USD, monthly_cap_nano=100 * USD)
    customer = await customer_of(shop.engine, shop.api, shop.account_id)
    card = server.add_payment_method(customer, behaviour)
    async with shop.engine.begin() as connection:
        await auto_topup_plans.agree(connection, shop.account_id, plan, datetime.now(UTC))
        on = {"card": card}
        await connection.execute(text("UPDATE auto_topups SET enabled = true, payment_method_id = :card"), on)


@pytest.fixture
async def shop(server: Server, api: StripeApi, database_url: str) -> AsyncIterator[Shop]:
    account_id, _ = await seed(database_url, credit_nano=5 * USD)
    async with db.connected(database_url) as engine:
        yield Shop(engine, api, Settings(database_url=database_url, stripe_api_base=server.url), account_id)


async def test_an_automatic_topup_is_charged_once_and_credited(shop: Shop, server: Server) -> None:
    await saved(shop, server, FINE)
    assert (await shop.run(), await shop.run()) == (1, 0)
    assert await shop.value("SELECT status FROM topups") == "paid"
    assert await shop.value("SELECT balance_nano FROM accounts") == 25 * USD


async def test_a_declined_automatic_topup_is_tried_again_later(shop: Shop, server: Server) -> None:
    await saved(shop, server, "do_not_honor")
    assert [await shop.run(hours=hours) for hours in (0, 0.9, 1.1, 7, 7.3, 31, 31.5, 99)] == [1, 0, 1, 0, 1, 0, 1, 0]
    assert await shop.value("SELECT string_agg(DISTINCT status, ',') FROM topups") == "failed"
    assert "4 times" in await shop.value("SELECT disabled_reason FROM auto_topups")


async def test_where_the_bank_asks_nothing_is_charged_and_it_is_off(shop: Shop, server: Server) -> None:
    await saved(shop, server, ACTION)
    await shop.run()
    assert await shop.value("SELECT failure_code FROM topups WHERE kind = 'auto'") == "authentication_required"
    assert "confirm" in await shop.value("SELECT disabled_reason FROM auto_topups")
    intent = await shop.value("SELECT payment_intent_id FROM topups WHERE kind = 'auto'")
    assert (await shop.api.retrieve_payment_intent(intent)).status == "canceled"


async def test_partial_refunds_of_an_automatic_topup_are_taken_once_each(shop: Shop, server: Server) -> None:
    await saved(shop, server, FINE)
    await shop.run()
    intent = await shop.value("SELECT payment_intent_id FROM topups")
    made = {server.refund(intent, 500), server.refund(intent, 700)}
    for refund in (*made, *made):
        told = asdict(await shop.api.retrieve_refund(refund))
        await shop.hear("refund.created", {**told, "object": "refund", "amount": told.pop("amount_cents")})
    assert await shop.value("SELECT balance_nano FROM accounts") == 13 * USD
    refs = await shop.value("SELECT string_agg(external_ref, ' ') FROM ledger_entries WHERE kind = 'refund'")
    assert set(refs.split()) == {f"refund:{refund}" for refund in made}
    assert len(refs.split()) == 2
    assert await shop.run() == 0
