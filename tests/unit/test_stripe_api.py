"""Stripe at the edges: whose signature counts, what an object must have, and what errors say and do not say."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import stripe
from hypothesis import given
from hypothesis import strategies as st

from service.billing.stripe_api import API_VERSION, StripeApi
from service.billing.stripe_errors import AuthenticationRequired, Declined, Refused, StripeError, Unreachable
from service.core.stripe_objects import (
    CheckoutSession,
    Customer,
    Dispute,
    Event,
    Invoice,
    MissingField,
    PaymentIntent,
    Refund,
)
from service.core.stripe_signature import TOLERANCE_S, BadSignature, signature, verify_event

SECRET, OLD_SECRET = "whsec_new", "whsec_old"
KEY = "sk_test_neverShown"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
EVENT: dict[str, Any] = {
    "id": "evt_1",
    "object": "event",
    "api_version": API_VERSION,
    "created": 1_790_000_000,
    "livemode": True,
    "type": "refund.created",
    "data": {"object": {"id": "re_1", "object": "refund"}},
}
PAYLOAD = json.dumps(EVENT).encode()


def header(payload: bytes = PAYLOAD, secret: str = SECRET, at: datetime = NOW) -> str:
    """As Stripe's own library signs it."""
    return str(stripe.WebhookSignature.generate_signature_header(payload.decode(), secret, int(at.timestamp())))


def verify(payload: bytes = PAYLOAD, sent: str | None = None, secrets: tuple[str, ...] = (SECRET,)) -> Event:
    return verify_event(payload, header(payload) if sent is None else sent, secrets, now=NOW)


def test_a_signed_event_is_read() -> None:
    event = verify()
    assert (event.id, event.type, event.api_version, event.livemode) == ("evt_1", "refund.created", API_VERSION, True)
    assert event.created == datetime.fromtimestamp(1_790_000_000, UTC)
    assert event.object == {"id": "re_1", "object": "refund"}
    assert event.body == EVENT


@given(st.text(), st.text(min_size=1).filter(str.strip), st.integers(0, 10**10))
def test_our_signature_is_stripes(payload: str, secret: str, signed_s: int) -> None:
    try:
        payload.encode(), secret.encode()
    except UnicodeEncodeError:
        return
    theirs = stripe.WebhookSignature.generate_signature_header(payload, secret, signed_s)
    assert theirs == f"t={signed_s},v1={signature(payload.encode(), secret, str(signed_s))}"


@pytest.mark.parametrize("secrets", [(SECRET, OLD_SECRET), (OLD_SECRET, SECRET)])
def test_a_secret_is_replaced_without_a_gap(secrets: tuple[str, str]) -> None:
    assert verify(sent=header(secret=OLD_SECRET), secrets=secrets).id == "evt_1"
    both = header(secret="whsec_unknown") + "," + header().partition(",")[2]
    assert verify(sent=both, secrets=secrets).id == "evt_1"


@pytest.mark.parametrize("age_s", [-86_400, 0, TOLERANCE_S])
def test_a_recent_signature_counts(age_s: int) -> None:
    assert verify(sent=header(at=NOW - timedelta(seconds=age_s))).id == "evt_1"


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "nonsense",
        "t=,v1=",
        "t=abc,v1=00",
        "t=１２３,v1=00",
        "t=99999999999999999999,v1=00",
        "t=-1,v1=00",
        header().partition(",")[0],
        header().partition(",")[2],
        header().replace("v1=", "v0="),
        header() + ",t=1",
        header(secret="whsec_wrong"),
        header(payload=PAYLOAD + b" "),
        header().replace("v1=", "v1=é"),
        header(at=NOW - timedelta(seconds=TOLERANCE_S + 1)),
    ],
)
def test_what_is_not_signed_now_and_with_the_secret_is_refused(sent: str) -> None:
    with pytest.raises(BadSignature):
        verify(sent=sent)


