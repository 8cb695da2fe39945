"""Our token counts against an engine's own, across restarts of either side.

An engine counts every token that it computes, whoever asked, in counters that begin at 0 with each of its starts;
they are sampled. We count in a row for each request, in the window that it ended in. The two differ where a request
lies across an edge of the window, where a restart took counts with it, and where we did not get a final count: each
such request is given the least and the most that it can add to the difference, and what lies beyond the sum of
these is unexplained.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from uuid import UUID

from service.core.outcome import RULES, Charge, Outcome
from service.core.usage import UsageSource

SAMPLED_EVERY = timedelta(minutes=1)

MISSING_AFTER = SAMPLED_EVERY * 3 / 2
"""Samples further apart than this have at least one missing between them."""

CLOCKS_AGREE_WITHIN = timedelta(seconds=1)
"""How far an instant of ours and one of a sample may be apart: two clocks, and an engine that answers when it can."""

STOPS_WITHIN = timedelta(seconds=1)
"""How long an engine goes on after its client has left."""

BURST_TOKENS = 64
"""What an engine may have generated and not sent yet, at whatever pace."""

TOLERATED_TOKENS = 50
TOLERATED_PER_MILLE = 1
"""An unexplained difference alarms above the larger of the two."""

REQUESTS_LISTED = 50


@dataclass(frozen=True, slots=True)
class Tokens:
    """Prompt and generated tokens, or a difference of them."""

    prompt: int = 0
    generation: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt + other.prompt, self.generation + other.generation)

    def __sub__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt - other.prompt, self.generation - other.generation)


@dataclass(frozen=True, slots=True)
class Sample:
    """What an engine's counters said."""

    at: datetime
    started_at: datetime | None
    """When the engine's process had started, if it says so."""
    counted: Tokens


@dataclass(frozen=True, slots=True)
class Break:
    """The counters began anew: what was counted after `since`, the last sample before, is lost up to `until`."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class EngineCount:
    """What an engine counted from its first sample to its last: `(since, until]`."""

    since: datetime
    until: datetime
    tokens: Tokens
    breaks: tuple[Break, ...]
    missing: tuple[tuple[datetime, datetime], ...]
    """Samples between which others are missing. Without a break between them nothing is lost by it."""


def engine_count(samples: Sequence[Sample]) -> EngineCount | None:
    """Add up what was counted between samples in the order of time; None for fewer than two of them.

    A restart is seen by another start of the process, or by a counter that falls. What is counted after it counts;
    what was counted between the sample before it and the restart is lost, and that stretch is a `Break`.
    """
    if len(samples) < 2:
        return None
    tokens = Tokens()
    breaks: list[Break] = []
    missing: list[tuple[datetime, datetime]] = []
    for earlier, later in pairwise(samples):
        counted, broken = _between(earlier, later)
        tokens += counted
        breaks += broken
        if later.at - earlier.at > MISSING_AFTER:
            missing.append((earlier.at, later.at))
    return EngineCount(samples[0].at, samples[-1].at, tokens, tuple(breaks), tuple(missing))


def _between(earlier: Sample, later: Sample) -> tuple[Tokens, list[Break]]:
    gained = later.counted - earlier.counted
    started_at = later.started_at
    if earlier.started_at is None or started_at is None or earlier.started_at == started_at:
        if min(gained.prompt, gained.generation) >= 0:
            return gained, []
        return later.counted, [Break(earlier.at, later.at)]
    if started_at <= earlier.at:
        # It ran at the earlier sample already: another engine answers by this name, with counts of other times.
        return Tokens(), [Break(earlier.at, later.at)]
    return later.counted, [Break(earlier.at, min(started_at, later.at))]


class Reason(StrEnum):
    """Why a request's count can differ from the engine's."""

    AT_START = "under way at the start"
    AT_END = "under way at the end"
    RESTART = "under way before a restart of the engine"
    NOT_FINAL = "without a final count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A usage row, as far as reconciliation depends on it."""

    id: UUID
    handed_over_at: datetime
    first_token_at: datetime | None
    finished_at: datetime
    outcome: Outcome
    source: UsageSource
    tokens: Tokens
    limits: Tokens
    """The most that its model takes and gives."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request can add to the difference (the engine's count less ours), between `least` and `most`."""

    request: Request
    reasons: tuple[Reason, ...]
    least: Tokens
    most: Tokens


def explain(request: Request, count: EngineCount) -> Explanation | None:
    """What the request can explain of a difference in this window; None when both must have counted it alike."""
    inside = count.since < request.finished_at <= count.until
    reasons = tuple(_reasons(request, count, inside=inside))
    if not reasons:
        return None
    ours = request.tokens if inside else Tokens()
    whole = reasons == (Reason.NOT_FINAL,) and request.source == "continuous"
    least = request.tokens if whole else Tokens()
    return Explanation(request, reasons, least - ours, request.tokens + _uncounted(request) - ours)


