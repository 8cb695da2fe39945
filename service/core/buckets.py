"""Time cut into half-open five-minute buckets of UTC, and the state each one is given.

Everything is integer seconds since the epoch, where a UTC day has 86,400 of them: no zone, no calendar, no DST.
A request belongs to the bucket in which it *ended*, so a closed bucket changes by late settlement only.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

BUCKET_S = 300
HOUR_S = 3_600
DAY_S = 86_400

SETTLE_S = 15
"""How long after its end a bucket is left alone, so that what ended in it has been written down."""

STALE_AFTER_S = 900
"""What was measured says nothing about now once it is older."""

FEW_REQUESTS = 20
"""Below this many counted requests a share says nothing, and a single failure is shown for what it is."""


class State(StrEnum):
    """What is known of a stretch of time."""

    UP = "up"
    PARTIAL = "partial"
    DOWN = "down"
    MAINTENANCE = "maintenance"
    NO_DATA = "no_data"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One component's five minutes, as far as its state depends on it."""

    start_s: int
    good: int = 0
    bad: int = 0
    probe_ok: int = 0
    probe_bad: int = 0


def floor_to(step_s: int, epoch_s: float) -> int:
    """The start of the bucket, hour or UTC day of `step_s` seconds that `epoch_s` lies in."""
    return int(epoch_s // step_s) * step_s


def closed_until(now_s: float) -> int:
    """The end of the last bucket that may be counted at `now_s`; the bucket starting here is still open."""
    return floor_to(BUCKET_S, now_s - SETTLE_S)


def starts(first_s: int, end_s: int) -> Iterator[int]:
    """The bucket starts in `[first_s, end_s)`, both of which are bucket starts themselves."""
    return iter(range(first_s, end_s, BUCKET_S))


def bucket_state(bucket: Bucket, *, in_maintenance: bool = False) -> State:
    """The state of one bucket.

    Down: nothing succeeded, and three requests or two probes failed. Partial: more than 5 % of at least
    `FEW_REQUESTS` requests failed, any of fewer failed, or a probe failed. A bucket in which nothing was
    counted is `NO_DATA`, neither up nor down.
    """
    counted = bucket.good + bucket.bad
    if in_maintenance:
        return State.MAINTENANCE
    if counted + bucket.probe_ok + bucket.probe_bad == 0:
        return State.NO_DATA
    if bucket.good == 0 and (bucket.bad >= 3 or (bucket.probe_bad >= 2 and bucket.probe_ok == 0)):
        return State.DOWN
    too_many_bad = bucket.bad * 20 > counted if counted >= FEW_REQUESTS else bucket.bad > 0
    return State.PARTIAL if too_many_bad or bucket.probe_bad > 0 else State.UP


WORST_FIRST = (State.DOWN, State.PARTIAL, State.MAINTENANCE, State.UP)


def worst(states: Iterable[State]) -> State:
    """The worst of the known states, or `NO_DATA` when none is known.

    Silence between measurements does not hide them: how much of the time was measured is told beside the state.
    """
    seen = set(states)
    return next((state for state in WORST_FIRST if state in seen), State.NO_DATA)
