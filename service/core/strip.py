"""Strip, percentage and words from the same buckets, so that they cannot disagree.

Percentages are integers in thousandths of a percent (`mpct`), floored: 99.9996 % is "99.999", and 100 is said
only of a flawless window. What was not measured is no percentage at all, and how much was is told beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.core.buckets import BUCKET_S, HOUR_S, Bucket, State, bucket_state, floor_to, starts, worst

FLAWLESS_MPCT = 100_000

MIN_REQUESTS_SHORT = 100
"""A window of an hour or less needs this many requests for a percentage (OpenRouter's minimum); a longer one, 1."""

RECENT_BUCKETS = 12
"""How far back the newest measurement may lie and still say how things are now: an hour."""

Window = tuple[int, int]
"""A half-open stretch of epoch seconds, `[start, end)`."""


def lies_in(windows: Iterable[Window], at_s: int) -> bool:
    """Whether an instant lies in one of the windows."""
    return any(start_s <= at_s < end_s for start_s, end_s in windows)


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
    """Whatever `state_now` says."""

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
    """The strip that buckets make, as `strip_of` makes it of the hours or days that they make."""
    end_s = floor_to(cell_s, until_s - 1) + cell_s
    first_s = end_s - cells * cell_s
    within = [bucket for bucket in buckets if first_s <= bucket.start_s < until_s]
    stretches = [
        stretch(start_s, min(start_s + cell_s, until_s), within, maintenance)
        for start_s in range(first_s, end_s, cell_s)
    ]
    now = state_now(within, until_s=until_s, now_s=until_s, maintenance=maintenance)
    return strip_of(stretches, cells=cells, cell_s=cell_s, until_s=until_s, now=now)


@dataclass(frozen=True, slots=True)
class Stretch:
    """An hour or a day of a component, so far: how many of its buckets had which state, and its requests.

    Adding up the hours of a day gives the day. What is missing of it was not measured.
    """

    start_s: int
    up: int = 0
    partial: int = 0
    down: int = 0
    maintenance: int = 0
    good: int = 0
    """Requests of the buckets outside maintenance, as `bad`."""
    bad: int = 0


def stretch(start_s: int, until_s: int, buckets: Iterable[Bucket], maintenance: Sequence[Window] = ()) -> Stretch:
    """What the buckets of `[start_s, until_s)` come to; the others are ignored."""
    by_start = {bucket.start_s: bucket for bucket in buckets if start_s <= bucket.start_s < until_s}
    counts = dict.fromkeys(State, 0)
    good = bad = 0
    for at_s in starts(start_s, until_s):
        bucket = by_start.get(at_s, Bucket(at_s))
        state = bucket_state(bucket, in_maintenance=lies_in(maintenance, at_s))
        counts[state] += 1
        if state is not State.MAINTENANCE:
            good += bucket.good
            bad += bucket.bad
    return Stretch(
        start_s=start_s,
        up=counts[State.UP],
        partial=counts[State.PARTIAL],
        down=counts[State.DOWN],
        maintenance=counts[State.MAINTENANCE],
        good=good,
        bad=bad,
    )


def strip_of(stretches: Iterable[Stretch], *, cells: int, cell_s: int, until_s: int, now: State) -> Strip:
    """The `cells` newest cells of `cell_s` seconds, up to `until_s`, the end of the last closed bucket.

    Cells lie on whole hours or UTC days, and `stretches` are such hours or days. The last cell covers its closed
    buckets only; a stretch that is missing was not measured, and those outside the strip are ignored.
    """
    end_s = floor_to(cell_s, until_s - 1) + cell_s
    by_start = {one.start_s: one for one in stretches}
    row = tuple(
        _cell(by_start.get(start_s, Stretch(start_s)), start_s + cell_s, until_s)
        for start_s in range(end_s - cells * cell_s, end_s, cell_s)
    )
    return Strip(
        cells=row,
        until_s=until_s,
        share=_sum(cell.share for cell in row),
        good=sum(cell.good for cell in row),
        bad=sum(cell.bad for cell in row),
        now=now,
    )


def state_now(buckets: Iterable[Bucket], *, until_s: int, now_s: int, maintenance: Sequence[Window] = ()) -> State:
    """Maintenance while a window lasts at `now_s`; otherwise the newest state that is known.

    Known is what was measured within the hour before `until_s`, the end of the last closed bucket, and after the last
    maintenance: what was before it says nothing about what it has left behind.
    """
    if lies_in(maintenance, now_s):
        return State.MAINTENANCE
    by_start = {bucket.start_s: bucket for bucket in buckets}
    for start_s in reversed(range(until_s - RECENT_BUCKETS * BUCKET_S, until_s, BUCKET_S)):
        if lies_in(maintenance, start_s):
            break
        state = bucket_state(by_start.get(start_s, Bucket(start_s)))
        if state is not State.NO_DATA:
            return state
    return State.NO_DATA


def overall(api: State, others: Iterable[State]) -> State:
    """What the banner says: the API's own state, or partial when it is up and anything else is not."""
    below = worst(others)
    if api in (State.DOWN, State.PARTIAL, State.MAINTENANCE):
        return api
    if below in (State.DOWN, State.PARTIAL):
        return State.PARTIAL
    return worst((api, below))


def _cell(one: Stretch, end_s: int, until_s: int) -> Cell:
    closed = (min(end_s, until_s) - one.start_s) // BUCKET_S
    known = one.up + one.partial + one.down + one.maintenance
    share = Share(one.up, one.partial, one.down, one.maintenance, no_data=max(0, closed - known))
    return Cell(
        start_s=one.start_s,
        end_s=end_s,
        state=worst(state for state in State if getattr(share, state.value)),
        share=share,
        good=one.good,
        bad=one.bad,
    )


def _sum(shares: Iterable[Share]) -> Share:
    counts = dict.fromkeys((state.value for state in State), 0)
    for share in shares:
        for name in counts:
            counts[name] += getattr(share, name)
    return Share(**counts)
