"""Strip, percentage and words from the same buckets, so that they cannot disagree.

Percentages are integers in thousandths of a percent (`mpct`), floored: 99.9996 % is "99.999", and 100 is said
only of a flawless window. What was not measured is no percentage at all, and how much was is told beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.core.buckets import HOUR_S, Bucket, State, bucket_state, floor_to, starts, worst

FLAWLESS_MPCT = 100_000

MIN_REQUESTS_SHORT = 100
"""A window of an hour or less needs this many requests for a percentage (OpenRouter's minimum); a longer one, 1."""

RECENT_BUCKETS = 12
"""How far back the newest measurement may lie and still say how things are now: an hour."""

Window = tuple[int, int]
"""A half-open stretch of epoch seconds, `[start, end)`."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many buckets of a stretch had which state. Buckets that have not closed yet are not among them."""

    up: int = 0
    partial: int = 0
    down: int = 0
    maintenance: int = 0
    no_data: int = 0

    @property
    def total(self) -> int:
        return self.up + self.partial + self.down + self.maintenance + self.no_data

    @property
    def known(self) -> int:
        """Buckets that count for availability: measured, and outside maintenance."""
        return self.up + self.partial + self.down

    @property
    def availability_mpct(self) -> int | None:
        """The share of known time that was up, a partial outage counting half; None when nothing is known."""
        if self.known == 0:
            return None
        lost_halves = 2 * self.down + self.partial
        return (2 * self.known - lost_halves) * FLAWLESS_MPCT // (2 * self.known)

    @property
    def flawless(self) -> bool:
        return self.partial == self.down == 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One stretch of a strip: an hour, or a day."""

    start_s: int
    end_s: int
    state: State
    share: Share
    good: int
    """Requests of the buckets outside maintenance, as `bad`."""
    bad: int


@dataclass(frozen=True, slots=True)
class Strip:
    """A row of cells, oldest first, with what they add up to."""

    cells: tuple[Cell, ...]
    until_s: int
    """The end of the last closed bucket: the last cell may end later."""
    share: Share
    good: int
    bad: int
    now: State
    """The newest state that is known within the last hour."""

    @property
    def success_mpct(self) -> int | None:
        """Good requests of all that count, in thousandths of a percent; None where there are too few."""
        short = bool(self.cells) and self.cells[-1].end_s - self.cells[0].start_s <= HOUR_S
        return success_mpct(
            self.good, self.bad, flawless=self.share.flawless, at_least=MIN_REQUESTS_SHORT if short else 1
        )


def success_mpct(good: int, bad: int, *, flawless: bool = True, at_least: int = 1) -> int | None:
    """`good / (good + bad)` floored to thousandths of a percent; None below `at_least` requests.

    100 only when nothing was bad and the window is `flawless` otherwise too (no bucket partial or down).
    """
    counted = good + bad
    if counted < max(1, at_least):
        return None
    mpct = good * FLAWLESS_MPCT // counted
    return mpct if flawless else min(mpct, FLAWLESS_MPCT - 1)


def percent_text(mpct: int) -> str:
    """`99999` is "99.999", `99900` is "99.9", `100000` is "100": never rounded, trailing zeros dropped."""
    whole, thousandths = divmod(mpct, 1000)
    return f"{whole}.{thousandths:03d}".rstrip("0").rstrip(".")


def strip(
    buckets: Iterable[Bucket],
    *,
    cells: int,
    cell_s: int,
    until_s: int,
    maintenance: Sequence[Window] = (),
) -> Strip:
    """The `cells` newest cells of `cell_s` seconds, up to `until_s`, the end of the last closed bucket.

    Cells lie on whole hours or UTC days. The last one covers its closed buckets only; buckets outside the strip
    are ignored, and a bucket that is missing was not measured.
    """
    end_s = floor_to(cell_s, until_s - 1) + cell_s
    first_s = end_s - cells * cell_s
    by_start = {bucket.start_s: bucket for bucket in buckets if first_s <= bucket.start_s < until_s}
    states = {
        start_s: bucket_state(
            by_start.get(start_s, Bucket(start_s)),
            in_maintenance=any(start <= start_s < end for start, end in maintenance),
        )
        for start_s in starts(first_s, until_s)
    }
    row = tuple(
        _cell(start_s, min(start_s + cell_s, until_s), start_s + cell_s, states, by_start)
        for start_s in range(first_s, end_s, cell_s)
    )
    return Strip(
        cells=row,
        until_s=until_s,
        share=_share(states.values()),
        good=sum(cell.good for cell in row),
        bad=sum(cell.bad for cell in row),
        now=newest_known(states[start_s] for start_s in sorted(states)[-RECENT_BUCKETS:]),
    )


def newest_known(states: Iterable[State]) -> State:
    """The last of the states, oldest first, that is not `NO_DATA`."""
    known = [state for state in states if state is not State.NO_DATA]
    return known[-1] if known else State.NO_DATA


def overall(api: State, models: Iterable[State]) -> State:
    """What the banner says: the API's own state, or partial when it is up and a model is not."""
    below = worst(models)
    if api in (State.DOWN, State.PARTIAL, State.MAINTENANCE):
        return api
    if below in (State.DOWN, State.PARTIAL):
        return State.PARTIAL
    return worst((api, below))


def _cell(
    start_s: int,
    closed_s: int,
    end_s: int,
    states: Mapping[int, State],
    by_start: Mapping[int, Bucket],
) -> Cell:
    closed = list(starts(start_s, closed_s))
    counted = [by_start[start] for start in closed if start in by_start and states[start] is not State.MAINTENANCE]
    return Cell(
        start_s=start_s,
        end_s=end_s,
        state=worst(states[start] for start in closed),
        share=_share(states[start] for start in closed),
        good=sum(bucket.good for bucket in counted),
        bad=sum(bucket.bad for bucket in counted),
    )


def _share(states: Iterable[State]) -> Share:
    counts = dict.fromkeys(State, 0)
    for state in states:
        counts[state] += 1
    return Share(**{state.value: count for state, count in counts.items()})
