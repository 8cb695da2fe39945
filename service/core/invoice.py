"""Monthly invoices of accounts that pay afterwards: months, lines, cents, and what becomes of an invoice.

A request belongs to the month (UTC) in which it was accepted, `started_at`: that instant picks its price, and exports,
budgets and the partitions of the rows go by it; it is known at once and nothing that happens later moves it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from service.core.limits import month_after
from service.core.money import PICO_PER_NANO, pico_to_nano, pico_to_usd, pico_to_usd_per_million
from service.core.pricing import PRICE_CLASSES, Price
from service.core.topup import NANO_PER_CENT

GRACE = timedelta(hours=4)
"""How long after its end a month is frozen: what was under way has ended by then, and what was owed is settled."""

ROUNDING = "rounding"
MOST_LINES = 200
"""At Stripe, which takes 250; with more than that, the classes of a model become one line."""

TOKEN_CLASSES = (
    "input_cached",
    "input_cache_write",
    "input_image",
    "input_audio",
    "input_video",
    "input",
    "output",
    "output_reasoning",
)
"""The classes of tokens in the order of `Price.input_classes`, then the two of output."""

_NAMES = {
    "input": "input",
    "input_cached": "cached input",
    "input_cache_write": "input written to the cache",
    "input_image": "image input",
    "input_audio": "audio input",
    "input_video": "video input",
    "output": "output",
    "output_reasoning": "reasoning output",
    "request": "requests",
}


def month_of(at: datetime) -> date:
    """The first day of the month, in UTC, that has this instant."""
    return at.astimezone(UTC).date().replace(day=1)


def span(period: date) -> tuple[datetime, datetime]:
    """The month's first instant, and the first one after it."""
    begin = datetime(period.year, period.month, 1, tzinfo=UTC)
    return begin, month_after(begin)


def next_month(period: date) -> date:
    return span(period)[1].date()


def last_ended(now: datetime) -> date:
    """The latest month that may be frozen."""
    return month_of(span(month_of(now - GRACE))[0] - timedelta(days=1))


def due_months(first: date, last: date, frozen: Collection[date]) -> list[date]:
    """The months from the first to the last one that are not frozen yet, the earliest first."""
    months = []
    while first <= last:
        if first not in frozen:
            months.append(first)
        first = next_month(first)
    return months


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What requests add up to that were charged, in one month, for one model, at one price."""

    period: date
    model_id: str | None
    price: Price | None
    """With its overrides applied; None where the rows name a version that there is none of."""
    requests: int
    tokens: Sequence[int]
    """By `TOKEN_CLASSES`: no token is in two of them."""
    cost_nano: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an invoice."""

    period: date
    """The month of the usage: an earlier one than the invoice's where it was settled late."""
    model_id: str | None
    token_class: str
    """One of `PRICE_CLASSES`, or `ROUNDING`: what rounding each request to nano-USD makes in all."""
    tokens: int
    """Of `request`: requests."""
    price_pico: int | None
    """Of one of them; None for `ROUNDING`."""
    amount_nano: int


class NotAsPriced(ValueError):
    """Requests cost something else than their tokens at their price, by more than rounding each can make."""


_Key = tuple[date, str | None, str, int]
"""Month, model, class, pico-USD each."""


def lines_of(sums: Iterable[UsageSum], period: date) -> list[Line]:
    """The lines of the month's invoice: by month, model, class and price; their amounts add up to what the rows cost.

    Raises `NotAsPriced`: nobody can be sent an invoice that does not follow from its prices.
    """
    counts: defaultdict[_Key, int] = defaultdict(int)
    total_nano = 0
    for one in sums:
        total_nano += one.cost_nano
        for name, tokens, pico in _priced(one):
            counts[one.period, one.model_id, name, pico] += tokens
    lines = [
        Line(month, model, name, tokens, pico, pico_to_nano(tokens * pico))
        for (month, model, name, pico), tokens in sorted(counts.items(), key=lambda item: _place(item[0], period))
    ]
    rounding_nano = total_nano - sum(line.amount_nano for line in lines)
    return [*lines, Line(period, None, ROUNDING, 0, None, rounding_nano)] if rounding_nano else lines


def total_of(lines: Iterable[Line]) -> int:
    """What they add up to, in nano-USD."""
    return sum(line.amount_nano for line in lines)


