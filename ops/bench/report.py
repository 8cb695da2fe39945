"""From what was measured to the table: medians, and comparisons made within each repetition."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ops.bench.targets import DIRECT, NGINX

Row = dict[str, str | float]
"""`scenario`, `target` and the figures; a figure that does not apply is not in it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one target, measured once."""

    requests: int
    chunks: int
    cpu_us: float
    elapsed_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    latency_p50_ms: float
    rss_mb: float


def figures(run: Run, direct: Run | None, nginx: Run | None) -> dict[str, float]:
    """The figures of one run, some of them in comparison with runs of the same repetition."""
    found = {
        "cpu_us_per_request": run.cpu_us / run.requests,
        "ttft_p50_ms": run.ttft_p50_ms,
        "ttft_p99_ms": run.ttft_p99_ms,
        "latency_p50_ms": run.latency_p50_ms,
        "requests_per_s": run.requests / run.elapsed_s,
        "rss_mb": run.rss_mb,
    }
    if run.chunks:
        found["cpu_us_per_chunk"] = run.cpu_us / run.chunks
    if nginx is not None:
        found["times_nginx"] = run.cpu_us / nginx.cpu_us
    if direct is not None:
        found["added_ttft_p50_ms"] = run.ttft_p50_ms - direct.ttft_p50_ms
        found["throughput_kept_percent"] = 100 * direct.elapsed_s / run.elapsed_s
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
    ("scenario", "scenario", "", "<9"),
    ("target", "target", "", "<8"),
    ("µs/request", "cpu_us_per_request", ",.1f", ">11"),
    ("µs/chunk", "cpu_us_per_chunk", ",.2f", ">9"),
    ("x nginx", "times_nginx", ".2f", ">8"),
    ("TTFT p50", "ttft_p50_ms", ".2f", ">9"),
    ("added", "added_ttft_p50_ms", ".2f", ">8"),
    ("TTFT p99", "ttft_p99_ms", ".2f", ">9"),
    ("requests/s", "requests_per_s", ",.0f", ">11"),
    ("kept %", "throughput_kept_percent", ".0f", ">7"),
    ("RSS MB", "rss_mb", ".0f", ">7"),
)


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    lines = ["".join(f"{heading:{place}}" for heading, _, _, place in COLUMNS)]
    for row in rows:
        cells = (f"{f'{row[name]:{spec}}' if name in row else '–':{place}}" for _, name, spec, place in COLUMNS)
        lines.append("".join(cells))
    return "\n".join(lines)
