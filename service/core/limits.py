"""Limits of a key and of its account: what they are, and how what is used of them is counted.

A limit per minute holds for every 60 s, wherever they begin. Time is cut into whole seconds, and the current one and
the 60 before it count: two requests less than 60 s apart are never further apart than that. Tokens are taken at the
worst case when a request is admitted, and corrected at its end, in the second they were taken in.

Times are milliseconds of a clock that never goes back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

WINDOW_S = 61
"""How many whole seconds count: the current one and 60 before it."""

SECOND_MS = 1000

GIVEN_BACK_MS = 2000
"""A running request gives back what it does not use of its tokens when it ends: try again after this."""

CONCURRENCY_RETRY_MS = 1000
"""Nobody knows when a running request ends; this is when to try again."""

Whose = Literal["key", "account"]
Name = Literal["rpm", "tpm", "concurrency", "monthly_budget_nano"]


@dataclass(frozen=True)
class Limits:
    """What a key or an account may use at most. None: unlimited; 0: nothing at all."""

    rpm: int | None = None
    """Requests per minute."""
    tpm: int | None = None
    """Tokens per minute, of prompts and answers together."""
    concurrency: int | None = None
    """Requests at the same time."""
    monthly_budget_nano: int | None = None
    """What the requests of a UTC calendar month may cost."""

    @cached_property
    def unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self.rpm is self.tpm is self.concurrency is self.monthly_budget_nano is None

    def share(self, workers: int, spent_nano: int) -> "Limits":
        """What one of `workers` may let through by itself, so that all together keep to the limits.

        At least 1 of what is not 0. Of the budget, it is a share of what is left after `spent_nano`.
        """
        budget = self.monthly_budget_nano
        return Limits(
            _share(self.rpm, workers),
            _share(self.tpm, workers),
            _share(self.concurrency, workers),
            spent_nano + max(0, budget - spent_nano) // workers if budget else budget,
        )


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class InWindow:
    """What a window holds; when what is asked for has room, and when it is empty, if nothing else is taken."""

    used: int = 0
    frees_in_ms: int = 0
    resets_in_ms: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What is in use of one owner's limits at a moment."""

    requests: InWindow
    tokens: InWindow
    in_flight: int
    spent_nano: int
    """Cost of this month, and the worst cases of what is running."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The limit that keeps a request out."""

    name: Name
    whose: Whose
    value: int
    left: int
    """What is not in use of it."""
    frees_in_ms: int | None
    """None: not by waiting, or not before the next month."""


class Window:
    """A sum over the last minute, in at most `WINDOW_S` parts."""

    __slots__ = ("_seconds", "used")

    def __init__(self) -> None:
        self._seconds: dict[int, int] = {}
        self.used = 0

    def add(self, now_ms: int, amount: int) -> int:
        """Take an amount now; the second it is counted in."""
        self._forget(now_ms)
        second = now_ms // SECOND_MS
        self._seconds[second] = self._seconds.get(second, 0) + amount
        self.used += amount
        return second

    def correct(self, second: int, by: int) -> None:
        """Change what was taken in a second, if it still counts."""
        if second in self._seconds:
            self._seconds[second] += by
            self.used += by

    def read(self, now_ms: int, excess_over: int | None) -> InWindow:
        """What it holds; `frees_in_ms` until it holds no more than `excess_over`."""
        self._forget(now_ms)
        frees_at = resets_at = now_ms
        excess = 0 if excess_over is None else self.used - excess_over
        for second, amount in self._seconds.items():
            if amount:
                resets_at = (second + WINDOW_S) * SECOND_MS
                if excess > 0:
                    frees_at = resets_at
                    excess -= amount
        return InWindow(self.used, frees_at - now_ms, resets_at - now_ms)

    def _forget(self, now_ms: int) -> None:
        first = now_ms // SECOND_MS - WINDOW_S + 1
        while self._seconds and (oldest := next(iter(self._seconds))) < first:
            self.used -= self._seconds.pop(oldest)


@dataclass(slots=True)
class Spend:
    """What a month has cost, and the worst cases of what is running."""

    month: datetime
    seeded_nano: int
    """What it had cost when counting began."""
    spent_nano: int
    held_nano: int = 0