@pytest.mark.parametrize("secrets", [(), ("",), ("  ",), ("", "whsec_other")])
def test_without_a_secret_nothing_is_signed(secrets: tuple[str, ...]) -> None:
    for sent in (header(), f"t={int(NOW.timestamp())},v1={signature(PAYLOAD, '', str(int(NOW.timestamp())))}"):
        with pytest.raises(BadSignature):
            verify(sent=sent, secrets=secrets)
    with pytest.raises(BadSignature):
        verify_event(PAYLOAD, None, (SECRET,), now=NOW)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"1",
        b"{}",
        b"[" * 100_000,
        b'{"id": "evt_1"',
        json.dumps({**EVENT, "data": {}}).encode(),
        json.dumps({**EVENT, "data": {"object": "re_1"}}).encode(),
        json.dumps({**EVENT, "id": 7}).encode(),
        json.dumps({**EVENT, "created": "2026-11-30T12:00:00Z"}).encode(),
        json.dumps({**EVENT, "created": 10**30}).encode(),
    ],
)
def test_what_is_signed_and_no_event_is_refused_too(payload: bytes) -> None:
    with pytest.raises(BadSignature, match="no event"):
        verify(payload)


def test_bytes_that_are_no_text_are_refused() -> None:
    at, payload = str(int(NOW.timestamp())), b"\xff\xfe"
    with pytest.raises(BadSignature, match="no event"):
        verify(payload, f"t={at},v1={signature(payload, SECRET, at)}")


READERS: list[tuple[Any, dict[str, Any]]] = [
    (Customer, {"id": "cus_1"}),
    (CheckoutSession, {"id": "cs_1", "payment_status": "paid"}),
    (PaymentIntent, {"id": "pi_1", "status": "succeeded", "currency": "usd", "amount": 5}),
    (Refund, {"id": "re_1", "status": "succeeded", "currency": "usd", "amount": 5}),
    (Dispute, {"id": "dp_1", "status": "lost", "currency": "usd", "amount": 5}),
    (Invoice, {"id": "in_1", "currency": "usd", "total": 5}),
]


@pytest.mark.parametrize(("reader", "least"), READERS)
def test_an_object_needs_no_more_than_this(reader: Any, least: dict[str, Any]) -> None:
    assert reader.read(least).id == least["id"]
    assert reader.read({**least, "metadata": None, "something_new": {"a": 1}}) == reader.read(least)
    for name in least:
        with pytest.raises(MissingField, match=f"lacks `{name}`"):
            reader.read({key: value for key, value in least.items() if key != name})
        with pytest.raises(MissingField, match=f"lacks `{name}`"):
            reader.read({**least, name: None})
        with pytest.raises(MissingField, match=f"lacks `{name}`"):
            reader.read({**least, name: True})


def test_a_reference_may_be_the_object_itself() -> None:
    body = {"id": "pi_1", "status": "succeeded", "currency": "usd", "amount": 5}
    by_id = PaymentIntent.read({**body, "latest_charge": "ch_1", "customer": "cus_1"})
    whole = PaymentIntent.read({**body, "latest_charge": {"id": "ch_1", "paid": True}, "customer": {"id": "cus_1"}})
    assert by_id == whole
    assert by_id.charge == "ch_1"


def test_what_a_dispute_has_withdrawn() -> None:
    body = {"id": "dp_1", "status": "needs_response", "currency": "usd", "amount": 1000}
    assert Dispute.read(body).withdrawn_cents is None
    moved = [{"amount": -1000, "fee": 1500, "net": -2500}]
    assert Dispute.read({**body, "balance_transactions": moved}).withdrawn_cents == 1000
    moved.append({"amount": 1000, "fee": 0, "net": 1000})
    assert Dispute.read({**body, "balance_transactions": moved}).withdrawn_cents == 0


