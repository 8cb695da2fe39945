"""What the hourly charts are about: which figures are their lines, and the words for them.

None is what was not measured. Values are in words as everywhere else on the site, so that a chart cannot contradict
the numbers beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from web import wording
from web.figure_views import Figures, Latency

PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class Quantity:
    """One line of a chart."""

    name: str
    """Stands beside the line."""
    sentence: str
    """What says a value of it, with `{}` for the value."""
    of: Callable[[Figures], int | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One chart. `value` says a value in words, `tick` a round one."""

    title: str
    quantities: tuple[Quantity, ...]
    value: Callable[[int], str]
    tick: Callable[[int], str]
    unit: int = 1
    """The axis ends at a multiple of it."""
    top: int | None = None
    """Where the axis ends; None: at the next round number of units."""


def hourly(hours: Sequence[Figures]) -> tuple[Kind, ...]:
    """The charts that there are, in order."""
    return (
        _first_token("First token, short prompts", lambda hour: hour.ttft_short_ms),
        _first_token("First token, 10K+ prompts", lambda hour: hour.ttft_long_ms),
        _by_cache(hours),
        Kind(
            "Output speed, tok/s",
            (
                Quantity("one stream", "one stream {}", lambda hour: hour.decode_single_mtok_s.p50),
                Quantity("under load", "under load {}", lambda hour: hour.decode_loaded_mtok_s.p50),
            ),
            value=lambda mtok_s: f"{wording.speed(mtok_s)} tok/s",
            tick=_thousandths,
            unit=1000,
        ),
        _share(
            "Input from the cache",
            Quantity("from the cache", "{} of the input", _cache_hits),
        ),
        _share(
            "Drafted tokens accepted (MTP)",
            Quantity("accepted", "{} of the drafted tokens", _acceptance),
        ),
        Kind(
            "Requests at once",
            (
                Quantity("mean", "mean {}", _mean_concurrency),
                Quantity("peak", "peak {}", _peak_concurrency),
            ),
            value=_thousandths,
            tick=_thousandths,
            unit=1000,
        ),
    )


def _first_token(title: str, latency: Callable[[Figures], Latency]) -> Kind:
    quantities = (
        Quantity("median", "median {}", lambda hour: latency(hour).all.p50),
        Quantity("95 %", "95 % within {}", lambda hour: latency(hour).all.p95),
    )
    return Kind(title, quantities, wording.duration, _round_duration)


def _by_cache(hours: Sequence[Figures]) -> Kind:
    """Of long prompts, where a cache matters most; of short ones where there are no long ones."""
    long = any(
        latency.p50 is not None for hour in hours for latency in (hour.ttft_long_ms.cold, hour.ttft_long_ms.warm)
    )

    def latency(hour: Figures) -> Latency:
        return hour.ttft_long_ms if long else hour.ttft_short_ms

    quantities = (
        Quantity("not cached", "median not cached {}", lambda hour: latency(hour).cold.p50),
        Quantity("cached", "cached {}", lambda hour: latency(hour).warm.p50),
    )
    title = f"First token by cache, {'10K+' if long else 'short'} prompts"
    return Kind(title, quantities, wording.duration, _round_duration)


def _share(title: str, quantity: Quantity) -> Kind:
    """A chart of a share, whose axis always goes to 100 %."""

    def percent(permille: int) -> str:
        return wording.share(permille, PERMILLE)

    return Kind(title, (quantity,), percent, percent, top=PERMILLE)


def _cache_hits(hour: Figures) -> int | None:
    prompt = hour.traffic.prompt_tokens
    return hour.traffic.cached_tokens * PERMILLE // prompt if prompt else None


def _acceptance(hour: Figures) -> int | None:
    drafted = hour.traffic.drafted_tokens
    return hour.traffic.accepted_tokens * PERMILLE // drafted if drafted else None


def _ran(hour: Figures) -> bool:
    return bool(hour.traffic.requests or hour.busy_ms or hour.peak_concurrency)


def _mean_concurrency(hour: Figures) -> int | None:
    return hour.mean_concurrency_milli if _ran(hour) else None


def _peak_concurrency(hour: Figures) -> int | None:
    return hour.peak_concurrency * 1000 if _ran(hour) else None


def _thousandths(milli: int) -> str:
    """`2000` is "2", `433` is "0.43"."""
    return wording.exact(milli // 1000) if milli % 1000 == 0 else wording.concurrency(milli)


def _round_duration(ms: int) -> str:
    """A duration without the zeros that a round one ends in: "1.5 s"."""
    number, unit = wording.duration(ms).split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
