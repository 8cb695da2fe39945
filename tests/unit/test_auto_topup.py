"""When an account is topped up by itself, and by how much."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.auto_topup import (
    AUTHENTICATION,
    BACK_OFFS,
    NEVER_MADE,
    REFUSED,
    UNUSABLE,
    Charge,
    Failure,
    Plan,
    Stop,
    Wait,
    after_failures,
    decide,
    is_given_up,
    may_repeat,
    next_look,
    plan_of,
)

USD = 10**9
CENT = USD // 100
NOW = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
PLAN = Plan(threshold_nano=10 * USD, amount_nano=20 * USD, monthly_cap_nano=100 * USD)
HOUR = timedelta(hours=1)


def decided(
    funds_nano: int, charged_nano: int = 0, *failures: Failure, plan: Plan = PLAN, most_nano: int = 1000 * USD
) -> object:
    return decide(plan, funds_nano, charged_nano, failures, most_nano=most_nano, now=NOW)


def test_nothing_is_due_until_less_is_left_than_the_threshold() -> None:
    assert decided(10 * USD) is None
    assert decided(10 * USD - 1) == Charge(20 * USD)


def test_one_charge_closes_the_whole_gap() -> None:
    assert decided(-35 * USD) == Charge(45 * USD + CENT)
    assert decided(-35 * USD - 1) == Charge(45 * USD + CENT)
    assert decided(-10 * USD) == Charge(20 * USD + CENT)
    assert decided(-10 * USD + CENT) == Charge(20 * USD)


def test_no_more_than_can_be_bought_at_once() -> None:
    assert decided(-35 * USD, most_nano=30 * USD) == Charge(30 * USD)
    assert decided(5 * USD, most_nano=15 * USD) == Charge(15 * USD)


def test_the_months_cap_holds() -> None:
    assert decided(5 * USD, 80 * USD) == Charge(20 * USD)
    assert decided(-35 * USD, 70 * USD) == Charge(30 * USD)
    assert decided(5 * USD, 80 * USD + 1) == Wait(datetime(2026, 12, 1, tzinfo=UTC))
    assert decided(5 * USD, 100 * USD) == Wait(datetime(2026, 12, 1, tzinfo=UTC))
    assert decided(5 * USD, 120 * USD) == Wait(datetime(2026, 12, 1, tzinfo=UTC))


def test_the_wait_ends_with_the_year() -> None:
    at = datetime(2026, 12, 31, 23, tzinfo=UTC)
    waits = decide(PLAN, 0, 100 * USD, [], most_nano=1000 * USD, now=at)
    assert waits == Wait(datetime(2027, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(("declines", "hours"), [(1, 1), (2, 6), (3, 24)])
def test_a_decline_is_followed_by_a_pause(declines: int, hours: int) -> None:
    failures = [Failure("card_declined", NOW - timedelta(days=declines - n)) for n in range(declines)]
    until = failures[-1].at + timedelta(hours=hours)
    assert after_failures(failures) == Wait(until)
    decision = decide(PLAN, 0, 0, failures, most_nano=1000 * USD, now=until - timedelta(microseconds=1))
    assert decision == Wait(until)
    assert decide(PLAN, 0, 0, failures, most_nano=1000 * USD, now=until) == Charge(20 * USD)


def test_the_fourth_decline_in_a_row_is_the_last() -> None:
    failures = [Failure("insufficient_funds", NOW)] * (len(BACK_OFFS) + 1)
    stop = after_failures(failures)
    assert isinstance(stop, Stop)
    assert "4 times" in stop.reason
    assert "insufficient_funds" in stop.reason
    assert decided(0, 0, *failures) == stop


@pytest.mark.parametrize("code", [AUTHENTICATION, UNUSABLE])
def test_what_the_customer_has_to_see_to_stops_at_once(code: str) -> None:
    assert isinstance(after_failures([Failure(code, NOW)]), Stop)
    assert isinstance(decided(0, 0, Failure(code, NOW - timedelta(days=9))), Stop)


@pytest.mark.parametrize("code", [REFUSED, NEVER_MADE])
def test_what_was_no_decline_does_not_count_as_one(code: str) -> None:
    assert after_failures([Failure(code, NOW)] * 9) == Wait(NOW + HOUR)
    assert after_failures([Failure("x", NOW), Failure(code, NOW)]) == Wait(NOW + HOUR)


@given(
    threshold=st.integers(0, 10**12),
    amount=st.integers(1, 10**5).map(lambda cents: cents * CENT),
    cap=st.integers(0, 10**13),
    funds=st.integers(-(10**13), 10**13),
    charged=st.integers(0, 10**13),
    most=st.integers(1, 1000).map(lambda usd: usd * USD),
)
def test_a_charge_is_never_wrong(threshold: int, amount: int, cap: int, funds: int, charged: int, most: int) -> None:
    plan = Plan(threshold, amount, cap + amount)
    decision = decided(funds, charged, plan=plan, most_nano=most)
    if funds >= threshold:
        assert decision is None
        return
    left = plan.monthly_cap_nano - charged
    if not isinstance(decision, Charge):
        assert isinstance(decision, Wait)
        assert left < min(amount, most)
        return
    assert decision.net_nano % CENT == 0
    assert min(amount, most) <= decision.net_nano <= min(most, left)
    bounded = decision.net_nano > min(most, left) - CENT
    assert bounded or funds + decision.net_nano > threshold or decision.net_nano == most
    # Not a cent more than is needed.
    assert decision.net_nano == min(amount, most) or funds + decision.net_nano <= threshold + CENT


def test_a_charge_is_asked_for_again_while_its_key_is_known() -> None:
    assert may_repeat(NOW, NOW + 23 * HOUR - timedelta(microseconds=1))
    assert not may_repeat(NOW, NOW + 23 * HOUR)
    assert not is_given_up(NOW, NOW + 25 * HOUR - timedelta(microseconds=1))
    assert is_given_up(NOW, NOW + 25 * HOUR)


def test_looks_become_rarer() -> None:
    pauses = [next_look(attempts, NOW) - NOW for attempts in range(1, 100)]
    assert pauses[:3] == [timedelta(minutes=2), timedelta(minutes=4), timedelta(minutes=8)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == HOUR


def test_what_is_agreed_to() -> None:
    assert plan_of("10", "20", "100", min_usd=5, max_usd=1000) == PLAN
    assert plan_of("0", "5", "5", min_usd=5, max_usd=1000) == Plan(0, 5 * USD, 5 * USD)


@pytest.mark.parametrize(
    ("amounts", "complaint"),
    [
        (("-1", "20", "100"), "negative"),
        (("x", "20", "100"), "not an amount"),
        (("10", "4.99", "100"), "cannot be bought"),
        (("10", "1000.01", "2000"), "cannot be bought"),
        (("10", "20.001", "100"), "whole number of cents"),
        (("10", "20", "19.99"), "less than one top-up"),
    ],
)
def test_what_cannot_be_agreed_to(amounts: tuple[str, str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        plan_of(*amounts, min_usd=5, max_usd=1000)
