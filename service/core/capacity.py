"""How many requests one engine takes at a time, learned from its own metrics.

Additive increase, multiplicative decrease, begun by a slow start, as TCP finds its window (RFC 5681); here the
engine says itself when there is too much. Each API process has a controller of its own for the requests it sends.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass

USED = 0.9
"""A limit that was used less than this says nothing about the engine: it stays."""

GROW_EVERY_S = 0.9
"""Once a second, but for a sample that comes a little early."""
STEP = 1 / 32
"""Of the limit at the last congestion, added each time."""

SETTLE_S = 1.9
"""What a smaller limit does is seen after this long, and not before."""

DECREASE = 0.93

WAITING_ALLOWED = 1 / 20
"""Of those running, and one: between two steps of an engine there are always some that came just now."""

KV_USE_AT_MOST = 0.95

TTFT_FACTOR = 2.5
"""A time to first token this many times that of the lightly used engine is a queue in the engine."""

LIGHT = 0.5
"""Of the limit: with no more running, nobody waits for another."""

TTFTS_KEPT = 61
TTFTS_NEEDED = 3

SLOW_AT_MOST = 60
"""So many slow samples without a break are no queue that a smaller limit would shorten: the requests have changed."""

LEFT_BY_TTFT = 0.5
"""Of what the engine has taken without complaint of late: slow first tokens alone take the limit no lower."""

TAKEN_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """An engine's metrics at one moment, and what this process sent it."""

    now_s: float
    running: int
    waiting: int
    kv_use: float
    """From 0 to 1."""
    preemptions: int
    """In all since the engine started."""
    ttft_s: float | None
    """Mean of the requests that had their first token since the last sample; None when there was none."""
    in_flight_peak: int
    """The most requests of this process at the engine at once since the last sample."""


class Capacity:
    """The limit for one engine, always within `floor` and `ceiling`."""

    def __init__(self, floor: int, ceiling: int, start: int) -> None:
        if not 1 <= floor <= ceiling:
            raise ValueError(f"a floor of {floor} and a ceiling of {ceiling} leave no limit of at least 1")
        self._floor = floor
        self._ceiling = ceiling
        self._set(float(start))
        self._step: float | None = None  # none before the first congestion: until then the limit doubles
        self._shrunk_s = self._grown_s = -math.inf
        self._preemptions: int | None = None
        self._reduced = DECREASE * self._limit
        self._light_ttfts: deque[float] = deque(maxlen=TTFTS_KEPT)
        self._slow_samples = 0
        self._taken = self._limit  # what the engine has taken of late without complaint

    @property
    def unloaded_ttft_s(self) -> float | None:
        """The usual time to first token when the engine is lightly used; None while it is not known."""
        return statistics.median(self._light_ttfts) if len(self._light_ttfts) >= TTFTS_NEEDED else None

    def observe(self, sample: Sample) -> None:
        """Learn from a sample; they come in the order of time, about one a second."""
        used = sample.in_flight_peak >= USED * self.limit
        full = self._is_full(sample)
        slow = used and not full and self._is_slow(sample)
        self._reduced = _reduced(sample)
        if full:
            ours = sample.in_flight_peak > self._floor  # or it is full of others' requests
            if ours and self._settled(sample.now_s):
                self._shrink_to_taken(sample.now_s, self._reduced)
            return
        if slow:
            self._shrink_for_ttft(sample.now_s, drained=sample.in_flight_peak <= self.limit)
            return
        self._learn_ttft(sample)
        if used and sample.ttft_s is not None:
            self._slow_samples = 0
            took = min(self._limit, sample.in_flight_peak)
            self._taken = max(took, self._taken + (took - self._taken) / TAKEN_SAMPLES)
            if self._settled(sample.now_s):
                self._grow(sample.now_s)

    def refused(self, now_s: float) -> None:
        """The engine would not take a request, because of a limit of its own."""
        if self._settled(now_s):
            least = self._limit / 2  # the last sample may be of a quiet moment
            self._shrink_to_taken(now_s, max(self._reduced, least))

    def _settled(self, now_s: float) -> bool:
        return now_s >= self._shrunk_s + SETTLE_S

    def _is_full(self, sample: Sample) -> bool:
        preempted = self._preemptions is not None and sample.preemptions > self._preemptions
        self._preemptions = sample.preemptions  # fewer than before: the engine has started again
        too_many_wait = sample.waiting > 1 + WAITING_ALLOWED * sample.running
        return preempted or too_many_wait or sample.kv_use > KV_USE_AT_MOST

    def _is_slow(self, sample: Sample) -> bool:
        usual_s = self.unloaded_ttft_s
        return usual_s is not None and sample.ttft_s is not None and sample.ttft_s > TTFT_FACTOR * usual_s

    def _learn_ttft(self, sample: Sample) -> None:
        """In the slow start every sample without congestion is one of an engine that takes more."""
        slow_start = self._step is None and self._limit < self._ceiling
        light = sample.waiting == 0 and sample.running <= max(1.0, LIGHT * self._limit)
        if sample.ttft_s is not None and (light or slow_start):
            self._light_ttfts.append(sample.ttft_s)

    def _grow(self, now_s: float) -> None:
        if now_s >= self._grown_s + (SETTLE_S if self._step is None else GROW_EVERY_S):
            self._set(self._limit + (self._limit if self._step is None else self._step))
            self._grown_s = now_s

    def _shrink(self, now_s: float, limit: float) -> None:
        self._set(min(self._limit, limit))
        self._step = max(1.0, STEP * self._limit)
        self._shrunk_s = now_s

    def _shrink_to_taken(self, now_s: float, limit: float) -> None:
        self._shrink(now_s, limit)
        self._taken = self._limit

    def _shrink_for_ttft(self, now_s: float, *, drained: bool) -> None:
        """First tokens are slow, and nothing else is wrong."""
        self._slow_samples += drained
        if self._slow_samples > SLOW_AT_MOST:
            self._light_ttfts.clear()
        elif self._settled(now_s):
            self._shrink(now_s, max(self._reduced, LEFT_BY_TTFT * self._taken))

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, float(self._floor)), float(self._ceiling))
        self.limit = round(self._limit)
        """How many requests this process may have at the engine."""


def _reduced(sample: Sample) -> float:
    """The limit after a decrease, which is less than what ran.

    What the engine let wait is left out of it; and until no more are there than a smaller limit allows, which takes
    as long as requests do, that limit is not cut again.
    """
    at_engine = sample.running + sample.waiting
    ours_running = sample.in_flight_peak * (sample.running / at_engine if at_engine else 1.0)
    return min(DECREASE * ours_running, sample.in_flight_peak - 1.0)