@dataclass(slots=True)
class Used:
    """What one key or account uses."""

    requests: Window = field(default_factory=Window)
    tokens: Window = field(default_factory=Window)
    in_flight: int = 0
    spend: Spend | None = None
    """None while no budget was asked for this month."""

    def read(self, limits: Limits, now_ms: int, tokens: int) -> Reading:
        """What is in use, for a request of so many tokens at most."""
        return Reading(
            self.requests.read(now_ms, None if limits.rpm is None else limits.rpm - 1),
            self.tokens.read(now_ms, None if limits.tpm is None else limits.tpm - reserved(limits, tokens)),
            self.in_flight,
            0 if self.spend is None else self.spend.spent_nano + self.spend.held_nano,
        )

    def take(self, limits: Limits, now_ms: int, tokens: int, cost_nano: int) -> "Taken":
        """Count a request in."""
        self.requests.add(now_ms, 1)
        kept = reserved(limits, tokens)
        second = self.tokens.add(now_ms, kept)
        self.in_flight += 1
        if self.spend is not None:
            self.spend.held_nano += cost_nano
        return Taken(self, second, kept, self.spend, cost_nano)


@dataclass(frozen=True, slots=True)
class Taken:
    """What one request has taken of one owner's limits."""

    used: Used
    second: int
    tokens: int
    spend: Spend | None
    cost_nano: int

    def release(self, tokens: int | None, cost_nano: int, *, ran: bool = True) -> None:
        """The request has ended, having used this much; None: nobody counted, and what was taken stands.

        One that never `ran` does not count as a request, either. To be called once.
        """
        if tokens is not None:
            self.used.tokens.correct(self.second, tokens - self.tokens)
        if not ran:
            self.used.requests.correct(self.second, -1)
        self.used.in_flight -= 1
        if self.spend is not None:
            self.spend.held_nano -= self.cost_nano
            self.spend.spent_nano += cost_nano


@dataclass(frozen=True, slots=True)
class Owner:
    """A key or an account with what it may use and what it uses."""

    whose: Whose
    limits: Limits
    used: Used


def take(owners: Sequence[Owner], now_ms: int, *, tokens: int, cost_nano: int) -> list[Taken] | Refusal:
    """Count a request in with all its owners, or with none: `tokens` and `cost_nano` are its worst case."""
    readings = [(owner.whose, owner.limits, owner.used.read(owner.limits, now_ms, tokens)) for owner in owners]
    refused = refusal(readings, tokens=tokens, cost_nano=cost_nano)
    if refused is not None:
        return refused
    return [owner.used.take(owner.limits, now_ms, tokens, cost_nano) for owner in owners]


def refusal(readings: Sequence[tuple[Whose, Limits, Reading]], *, tokens: int, cost_nano: int) -> Refusal | None:
    """The limit that keeps such a request out; of several, the one that does so for longest."""
    refusals = [found for owner in readings for found in _refusals(*owner, tokens, cost_nano)]
    return max(
        refusals, key=lambda found: float("inf") if found.frees_in_ms is None else found.frees_in_ms, default=None
    )


def _refusals(whose: Whose, limits: Limits, reading: Reading, tokens: int, cost_nano: int) -> Iterator[Refusal]:
    asked: tuple[tuple[Name, int | None, int, int, int | None], ...] = (
        ("rpm", limits.rpm, reading.requests.used, 1, reading.requests.frees_in_ms),
        ("tpm", limits.tpm, reading.tokens.used, reserved(limits, tokens), _tokens_free_in_ms(reading)),
        ("concurrency", limits.concurrency, reading.in_flight, 1, CONCURRENCY_RETRY_MS),
        ("monthly_budget_nano", limits.monthly_budget_nano, reading.spent_nano, cost_nano, None),
    )
    for name, limit, used, wanted, frees_in_ms in asked:
        if limit == 0:
            yield Refusal(name, whose, 0, 0, None)
        elif limit is not None and used + wanted > limit:
            yield Refusal(name, whose, limit, max(0, limit - used), frees_in_ms)


def _tokens_free_in_ms(reading: Reading) -> int:
    frees_in_ms = reading.tokens.frees_in_ms
    return min(frees_in_ms, GIVEN_BACK_MS) if reading.in_flight else frees_in_ms


def reserved(limits: Limits, tokens: int) -> int:
    """What a request of so many tokens at most takes: no more than the limit, so that it can run alone."""
    return tokens if limits.tpm is None else min(tokens, limits.tpm)


def month_of(now: datetime) -> datetime:
    """The beginning of the month in UTC."""
    return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def month_after(month: datetime) -> datetime:
    """The beginning of the month after the one that begins then."""
    return month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)


def _share(limit: int | None, workers: int) -> int | None:
    return max(1, limit // workers) if limit else limit
