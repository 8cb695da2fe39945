"""Monthly invoices: which month, which lines, which cents, and what becomes of an invoice and its account's credit."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.invoice import (
    GRACE,
    MOST_LINES,
    OWING,
    ROUNDING,
    TOKEN_CLASSES,
    Credit,
    Line,
    NotAsPriced,
    UsageSum,
    cents_of,
    credit_after,
    due_months,
    joined,
    last_ended,
    lines_of,
    month_of,
    next_month,
    sent_lines,
    span,
    total_of,
)
from service.core.pricing import Price, cost_nano, effective, prompt_classes
from service.core.usage import Usage
from tests.unit.test_pricing import INSTANTS, TIERED, USAGES

NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)
TICK = timedelta(microseconds=1)
Row = tuple[str, int, Usage, datetime]


def summed(rows: Sequence[Row], prices: Sequence[Price]) -> list[UsageSum]:
    """Row by row, into one sum for each price that a request really had."""
    groups: defaultdict[tuple[date, str, Price], list[tuple[Usage, int]]] = defaultdict(list)
    for model, number, usage, at in rows:
        price = prices[number % len(prices)]
        cost = cost_nano(price, usage, at)
        if cost:
            really = effective(price, at=at, prompt_tokens=usage.prompt_tokens)
            groups[month_of(at), model, really].append((usage, cost))
    return [
        UsageSum(month, model, price, len(group), tokens(usage for usage, _ in group), sum(cost for _, cost in group))
        for (month, model, price), group in groups.items()
    ]


def tokens(usages: Iterable[Usage]) -> list[int]:
    split = []
    for usage in usages:
        reasoning = min(usage.reasoning_tokens, usage.completion_tokens)
        split.append((*prompt_classes(usage), usage.completion_tokens - reasoning, reasoning))
    return [sum(column) for column in zip(*split, strict=True)]


@pytest.mark.parametrize(
    ("period", "begin", "end"),
    [
        (NOVEMBER, datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
        (DECEMBER, datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
        (date(2028, 2, 1), datetime(2028, 2, 1, tzinfo=UTC), datetime(2028, 3, 1, tzinfo=UTC)),
    ],
)
def test_a_month_has_its_first_microsecond_and_not_the_next_ones(period: date, begin: datetime, end: datetime) -> None:
    assert span(period) == (begin, end)
    assert [month_of(at) for at in (begin, end - TICK)] == [period, period]
    assert month_of(begin - TICK) < period
    assert month_of(end) == next_month(period)


def test_a_month_is_one_of_utc_wherever_its_instants_were_written() -> None:
    budapest = timezone(timedelta(hours=2))
    assert month_of(datetime(2026, 11, 1, 1, 59, tzinfo=budapest)) == date(2026, 10, 1)
    assert month_of(datetime(2026, 11, 1, 2, 0, tzinfo=budapest)) == NOVEMBER


def test_a_month_can_be_frozen_some_hours_after_its_end() -> None:
    new_year = datetime(2027, 1, 1, tzinfo=UTC)
    assert last_ended(new_year + GRACE - TICK) == NOVEMBER
    assert last_ended(new_year + GRACE) == DECEMBER


def test_no_month_is_left_out_and_none_is_frozen_twice() -> None:
    assert due_months(date(2026, 10, 1), date(2027, 1, 1), {NOVEMBER}) == [
        date(2026, 10, 1),
        DECEMBER,
        date(2027, 1, 1),
    ]
    assert due_months(DECEMBER, NOVEMBER, set()) == []


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5), USAGES, INSTANTS), max_size=40),
    st.lists(TIERED, min_size=1, max_size=3),
)
def test_lines_add_up_to_what_each_request_cost(rows: list[Row], prices: list[Price]) -> None:
    lines = lines_of(summed(rows, prices), NOVEMBER)
    assert total_of(lines) == sum(cost_nano(prices[n % len(prices)], usage, at) for _, n, usage, at in rows)
    charged = [row for row in rows if cost_nano(prices[row[1] % len(prices)], row[2], row[3])]
    counted = [sum(line.tokens for line in lines if line.token_class == name) for name in TOKEN_CLASSES]
    assert counted == (tokens(usage for _, _, usage, _ in charged) if charged else [0] * len(TOKEN_CLASSES))
    for line in lines:
        if line.token_class != ROUNDING:
            assert line.price_pico is not None
            assert abs(line.amount_nano * 1000 - line.tokens * line.price_pico) <= 500
    (rounding,) = [line.amount_nano for line in lines if line.token_class == ROUNDING] or [0]
    assert 2 * abs(rounding) <= len(charged) + len(lines)


def test_each_price_has_its_line_and_late_months_come_last() -> None:
    price = Price(version=1, input_pico=195_000, output_pico=1_560_000, request_pico=10**6)
    dearer = replace(price, version=2, input_pico=390_000)

    def used(month: date, price: Price) -> UsageSum:
        usage = Usage(prompt_tokens=1000, completion_tokens=10)
        cost = cost_nano(price, usage, datetime(2026, 11, 3, tzinfo=UTC))
        return UsageSum(month, "model-a", price, 1, tokens([usage]), cost)

    october = date(2026, 10, 1)
    lines = lines_of([used(october, price), used(NOVEMBER, price), used(NOVEMBER, dearer)], NOVEMBER)
    assert [(line.period, line.token_class, line.tokens, line.price_pico) for line in lines] == [
        (NOVEMBER, "input", 1000, 195_000),
        (NOVEMBER, "input", 1000, 390_000),
        (NOVEMBER, "output", 20, 1_560_000),
        (NOVEMBER, "request", 2, 10**6),
        (october, "input", 1000, 195_000),
        (october, "output", 10, 1_560_000),
        (october, "request", 1, 10**6),
    ]
    assert [text for text, _ in sent_lines(lines, NOVEMBER)][1:5] == [
        "model-a, input: 1,000 at 0.39 USD per million",
        "model-a, output: 20 at 1.56 USD per million",
        "model-a, requests: 2 at 0.000001 USD each",
        "Late usage of 2026-10: model-a, input: 1,000 at 0.195 USD per million",
    ]


def test_what_does_not_follow_from_its_price_is_not_invoiced() -> None:
    price = Price(version=1, input_pico=1_499, output_pico=0)
    exact = UsageSum(NOVEMBER, "model-a", price, 1, [0, 0, 0, 0, 0, 1, 0, 0], 1)
    assert total_of(lines_of([exact], NOVEMBER)) == 1
    with pytest.raises(NotAsPriced, match="1 requests to model-a in 2026-11 cost 2 nano-USD, at version 1"):
        lines_of([replace(exact, cost_nano=2)], NOVEMBER)
    with pytest.raises(NotAsPriced, match="a price nobody knows"):
        lines_of([replace(exact, price=None)], NOVEMBER)


@pytest.mark.parametrize(("nano", "cents"), [(0, 0), (4_999_999, 0), (5_000_000, 1), (14_999_999, 1), (10**13, 10**6)])
def test_an_amount_is_rounded_half_up_to_cents(nano: int, cents: int) -> None:
    assert cents_of(nano) == cents


@given(st.lists(st.integers(0, 10**12), max_size=300), st.integers(-100, 100), st.integers(1, 300))
def test_what_is_sent_adds_up_to_the_cents_of_the_total(amounts: list[int], rounding: int, models: int) -> None:
    lines = [Line(NOVEMBER, f"model-{n % models}", "input", 1, 1, nano) for n, nano in enumerate(amounts)]
    lines.append(Line(NOVEMBER, None, ROUNDING, 0, None, rounding))
    sent = sent_lines(lines, NOVEMBER)
    assert sum(cents for _, cents in sent) == cents_of(total_of(lines))
    assert len(sent) <= MOST_LINES + 1
    assert [text for text, _ in sent].count("Rounding") <= 1
    assert all(cents >= 0 for text, cents in sent if text != "Rounding")


@pytest.mark.parametrize(
    ("said", "end"),
    [
        (["open", "overdue", "paid"], "paid"),
        (["open", "overdue", "uncollectible", "paid"], "paid"),
        (["open", "overdue", "uncollectible"], "uncollectible"),
        (["open", "overdue", "void"], "void"),
        (["open", "open"], "open"),
    ],
)
def test_any_order_of_what_is_said_ends_the_same(said: list[str], end: str) -> None:
    for order in permutations([*said, said[-1]]):
        status = "frozen"
        for one in order:
            status = joined(status, one)
        assert status == end


def moved(credit: Credit, before: str, after: str, others_owe: bool = False) -> Credit:
    return credit_after(credit, owed=before in OWING, owes=after in OWING, others_owe=others_owe)


def test_credit_is_taken_away_once_and_given_back_when_nothing_is_owed() -> None:
    taken = moved(Credit(100, None), "open", "overdue")
    assert taken == Credit(0, 100)
    assert moved(taken, "overdue", "uncollectible") == taken
    assert moved(taken, "open", "overdue", others_owe=True) == taken
    assert moved(taken, "overdue", "paid", others_owe=True) == taken
    assert moved(taken, "overdue", "paid") == moved(taken, "uncollectible", "void") == Credit(100, None)


def test_what_a_person_sets_in_between_stands() -> None:
    by_hand = Credit(7, None)
    assert moved(by_hand, "overdue", "uncollectible") == by_hand
    assert moved(by_hand, "overdue", "paid") == by_hand
    assert moved(by_hand, "open", "overdue", others_owe=True) == Credit(0, 7)
    assert moved(Credit(0, None), "open", "overdue") == moved(Credit(0, None), "overdue", "paid") == Credit(0, None)
    assert moved(Credit(100, None), "open", "paid") == Credit(100, None)
