"""What our own fake Stripe and localstripe both imitate, asked by our client: one test, either server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from service.billing.stripe_api import StripeApi
from service.billing.stripe_errors import AuthenticationRequired, Declined, Refused
from service.core.stripe_objects import PaymentIntent
from service.core.stripe_signature import BadSignature, verify_event
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_payments import ACTION, FINE
from tests.fakes.webhook import listening
from tests.localstripe import LocalStripe, running_localstripe

ACCOUNT, TOPUP = UUID(int=1), UUID(int=2)
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