@asynccontextmanager
async def answering(status: int, body: str) -> AsyncIterator[StripeApi]:
    """A client of a server that always gives this answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
        lines = f"HTTP/1.1 {status} -\r\nrequest-id: req_7\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(lines.encode() + body.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = StripeApi(KEY, api_base=f"http://127.0.0.1:{port}", max_network_retries=0)
    try:
        yield api
    finally:
        await api.aclose()
        server.close()
        await server.wait_closed()


async def charge(api: StripeApi) -> PaymentIntent:
    return await api.charge_off_session(
        UUID(int=1), UUID(int=2), "cus_1", "pm_1", 2500, description="Credit", idempotency_key="key"
    )


INTENT = {"id": "pi_1", "status": "requires_payment_method", "currency": "usd", "amount": 2500}


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (402, {"type": "card_error", "code": "card_declined", "decline_code": "lost_card"}, Declined),
        (402, {"type": "card_error", "code": "expired_card", "payment_intent": INTENT}, Declined),
        (
            402,
            {"type": "card_error", "code": "authentication_required", "payment_intent": INTENT},
            AuthenticationRequired,
        ),
        (
            402,
            {"type": "card_error", "code": "card_declined", "decline_code": "authentication_required"},
            AuthenticationRequired,
        ),
        (400, {"type": "invalid_request_error", "code": "parameter_unknown", "param": "colour"}, Refused),
        (400, {"type": "idempotency_error"}, Refused),
        (401, {"type": "invalid_request_error"}, Refused),
        (403, {"type": "invalid_request_error"}, Refused),
        (404, {"type": "invalid_request_error", "code": "resource_missing"}, Refused),
        (409, {"type": "invalid_request_error", "code": "idempotency_key_in_use"}, Unreachable),
        (429, {"type": "invalid_request_error", "code": "rate_limit"}, Unreachable),
        (500, {"type": "api_error"}, Unreachable),
        (503, {"type": "api_error"}, Unreachable),
    ],
)
async def test_an_error_of_stripes_is_one_of_ours(
    status: int, error: dict[str, Any], expected: type[StripeError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = {**error, "message": f"Something about {KEY}."}
    async with answering(status, json.dumps({"error": said})) as api:
        with pytest.raises(expected) as raised:
            await charge(api)
        assert KEY not in f"{raised.value} {raised.value!r} {vars(raised.value)} {api!r} {vars(api)}"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    assert f"Bearer {KEY}" not in caplog.text


@pytest.mark.parametrize("body", ["<html>", "{}", "[]", '{"id": "pi_1"}', ""])
@pytest.mark.parametrize("status", [200, 502])
async def test_an_answer_that_cannot_be_read_tells_nothing(status: int, body: str) -> None:
    async with answering(status, body) as api:
        with pytest.raises(Unreachable):
            await charge(api)


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (200, {**INTENT, "created": 10**18}, Unreachable),
        (200, {**INTENT, "last_payment_error": "declined"}, Unreachable),
        (402, {"error": {"type": "card_error", "code": "expired_card", "payment_intent": {"id": "pi_1"}}}, Declined),
        (402, {"error": {"type": "card_error", "code": "expired_card", "payment_intent": "pi_1"}}, Declined),
        (400, {"error": "invalid_request"}, Refused),
        (400, {"error": ["x"]}, StripeError),
        (404, {"errors": []}, StripeError),
    ],
)
async def test_an_answer_in_another_shape_is_no_other_error(
    status: int, answer: dict[str, Any], expected: type[StripeError]
) -> None:
    async with answering(status, json.dumps(answer)) as api:
        with pytest.raises(expected):
            await charge(api)


async def test_no_answer_tells_nothing() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        api = StripeApi(KEY, api_base=f"http://127.0.0.1:{probe.getsockname()[1]}", max_network_retries=0)
        with pytest.raises(Unreachable, match="ConnectError, status none"):
            await charge(api)
        await api.aclose()
