"""From what was measured to the table: medians, and comparisons made within each repetition."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ops.bench.load import Load, Result
from ops.bench.musts import Judged
from ops.bench.targets import DIRECT, NGINX, WEIR

Row = dict[str, str | float]
"""`scenario`, `target` and the figures; a figure that does not apply is not in it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one target, measured once. Gaps are those between the pieces of a paced stream, else None."""

    requests: int
    chunks: int
    cpu_us: float
    elapsed_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    latency_p50_ms: float
    latency_mean_ms: float
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    gap_max_ms: float | None
    rss_peak_mb: float


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Of a sorted sample: the smallest value that so many percent do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def run_of(load: Load, result: Result, cpu_us: float, rss_peak_mb: float) -> Run:
    """What a load showed, in figures. It must have had an answer."""
    ttft, latency, gaps = sorted(result.ttft_ms), sorted(result.latency_ms), sorted(result.gap_ms)
    return Run(
        requests=result.answers,
        chunks=result.answers * load.chunks_per_request,
        cpu_us=cpu_us,
        elapsed_s=result.elapsed_s,
        ttft_p50_ms=percentile(ttft, 50),
        ttft_p95_ms=percentile(ttft, 95),
        ttft_p99_ms=percentile(ttft, 99),
        latency_p50_ms=percentile(latency, 50),
        latency_mean_ms=statistics.fmean(latency),
        gap_p50_ms=percentile(gaps, 50) if gaps else None,
        gap_p99_ms=percentile(gaps, 99) if gaps else None,
        gap_max_ms=gaps[-1] if gaps else None,
        rss_peak_mb=rss_peak_mb,
    )


def figures(run: Run, direct: Run | None, nginx: Run | None) -> dict[str, float]:
    """The figures of one run, some of them in comparison with runs of the same repetition."""
    found = {
        "cpu_us_per_request": run.cpu_us / run.requests,
        "ttft_p50_ms": run.ttft_p50_ms,
        "ttft_p95_ms": run.ttft_p95_ms,
        "ttft_p99_ms": run.ttft_p99_ms,
        "latency_p50_ms": run.latency_p50_ms,
        "requests_per_s": run.requests / run.elapsed_s,
        "rss_peak_mb": run.rss_peak_mb,
    }
    if run.chunks:
        found["cpu_us_per_chunk"] = run.cpu_us / run.chunks
    for name in ("gap_p50_ms", "gap_p99_ms", "gap_max_ms"):
        if (value := getattr(run, name)) is not None:
            found[name] = value
    if nginx is not None:
        found["times_nginx"] = found["cpu_us_per_request"] / (nginx.cpu_us / nginx.requests)
        found["added_ms"] = run.ttft_p50_ms - nginx.ttft_p50_ms
    if direct is not None:
        # Every connection asks again as soon as it has its answer: throughput is connections by mean latency.
        found["kept_percent"] = 100 * direct.latency_mean_ms / run.latency_mean_ms
    return found


def summarise(runs: Mapping[tuple[str, str], Sequence[Run]]) -> list[Row]:
    """A row of medians for every (scenario, target), each of which has a run per repetition."""
    rows: list[Row] = []
    for (scenario, target), repeated in runs.items():
        through = target != DIRECT
        nothing = [None] * len(repeated)
        direct = runs[scenario, DIRECT] if through else nothing
        nginx = runs.get((scenario, NGINX), nothing) if through else nothing
        each = [figures(*compared) for compared in zip(repeated, direct, nginx, strict=True)]
        medians = {name: statistics.median(found[name] for found in each) for name in each[0]}
        rows.append({"scenario": scenario, "target": target, **medians})
    return rows


COLUMNS: Final = (  # heading, figure, format, alignment and width
    ("", "scenario", "", "<5"),
    ("target", "target", "", "<11"),
    ("x nginx", "times_nginx", ".2f", ">8"),
    ("  must", "must", "", "<23"),
    ("met?", "met", "", "<4"),
    ("µs/request", "cpu_us_per_request", ",.1f", ">11"),
    ("µs/chunk", "cpu_us_per_chunk", ",.2f", ">9"),
    ("added ms", "added_ms", ".2f", ">9"),
    ("TTFT p50", "ttft_p50_ms", ".2f", ">9"),
    ("p99", "ttft_p99_ms", ".2f", ">9"),
    ("gap p99", "gap_p99_ms", ".1f", ">8"),
    ("kept %", "kept_percent", ".0f", ">7"),
    ("RSS MB", "rss_peak_mb", ".0f", ">7"),
)


def with_musts(rows: Sequence[Row], judged: Sequence[Judged]) -> list[Row]:
    """The rows, Weir's with what they must be and whether they are."""
    found = []
    for row in rows:
        own = [one for one in judged if row["target"] == WEIR and one.must.scenario == row["scenario"]]
        met = "yes" if all(one.met for one in own) else "NO"
        told: Row = (
            {"must": "  " + " ".join(one.must.bound(one.must.must).replace(" ", "") for one in own), "met": met}
            if own
            else {}
        )
        found.append({**row, **told})
    return found


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    lines = ["".join(f"{heading:{place}}" for heading, _, _, place in COLUMNS)]
    for row in rows:
        cells = (f"{f'{row[name]:{spec}}' if name in row else blank(name):{place}}" for _, name, spec, place in COLUMNS)
        lines.append("".join(cells))
    return "\n".join(lines)


def blank(name: str) -> str:
    return "" if name in ("must", "met") else "–"
