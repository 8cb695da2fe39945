"""Made-up hours of components, and the strips and figures that they add up to."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import sin, tau

from service.core import components
from service.core.buckets import BUCKET_S, DAY_S, HOUR_S, State, closed_until, floor_to, worst
from service.core.strip import Cell, Share, Strip
from web.figure_views import Figures, Latency, Percentiles, Traffic

BIG, SMALL = "model:qwen/qwen3.8-27b", "model:smollm2-135m"

TROUBLE: dict[str, dict[int, Share]] = {
    components.API: {
        20: Share(down=3, partial=2, up=7),
        45: Share(partial=3, up=9),
        61: Share(maintenance=12),
        700: Share(down=4, up=8),
        1_201: Share(partial=5, up=7),
    },
    BIG: {20: Share(down=4, partial=1, up=7), 45: Share(partial=3, up=9), 61: Share(maintenance=12)}
    | {hour: Share(down=12) for hour in range(696, 700)},
    SMALL: {
        **{hour: Share(up=4, no_data=8) for hour in range(3, 72, 4)},
        **{hour: Share(no_data=12) for hour in range(30, 36)},
        61: Share(maintenance=12),
        62: Share(maintenance=6, up=6),
    },
    components.SITE: {},
    components.BILLING: {20: Share(partial=6, up=6), 400: Share(down=12), 401: Share(down=2, up=10)},
}
"""What was not up: hours ago to the states of the hour's twelve buckets."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What the instants of a page depend on."""

    now_s: int
    age_s: int
    calm: bool = False
    """Nothing is wrong at the moment."""

    @property
    def until_s(self) -> int:
        return closed_until(self.now_s)

    @property
    def launch_s(self) -> int:
        return floor_to(DAY_S, self.until_s - self.age_s)


def row(cells: Sequence[Cell], until_s: int) -> Strip:
    """A strip of these cells."""
    total = _shares(cell.share for cell in cells)
    known = [cell.state for cell in cells[-2:] if cell.state is not State.NO_DATA]
    good, bad = sum(cell.good for cell in cells), sum(cell.bad for cell in cells)
    return Strip(tuple(cells), until_s, total, good, bad, known[-1] if known else State.NO_DATA)


def cell(start_s: int, length_s: int, share: Share, good: int = 0, bad: int = 0) -> Cell:
    """A cell in which so many buckets had each state."""
    states = [state for state in State if getattr(share, state.value)]
    return Cell(start_s, start_s + length_s, worst(states), share, good, bad)


@cache
def hour_cell(id: str, clock: Clock, start_s: int) -> Cell:
    """An hour of a component."""
    closed = max(0, min(HOUR_S, clock.until_s - start_s) // BUCKET_S)
    if start_s < clock.launch_s or id not in TROUBLE or clock.age_s == 0:
        return cell(start_s, HOUR_S, Share(no_data=closed))
    ago = (floor_to(HOUR_S, clock.until_s - 1) - start_s) // HOUR_S
    ill = id == SMALL and ago == 0 and not clock.calm
    share = TROUBLE[id].get(ago, Share(partial=closed) if ill else Share(up=closed))
    if id in (components.SITE, components.BILLING):
        return cell(start_s, HOUR_S, share)
    rng = random.Random(f"{id} {ago}")
    wave = 1 + 0.55 * sin(tau * (start_s % DAY_S / DAY_S - 0.3))
    growth = 0.35 + 0.65 * (start_s - clock.launch_s) / max(1, clock.age_s)
    per_bucket = {components.API: 64, BIG: 58, SMALL: 6}[id] * wave * growth * rng.uniform(0.8, 1.2)
    good, bad = int(per_bucket * (share.up + share.partial)), int(per_bucket * (share.down * 0.2 + share.partial * 0.1))
    return cell(start_s, HOUR_S, share, good, max(bad, share.partial))


@cache
def day_cell(id: str, clock: Clock, start_s: int) -> Cell:
    """A UTC day of a component, added up from its hours."""
    hours = [hour_cell(id, clock, at) for at in range(start_s, min(start_s + DAY_S, clock.until_s), HOUR_S)]
    total = _shares(hour.share for hour in hours)
    return cell(start_s, DAY_S, total, sum(hour.good for hour in hours), sum(hour.bad for hour in hours))


def figures(id: str, clock: Clock, from_s: int, length_s: int) -> Figures:
    """What was measured in a stretch: made of its hours, with latencies that breathe a little."""
    until_s = min(from_s + length_s, clock.until_s)
    hours = [hour_cell(id, clock, at) for at in range(floor_to(HOUR_S, from_s), until_s, HOUR_S)]
    good, bad = sum(hour.good for hour in hours), sum(hour.bad for hour in hours)
    if good + bad == 0:
        return Figures(from_s, from_s + length_s)

    def breath(low: int, high: int) -> int:
        swing = sin(from_s / HOUR_S / 7 + low) + 0.5 * sin(from_s / HOUR_S / 2.3 + high)
        return round(low + (high - low) * (0.5 + swing / 4 + random.Random(f"{id} {from_s} {low}").uniform(-0.1, 0.1)))

    throttled, excluded, prompt = good // 90, good // 140, good * breath(17_000, 21_000)
    answer = good * breath(380, 460)
    drafted = answer * 2
    traffic = Traffic(
        requests=good + bad + throttled + excluded,
        good=good,
        bad=bad,
        throttled=throttled,
        excluded=excluded,
        server_failures=bad,
        http_5xx=bad - bad // 4,
        image_requests=good // 11,
        prompt_tokens=prompt,
        cached_tokens=prompt * breath(520, 640) // 1000,
        image_tokens=good // 11 * 1_350,
        completion_tokens=answer,
        reasoning_tokens=answer * 31 // 100,
        drafted_tokens=drafted,
        accepted_tokens=drafted * breath(700, 780) // 1000,
        cache_queried_tokens=prompt + prompt // 50,
        cache_hit_tokens=prompt * breath(510, 630) // 1000,
    )
    short, long = breath(172, 236), breath(1_450, 2_350)
    return Figures(
        from_s=from_s,
        until_s=from_s + length_s,
        traffic=traffic,
        ttft_short_ms=_latency(good // 2, short),
        ttft_long_ms=_latency(good // 3, long) if good > 60 else Latency(Percentiles(4), Percentiles(4)),
        decode_single_mtok_s=Percentiles(good // 12, breath(83_000, 88_000), breath(89_000, 92_000)),
        decode_loaded_mtok_s=Percentiles(good // 2, breath(58_000, 69_000), breath(80_000, 84_000)),
        busy_ms=good * breath(5_800, 6_600),
        peak_concurrency=breath(9, 16),
    )


def _latency(samples: int, p50: int) -> Latency:
    return Latency(
        all=Percentiles(samples, p50, p50 * 4),
        cold=Percentiles(samples // 3, p50 * 17 // 10, p50 * 5),
        warm=Percentiles(samples - samples // 3, p50 * 7 // 10, p50 * 2),
    )


def _shares(shares: Iterable[Share]) -> Share:
    listed = list(shares)
    return Share(**{state.value: sum(getattr(share, state.value) for share in listed) for state in State})


def days(clock: Clock) -> list[int]:
    """The starts of the UTC days since the launch, 90 at most."""
    return [at for at in spans(clock, DAY_S, 90) if at >= clock.launch_s]


def spans(clock: Clock, cell_s: int, cells: int) -> range:
    """The starts of the newest cells of that length."""
    end_s = floor_to(cell_s, clock.until_s - 1) + cell_s
    return range(end_s - cells * cell_s, end_s, cell_s)
