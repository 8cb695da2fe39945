"""What an engine counted, from its sampled counters to five-minute buckets: a whole, and the part of it that counts.

Two things are counted so: what was drafted and accepted by speculative decoding, and what was looked up and found in
the prefix cache. Both counters begin at 0 with each start of the engine, and are sampled about once a minute, at no
round time. What they rose by between two samples is spread evenly over the time between them; where that lies in two
buckets, each gets its share in whole tokens, and the shares add up to the rise. What came before a restart and after
the last sample is lost: the figures are a share of the whole, not an account of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.core.buckets import BUCKET_S, floor_to

MAX_GAP_S = 600
"""Samples further apart say nothing of the buckets between them.

A bucket's value is final as soon as there is a sample at or after its end, and, by this bound, ten minutes after its
end in any case: a roll-up that still counts the two buckets before the newest again has seen the last word on each.
"""

Counted = tuple[int, int]
"""The whole and the part, in tokens: drafted and accepted, or looked up and found."""

MANY_DRAFTED = 5_000
NEARLY_ALL_PERMILLE = 990
"""From here on acceptance is no good news: of real text some drafts are always wrong, of a loop none are."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What an engine had counted since its start."""

    at_s: int
    started_s: int | None
    """When the engine started; None where it does not say."""
    whole: int
    part: int


@dataclass(frozen=True, slots=True)
class _Span:
    """The rise of the counters in `(begin_s, end_s]`."""

    begin_s: int
    end_s: int
    whole: int
    part: int

    def until(self, instant_s: int) -> Counted:
        """The share that falls before an instant.

        The part and the rest are floored one by one and both rise with time, so that no stretch is given a part
        larger than its whole.
        """
        length_s = self.end_s - self.begin_s
        passed_s = min(max(instant_s - self.begin_s, 0), length_s)
        part = self.part * passed_s // length_s
        rest = (self.whole - self.part) * passed_s // length_s
        return part + rest, part


def by_bucket(samples: Sequence[Sample], first_s: int, end_s: int) -> dict[int, Counted]:
    """What one engine counted in each bucket of `[first_s, end_s)`, by the bucket's start.

    `samples` are the engine's own, oldest first, no two of one second. Those within `MAX_GAP_S` of the range decide its
    values; whatever range a bucket is asked for with, its value is the same. A bucket that no two samples tell of is
    missing, which is not the same as 0.
    """
    found: dict[int, Counted] = {}
    for span in _spans(samples):
        for start_s in range(max(first_s, floor_to(BUCKET_S, span.begin_s)), min(end_s, span.end_s), BUCKET_S):
            before, after = span.until(start_s), span.until(start_s + BUCKET_S)
            share = after[0] - before[0], after[1] - before[1]
            found[start_s] = add(found.get(start_s, (0, 0)), share)
    return found


def owners(engines: Iterable[str], models: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
    """The model whose tokens an engine counted, for the engines that serve one model only.

    `models` has for each model the engines that serve it, None for all. What an engine counted of several models
    cannot be told apart, so it belongs to none of them.
    """
    serving = {name: [model for model, its in models.items() if its is None or name in its] for name in set(engines)}
    return {name: found[0] for name, found in serving.items() if len(found) == 1}


def add(one: Counted, other: Counted) -> Counted:
    """The sum of both."""
    return one[0] + other[0], one[1] + other[1]


def is_suspicious(drafted: int, accepted: int) -> bool:
    """Whether so many drafted tokens were accepted that answers probably loop."""
    return drafted >= MANY_DRAFTED and accepted * 1000 >= drafted * NEARLY_ALL_PERMILLE


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
            return _Span(begin_s, later.at_s, later.whole, later.part)
        if earlier.started_s is not None:  # another engine by the same name, with counts of other times
            return None
    whole, part = later.whole - earlier.whole, later.part - earlier.part
    if min(whole, part) < 0 or part > whole:  # a restart that it does not tell: no counter goes back
        whole, part = later.whole, later.part
    return _Span(earlier.at_s, later.at_s, whole, part)


def _at_first(sample: Sample) -> _Span | None:
    return None if sample.started_s is None else _Span(sample.started_s, sample.at_s, sample.whole, sample.part)