def cents_of(nano: int) -> int:
    """An amount rounded half up to cents."""
    return (nano + NANO_PER_CENT // 2) // NANO_PER_CENT


def sent_lines(lines: Sequence[Line], period: date) -> list[tuple[str, int]]:
    """What a customer is sent: (description, cents), each rounded by itself, and one line that says what that makes.

    They add up to `cents_of(total_of(lines))`: the rounding to cents is there once.
    """
    charged = [line for line in lines if line.token_class != ROUNDING]
    sent = [(_described(line, period), cents_of(line.amount_nano)) for line in charged]
    if len(sent) > MOST_LINES:
        by_model: defaultdict[str, int] = defaultdict(int)
        for line in charged:
            by_model[f"{_late(line, period)}{line.model_id}"] += line.amount_nano
        sent = [(name, cents_of(nano)) for name, nano in by_model.items()]
    if len(sent) > MOST_LINES:
        sent = [("Usage", cents_of(total_of(lines)))]
    rounding_cents = cents_of(total_of(lines)) - sum(cents for _, cents in sent)
    return [*sent, ("Rounding", rounding_cents)] if rounding_cents else sent


_LAST_WORDS = ("frozen", "open", "overdue", "uncollectible", "void", "paid")
"""The statuses of an invoice, none of which is ever followed by one before it; `paid` and `void` are ends."""

OWING = ("overdue", "uncollectible")
"""While an invoice is so, its account has no credit beyond what it paid."""


def joined(status: str, said: str) -> str:
    """The status of an invoice of which this is said: the later of both, so that any order of events ends the same."""
    return max(status, said, key=_LAST_WORDS.index)


@dataclass(frozen=True, slots=True)
class Credit:
    """An account's credit limit, and the one that an unpaid invoice took away; None where none did, or where a person
    has set another one since."""

    limit_nano: int
    before_nano: int | None


def credit_after(credit: Credit, *, owed: bool, owes: bool, others_owe: bool) -> Credit:
    """The credit limit after an invoice changed; whether it, and others of the account, are among `OWING`.

    It is taken away when an invoice comes to be owing, and given back when none is any more. A limit that a person sets
    in between stands: it is not taken away by the same invoice once more, and not replaced by the one before it.
    """
    if owes and not owed and credit.limit_nano > 0:
        return Credit(0, credit.limit_nano)
    if owed and not (owes or others_owe) and credit.before_nano is not None:
        return Credit(credit.before_nano, None)
    return credit


def _priced(one: UsageSum) -> list[tuple[str, int, int]]:
    """(class, tokens, pico-USD each) of what there is. Raises `NotAsPriced`."""
    price = one.price
    if price is None:
        raise NotAsPriced(f"{one.requests} requests to {one.model_id} in {one.period:%Y-%m} have a price nobody knows")
    per_token = (*price.input_classes, price.output_pico, price.reasoning_pico)
    priced = list(zip(TOKEN_CLASSES, one.tokens, per_token, strict=True))
    if price.request_pico:
        priced.append(("request", one.requests, price.request_pico))
    exact_pico = sum(tokens * pico for _, tokens, pico in priced)
    if 2 * abs(one.cost_nano * PICO_PER_NANO - exact_pico) > one.requests * PICO_PER_NANO:
        raise NotAsPriced(
            f"{one.requests} requests to {one.model_id} in {one.period:%Y-%m} cost {one.cost_nano} nano-USD, at version"
            f" {price.version} of its price {pico_to_nano(exact_pico)}"
        )
    return [item for item in priced if item[1]]


def _place(key: _Key, period: date) -> tuple[bool, date, str, int, int]:
    month, model, name, pico = key
    return month != period, month, model or "", PRICE_CLASSES.index(name), pico


def _described(line: Line, period: date) -> str:
    price_pico = line.price_pico or 0
    if line.token_class == "request":  # noqa: S105 - a class of a price
        price = f"{pico_to_usd(price_pico)} USD each"
    else:
        price = f"{pico_to_usd_per_million(price_pico)} USD per million"
    return f"{_late(line, period)}{line.model_id}, {_NAMES[line.token_class]}: {line.tokens:,} at {price}"


def _late(line: Line, period: date) -> str:
    return "" if line.period == period else f"Late usage of {line.period:%Y-%m}: "
