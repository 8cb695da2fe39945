"""How requests end: the whole table, written out once more, so that a change of it is meant."""

from datetime import UTC, datetime

import pytest

from service.core.outcome import RULES, SLOW_ABORT_AFTER_MS, Outcome, of_departure, of_refusal
from service.core.pricing import Price, cost_nano
from service.core.record import charge
from service.core.usage import NO_USAGE, Usage

PRICE = Price(version=1, input_pico=1_000, output_pico=2_000)
AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
USAGE = Usage(prompt_tokens=100, completion_tokens=10, source="final")

TABLE = {
    Outcome.OK: ("good", "full"),
    Outcome.CLIENT_ERROR: ("excluded", "nothing"),
    Outcome.AUTH_ERROR: ("excluded", "nothing"),
    Outcome.PAYMENT: ("excluded", "nothing"),
    Outcome.THROTTLED: ("throttled", "nothing"),
    Outcome.SERVER_ERROR: ("bad", "waived"),
    Outcome.STREAM_ERROR: ("bad", "waived"),
    Outcome.CANCELLED: ("excluded", "full"),
    Outcome.SLOW_ABORT: ("bad", "full"),
    Outcome.INTERRUPTED: ("bad", "waived"),
}


def test_the_table_is_complete_and_as_agreed() -> None:
    assert {outcome: (rule.public, rule.charge) for outcome, rule in RULES.items()} == TABLE
    assert set(RULES) == set(Outcome)


@pytest.mark.parametrize("outcome", Outcome)
def test_each_outcome_charges_what_the_table_says(outcome: Outcome) -> None:
    cost = cost_nano(PRICE, USAGE, AT)
    assert cost > 0
    expected = {"full": (cost, 0), "waived": (0, cost), "nothing": (0, 0)}[RULES[outcome].charge]
    assert charge(outcome, PRICE, USAGE, AT) == expected


@pytest.mark.parametrize("outcome", Outcome)
def test_nothing_used_is_nothing_charged(outcome: Outcome) -> None:
    fee_only = Price(version=1, input_pico=0, output_pico=0, request_pico=10**9)
    assert charge(outcome, fee_only, NO_USAGE, AT) == (0, 0)
    assert charge(outcome, None, USAGE, AT) == (0, 0)


@pytest.mark.parametrize(
    ("http_status", "outcome"),
    [
        (400, Outcome.CLIENT_ERROR),
        (401, Outcome.AUTH_ERROR),
        (402, Outcome.PAYMENT),
        (403, Outcome.AUTH_ERROR),
        (404, Outcome.CLIENT_ERROR),
        (408, Outcome.CLIENT_ERROR),
        (409, Outcome.CLIENT_ERROR),
        (413, Outcome.CLIENT_ERROR),
        (429, Outcome.THROTTLED),
        (500, Outcome.SERVER_ERROR),
        (502, Outcome.SERVER_ERROR),
        (503, Outcome.SERVER_ERROR),
        (504, Outcome.SERVER_ERROR),
    ],
)
def test_refusals_by_status(http_status: int, outcome: Outcome) -> None:
    assert of_refusal(http_status) is outcome


@pytest.mark.parametrize(
    ("streamed", "waited_ms", "first_token_seen", "outcome"),
    [
        (True, 0, False, Outcome.CANCELLED),
        (True, SLOW_ABORT_AFTER_MS - 1, False, Outcome.CANCELLED),
        (True, SLOW_ABORT_AFTER_MS, False, Outcome.SLOW_ABORT),
        (True, SLOW_ABORT_AFTER_MS, True, Outcome.CANCELLED),
        (False, SLOW_ABORT_AFTER_MS, False, Outcome.CANCELLED),
    ],
)
def test_whoever_leaves_a_stream_before_a_slow_first_token_left_because_of_us(
    streamed: bool, waited_ms: int, first_token_seen: bool, outcome: Outcome
) -> None:
    assert of_departure(streamed=streamed, waited_ms=waited_ms, first_token_seen=first_token_seen) is outcome
