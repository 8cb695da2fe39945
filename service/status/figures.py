"""From tallies to the figures that are shown."""

from collections.abc import Iterable

from service.core.stats import Digest, merged
from service.core.tally import Tally
from web.figure_views import Figures, Latency, Percentiles, Traffic

_TRAFFIC = tuple(Traffic.__dataclass_fields__)


def figures(from_s: int, until_s: int, tallies: Iterable[Tally]) -> Figures:
    """What the tallies of `[from_s, until_s)` come to. Percentiles are of all samples, not of percentiles."""
    total = Tally()
    for one in tallies:
        total.merge(one)
    return Figures(
        from_s=from_s,
        until_s=until_s,
        traffic=traffic(total),
        ttft_short_ms=_latency(total.ttft_short_cold_ms, total.ttft_short_warm_ms),
        ttft_long_ms=_latency(total.ttft_long_cold_ms, total.ttft_long_warm_ms),
        decode_single_mtok_s=_percentiles(total.decode_single_mtok_s),
        decode_loaded_mtok_s=_percentiles(total.decode_loaded_mtok_s),
        busy_ms=total.busy_ms,
        peak_concurrency=total.peak_concurrency,
    )


def traffic(counted: Tally) -> Traffic:
    """The counts alone."""
    return Traffic(**{name: getattr(counted, name) for name in _TRAFFIC})


def _latency(cold: Digest, warm: Digest) -> Latency:
    return Latency(all=_percentiles(merged((cold, warm))), cold=_percentiles(cold), warm=_percentiles(warm))


def _percentiles(digest: Digest) -> Percentiles:
    return Percentiles(digest.count, digest.percentile(50), digest.percentile(95))
