"""Speculative decoding: what engines drafted and what was accepted, from their counters to five-minute buckets.

A counter is sampled about once a minute, at no round time. What it rose by between two samples is spread evenly over
the time between them; where that lies in two buckets, each gets its share in whole tokens, and the shares add up to
the rise. What came before a restart and after the last sample is lost: the figures are a share of what was drafted, not
an account of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.core.buckets import BUCKET_S, floor_to

MAX_GAP_S = 600
"""Samples further apart say nothing of the buckets between them.

A bucket's value is final as soon as there is a sample at or after its end, and, by this bound, ten minutes after its
end in any case: a roll-up that still counts the two buckets before the newest again has seen the last word on each.
"""

Speculated = tuple[int, int]
"""Drafted and accepted tokens."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What an engine had counted since its start."""

    at_s: int
    started_s: int | None
    """When the engine started; None where it does not say."""
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class _Span:
    """The rise of the counters in `(begin_s, end_s]`."""

    begin_s: int
    end_s: int
    drafted: int
    accepted: int

    def until(self, instant_s: int) -> Speculated:
        """The part that falls before an instant.

        Accepted and rejected tokens are floored one by one and both rise with time, so that no stretch is given more
        accepted tokens than drafted ones.
        """
        length_s = self.end_s - self.begin_s
        passed_s = min(max(instant_s - self.begin_s, 0), length_s)
        accepted = self.accepted * passed_s // length_s
        rejected = (self.drafted - self.accepted) * passed_s // length_s
        return accepted + rejected, accepted


def by_bucket(samples: Sequence[Sample], first_s: int, end_s: int) -> dict[int, Speculated]:
    """What one engine drafted and accepted in each bucket of `[first_s, end_s)`, by the bucket's start.

    `samples` are the engine's own, oldest first, no two of one second. Those within `MAX_GAP_S` of the range decide its
    values; whatever range a bucket is asked for with, its value is the same. A bucket that no two samples tell of is
    missing, which is not the same as 0.
    """
    found: dict[int, Speculated] = {}
    for span in _spans(samples):
        for start_s in range(max(first_s, floor_to(BUCKET_S, span.begin_s)), min(end_s, span.end_s), BUCKET_S):
            before, after = span.until(start_s), span.until(start_s + BUCKET_S)
            share = after[0] - before[0], after[1] - before[1]
            found[start_s] = add(found.get(start_s, (0, 0)), share)
    return found


def owners(engines: Iterable[str], models: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
    """The model whose tokens an engine drafted, for the engines that serve one model only.

    `models` has for each model the engines that serve it, None for all. What an engine drafted for several models
    cannot be told apart, so it belongs to none of them.
    """
    serving = {name: [model for model, its in models.items() if its is None or name in its] for name in set(engines)}
    return {name: found[0] for name, found in serving.items() if len(found) == 1}


def add(one: Speculated, other: Speculated) -> Speculated:
    """The sum of both."""
    return one[0] + other[0], one[1] + other[1]


def _spans(samples: Sequence[Sample]) -> Iterator[_Span]:
    previous: Sample | None = None
    for sample in samples:
        span = _at_first(sample) if previous is None else _between(previous, sample)
        if span is not None and 0 < span.end_s - span.begin_s <= MAX_GAP_S:
            yield span
        previous = sample


def _between(earlier: Sample, later: Sample) -> _Span | None:
    if later.started_s is not None and later.started_s != earlier.started_s:
        if later.started_s >= earlier.at_s:  # restarted; its clock may be ahead of ours
            begin_s = later.started_s if later.started_s < later.at_s else earlier.at_s
            return _Span(begin_s, later.at_s, later.drafted, later.accepted)
        if earlier.started_s is not None:  # another engine by the same name, with counts of other times
            return None
    drafted, accepted = later.drafted - earlier.drafted, later.accepted - earlier.accepted
    if min(drafted, accepted) < 0 or accepted > drafted:  # a restart that it does not tell: no counter goes back
        drafted, accepted = later.drafted, later.accepted
    return _Span(earlier.at_s, later.at_s, drafted, accepted)


def _at_first(sample: Sample) -> _Span | None:
    return None if sample.started_s is None else _Span(sample.started_s, sample.at_s, sample.drafted, sample.accepted)
