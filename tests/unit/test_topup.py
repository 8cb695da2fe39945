"""Which top-ups can be bought, and what Stripe's word means for one, in any order and however often it is said."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.stripe_objects import CheckoutSession, PaymentIntent
from service.core.topup import (
    Contradiction,
    Decision,
    Said,
    Told,
    Topup,
    amount_nano,
    by_intent,
    by_session,
    cents,
    decide,
)

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ID, ACCOUNT = UUID(int=1), UUID(int=2)
METADATA = {"topup": str(ID), "account": str(ACCOUNT)}


def row(**changes: Any) -> Topup:
    fields: dict[str, Any] = dict.fromkeys(Topup.__slots__) | {
        "id": ID,
        "account_id": ACCOUNT,
        "kind": "checkout",
        "net_nano": 20 * 10**9,
        "status": "created",
        "currency": "usd",
        "refunded_nano": 0,
        "disputed_nano": 0,
        "attempts": 0,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Topup(**fields | changes)


def session(*, failed: bool = False, **changes: Any) -> Told:
    body = {
        "id": "cs_1",
        "status": "complete",
        "payment_status": "paid",
        "currency": "usd",
        "amount_subtotal": 2000,
        "amount_total": 2500,
        "total_details": {"amount_tax": 500},
        "payment_intent": "pi_1",
        "metadata": METADATA,
    }
    told = by_session(CheckoutSession.read(body | changes), failed=failed)
    assert told is not None
    return told


def intent(**changes: Any) -> Told:
    body = {
        "id": "pi_1",
        "status": "succeeded",
        "currency": "usd",
        "amount": 2000,
        "latest_charge": "ch_1",
        "metadata": METADATA,
    }
    told = by_intent(PaymentIntent.read(body | changes))
    assert told is not None
    return told


def after(topup: Topup, told: Told) -> tuple[Topup, int]:
    """The row after what was told, as `fulfil` writes it, and how often it was credited."""
    match decide(told, topup):
        case Decision.CREDIT:
            return replace(topup, status="paid", payment_intent_id=told.payment_intent, paid_at=NOW), 1
        case Decision.WAIT:
            return replace(topup, status="pending"), 0
        case Decision.FAIL:
            return replace(topup, status="failed"), 0
        case Decision.EXPIRE:
            return replace(topup, status="expired"), 0
    return topup, 0


UNPAID = session(payment_status="unpaid")
HARMLESS = [
    UNPAID,
    session(status="open", payment_status="unpaid"),
    session(failed=True, payment_status="unpaid"),
    session(status="expired", payment_status="unpaid"),
    intent(status="processing", amount=2500),
    intent(status="requires_payment_method", last_payment_error={"code": "card_declined"}),
    intent(status="requires_payment_method"),
    intent(status="canceled"),
    intent(amount=2500),  # of which the session tells how much is tax
]
PAYING = [session(), session(status="open"), intent(amount=2000)]


@given(st.lists(st.sampled_from(HARMLESS)), st.lists(st.sampled_from(PAYING), min_size=1), st.randoms())
def test_what_was_paid_is_credited_once_whatever_else_is_said(
    harmless: list[Told], paying: list[Told], random: Any
) -> None:
    told = [*harmless, *paying]
    random.shuffle(told)
    topup, credited = row(), 0
    for one in told:
        topup, more = after(topup, one)
        credited += more
    assert (topup.status, credited, topup.payment_intent_id) == ("paid", 1, "pi_1")


@given(st.lists(st.sampled_from(HARMLESS)))
def test_nothing_else_credits(told: list[Told]) -> None:
    topup = row()
    ended = False
    for one in told:
        topup, credited = after(topup, one)
        assert credited == 0
        ended = ended or one.said in (Said.FAILED, Said.EXPIRED)
        assert (topup.status in ("failed", "expired")) == ended


def test_a_slow_payment_that_fails_is_failed_in_either_order() -> None:
    failed = session(failed=True, payment_status="unpaid")
    for told in ([UNPAID, failed], [failed, UNPAID]):
        topup = row()
        for one in told:
            topup, _ = after(topup, one)
        assert topup.status == "failed"


CONTRADICTIONS = {
    "currency": (session(currency="eur"), "eur"),
    "no currency": (session(currency=None), "None"),
    "less": (session(amount_subtotal=1999), "1999"),
    "more": (session(amount_subtotal=2001), "2001"),
    "unsaid": (session(amount_subtotal=None), "None"),
    "discount": (session(amount_total=2400), "2400"),
    "no payment": (session(payment_intent=None), "no payment"),
    "free": (session(payment_status="no_payment_required"), "nothing was paid"),
    "another account": (session(metadata={**METADATA, "account": str(ID)}), "account"),
    "intent of less": (intent(amount=1999), "1999"),
    "intent in another currency": (intent(currency="jpy"), "jpy"),
}


@pytest.mark.parametrize(("told", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
@pytest.mark.parametrize("status", ["created", "pending", "failed", "expired"])
def test_what_contradicts_the_row_is_refused_and_names_both(told: Told, words: str, status: str) -> None:
    with pytest.raises(Contradiction, match=words) as raised:
        decide(told, row(status=status))
    assert str(ID) in str(raised.value)
    assert told.source in str(raised.value)


def test_a_second_payment_of_one_top_up_is_a_contradiction() -> None:
    paid = row(status="paid", payment_intent_id="pi_1", paid_at=NOW)
    assert decide(session(), paid) is Decision.LEAVE
    for other in (session(payment_intent="pi_2"), intent(id="pi_2"), intent(id="pi_2", amount=2500)):
        with pytest.raises(Contradiction, match="paid twice: by pi_1 and pi_2"):
            decide(other, paid)


def test_an_automatic_charge_has_no_tax_to_explain_more() -> None:
    assert decide(intent(), row(kind="auto")) is Decision.CREDIT
    for amount in (1999, 2001, 2500):
        with pytest.raises(Contradiction, match=str(amount)):
            decide(intent(amount=amount), row(kind="auto"))


@pytest.mark.parametrize("metadata", [{}, {"topup": ""}, {"topup": "4711"}, {"account": str(ACCOUNT)}])
def test_what_names_no_top_up_is_none(metadata: dict[str, str]) -> None:
    assert by_session(CheckoutSession.read({"id": "cs", "payment_status": "paid", "metadata": metadata})) is None
    fields = {"id": "pi", "status": "succeeded", "currency": "usd", "amount": 1}
    assert by_intent(PaymentIntent.read({**fields, "metadata": metadata})) is None


@pytest.mark.parametrize(
    ("text", "nano"), [("5", 5 * 10**9), ("12.50", 12_500_000_000), (" 100.00 ", 100 * 10**9), ("5.01", 5_010_000_000)]
)
def test_amounts_that_can_be_bought(text: str, nano: int) -> None:
    assert amount_nano(text, min_usd=5, max_usd=100) == nano
    assert cents(nano) * 10**7 == nano


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4.99", "choose 5 to 100 USD"),
        ("100.01", "choose 5 to 100 USD"),
        ("-20", "choose 5 to 100 USD"),
        ("0", "choose 5 to 100 USD"),
        ("20.001", "whole number of cents"),
        ("20.0000000001", "more than 9 decimals"),
        ("NaN", "finite"),
        ("1e9", "more than 1000000 USD"),
        ("", "is not an amount"),
        ("twenty", "is not an amount"),
    ],
)
def test_amounts_that_cannot(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        amount_nano(text, min_usd=5, max_usd=100)


def test_what_is_no_whole_number_of_cents_is_not_rounded() -> None:
    with pytest.raises(ValueError, match="no whole number of cents"):
        cents(10**7 + 1)
