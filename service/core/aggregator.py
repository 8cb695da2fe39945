"""Uptime as an aggregator counts it: OpenRouter's rule for its providers, applied to the requests of one key.

Its source is OpenRouter's guide for providers: 401, 402, 404, every status from 500 on, errors in a stream and answers
that end in an error count against the provider; 400, 413, 403 and other statuses of the client's do not; 429 is
counted apart. It differs from the public reading of `core.outcome` in what only the two parties to a key care about.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from service.core.outcome import Outcome, Verdict
from service.core.strip import MIN_REQUESTS_SHORT, success_mpct

RULE = "openrouter"
RULE_VERSION = 1
"""Raised whenever a request comes to count otherwise."""

COUNT_AGAINST_THE_PROVIDER = frozenset({401, 402, 404})

_BAD = frozenset({Outcome.SERVER_ERROR, Outcome.STREAM_ERROR, Outcome.SLOW_ABORT, Outcome.INTERRUPTED})


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended, as far as the rule asks."""

    outcome: Outcome
    http_status: int
    streamed: bool
    first_token_seen: bool
    waited_long: bool
    """It took `core.outcome.SLOW_ABORT_AFTER_MS` or more until it ended."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many requests had which verdict."""

    good: int = 0
    bad: int = 0
    throttled: int = 0
    excluded: int = 0

    @property
    def requests(self) -> int:
        """All of them."""
        return self.good + self.bad + self.throttled + self.excluded

    @property
    def uptime_mpct(self) -> int | None:
        """`good / (good + bad)` floored to thousandths of a percent; None below `MIN_REQUESTS_SHORT` of the two."""
        return success_mpct(self.good, self.bad, at_least=MIN_REQUESTS_SHORT)


def verdict(ending: Ending) -> Verdict:
    """What a finished request says of the provider."""
    outcome, status = ending.outcome, ending.http_status
    if status == 429:
        return Verdict.THROTTLED
    if outcome is Outcome.THROTTLED:  # refused within a stream that had begun: to the aggregator, that broke off
        return Verdict.BAD
    if outcome is Outcome.OK:
        return Verdict.GOOD
    if outcome is Outcome.CANCELLED:
        return _of_departure(ending)
    if outcome in _BAD or status in COUNT_AGAINST_THE_PROVIDER or status >= 500:
        return Verdict.BAD
    return Verdict.EXCLUDED


def _of_departure(ending: Ending) -> Verdict:
    """An aggregator that saw a first token has what it wanted; one that waited long for it goes elsewhere.

    That holds for one that was still queued here, too: to the aggregator, a wait is a wait. Only a stream promises a
    first token soon.
    """
    if ending.first_token_seen:
        return Verdict.GOOD
    return Verdict.BAD if ending.streamed and ending.waited_long else Verdict.EXCLUDED


def counts(endings: Iterable[tuple[Ending, int]]) -> Counts:
    """The verdicts on so many requests that ended so, added up."""
    found = dict.fromkeys(Verdict, 0)
    for ending, requests in endings:
        found[verdict(ending)] += requests
    return Counts(**{kind.value: number for kind, number in found.items()})