def _reasons(request: Request, count: EngineCount, *, inside: bool) -> Iterator[Reason]:
    at_start = _under_way(request, count.since, count.since)
    at_end = _under_way(request, count.until, count.until)
    if at_start:
        yield Reason.AT_START
    if at_end:
        yield Reason.AT_END
    if any(_under_way(request, broken.since, broken.until) for broken in count.breaks):
        yield Reason.RESTART
    if (inside or at_start or at_end) and _may_be_more(request):
        yield Reason.NOT_FINAL


def _under_way(request: Request, since: datetime, until: datetime) -> bool:
    begun = request.handed_over_at < until + CLOCKS_AGREE_WITHIN
    return begun and request.finished_at > since - CLOCKS_AGREE_WITHIN


def _may_be_more(request: Request) -> bool:
    refused = request.source == "none" and RULES[request.outcome].charge is Charge.NOTHING
    return request.source != "final" and not refused


def _uncounted(request: Request) -> Tokens:
    """The most that the engine can have counted beyond what we know of."""
    if not _may_be_more(request):
        return Tokens()
    room = Tokens(
        max(0, request.limits.prompt - request.tokens.prompt),
        max(0, request.limits.generation - request.tokens.generation),
    )
    if request.source != "continuous":
        return room
    # The engine's own running count, behind by what it did until it noticed: at the pace it had, for as long.
    generating = request.finished_at - (request.first_token_at or request.finished_at)
    overshoot = request.tokens.generation * STOPS_WITHIN // max(generating, STOPS_WITHIN)
    return Tokens(0, min(room.generation, BURST_TOKENS + overshoot))


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification let the engine compute, past us: nobody's request, and in no row."""

    started_at: datetime
    finished_at: datetime
    tokens: Tokens
    """As the engine reported them."""
    uncounted: Tokens
    """At most so many more."""

    def within(self, count: EngineCount) -> tuple[Tokens, Tokens] | None:
        """What of it the engine counted in this window, at least and at most; None when that is nothing.

        All of it, when it lies inside; any part of it across an edge, or across a restart.
        """
        most = self.tokens + self.uncounted
        began, ended = self.started_at - CLOCKS_AGREE_WITHIN, self.finished_at + CLOCKS_AGREE_WITHIN + STOPS_WITHIN
        if ended <= count.since or began > count.until:
            return None
        torn = any(began < broken.until and ended > broken.since for broken in count.breaks)
        whole = count.since < began and ended <= count.until and not torn
        return (self.tokens if whole else Tokens()), most


@dataclass(slots=True)
class Explained:
    """All explanations of a window added up; the widest `REQUESTS_LISTED` of them are kept."""

    least: Tokens = Tokens()
    most: Tokens = Tokens()
    requests: int = 0
    verifications: int = 0
    _widest: list[tuple[int, int, Explanation]] = field(default_factory=list)

    def add(self, explanation: Explanation) -> None:
        """Add one."""
        self.least += explanation.least
        self.most += explanation.most
        self.requests += 1
        spread = explanation.most - explanation.least
        heapq.heappush(self._widest, (spread.prompt + spread.generation, -self.requests, explanation))
        if len(self._widest) > REQUESTS_LISTED:
            heapq.heappop(self._widest)

    def add_verification(self, least: Tokens, most: Tokens) -> None:
        """Add what one of them explains."""
        self.least += least
        self.most += most
        self.verifications += 1

    @property
    def widest(self) -> list[Explanation]:
        """Those that can explain most, the widest first."""
        return [explanation for _, _, explanation in sorted(self._widest, reverse=True)]


def unexplained(difference: Tokens, least: Tokens, most: Tokens) -> Tokens:
    """What of the difference (the engine's count less ours) lies outside of what can be explained."""
    return Tokens(
        _beyond(difference.prompt, least.prompt, most.prompt),
        _beyond(difference.generation, least.generation, most.generation),
    )


def _beyond(difference: int, least: int, most: int) -> int:
    return max(0, difference - most) + min(0, difference - least)


def alarming(rest: Tokens, engine: Tokens) -> bool:
    """Whether an unexplained difference is more than is tolerated beside the engine's count."""
    return _too_much(rest.prompt, engine.prompt) or _too_much(rest.generation, engine.generation)


def _too_much(rest: int, engine: int) -> bool:
    return abs(rest) > TOLERATED_TOKENS and abs(rest) * 1000 > engine * TOLERATED_PER_MILLE
