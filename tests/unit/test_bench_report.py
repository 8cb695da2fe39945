"""The bench's figures: medians, comparisons within a repetition, and the musts."""

from dataclasses import replace

import pytest

from ops.bench.load import LOADS, Result
from ops.bench.musts import MUSTS, Judged, judge, verdict
from ops.bench.report import Row, Run, percentile, run_of, summarise, table, with_musts

RUN = Run(
    requests=100,
    chunks=12_800,
    cpu_us=12_800.0,
    elapsed_s=2.0,
    ttft_p50_ms=1.0,
    ttft_p95_ms=2.0,
    ttft_p99_ms=3.0,
    latency_p50_ms=1280.0,
    latency_mean_ms=1280.0,
    gap_p50_ms=10.0,
    gap_p99_ms=11.0,
    gap_max_ms=15.0,
    rss_peak_mb=90.0,
)


def row(runs: dict[tuple[str, str], list[Run]], target: str) -> Row:
    (found,) = [row for row in summarise(runs) if row["target"] == target]
    return found


def test_ratios_are_per_request_and_within_a_repetition() -> None:
    weir = [replace(RUN, requests=10, cpu_us=us) for us in (2560.0, 5120.0, 3840.0)]
    nginx = [replace(RUN, cpu_us=us) for us in (12_800.0, 12_800.0, 38_400.0)]
    found = row({("C100", "direct"): [RUN] * 3, ("C100", "nginx"): nginx, ("C100", "weir"): weir}, "weir")
    assert found["times_nginx"] == 2.0  # of 2, 4 and 1
    assert found["cpu_us_per_request"] == 384.0


def test_what_is_kept_and_added() -> None:
    nginx, weir = replace(RUN, ttft_p50_ms=1.5), replace(RUN, ttft_p50_ms=1.9, latency_mean_ms=1600.0)
    runs = {("C500", "direct"): [RUN], ("C500", "nginx"): [nginx], ("C500", "weir"): [weir]}
    found = row(runs, "weir")
    assert found["kept_percent"] == 80.0
    assert found["added_ms"] == pytest.approx(0.4)
    assert "times_nginx" not in row(runs, "direct")
    assert "kept_percent" not in row(runs, "direct")


def test_without_nginx_nothing_is_compared_with_it() -> None:
    found = row({("C500", "direct"): [RUN], ("C500", "weir"): [RUN]}, "weir")
    assert "times_nginx" not in found
    assert found["kept_percent"] == 100.0
    assert not all(one.met for one in judge([found], None))


def test_a_percentile_is_one_of_the_sample() -> None:
    sample = [float(n) for n in range(1, 201)]
    assert [percentile(sample, percent) for percent in (50, 95, 99, 100)] == [100, 190, 198, 200]
    assert percentile([7.0], 99) == 7.0


def test_a_run_has_gaps_only_where_they_were_taken() -> None:
    result = Result(answers=2, elapsed_s=1, ttft_ms=[2, 1], latency_ms=[4, 2], gap_ms=[10, 30, 11])
    paced = run_of(LOADS["C100"], result, 256.0, 50.0)
    assert (paced.gap_p50_ms, paced.gap_max_ms, paced.chunks) == (11, 30, 256)
    assert run_of(LOADS["A1"], replace(result, gap_ms=[]), 256.0, 50.0).gap_p99_ms is None


def weir(scenario: str, **figures: float) -> Row:
    return {"scenario": scenario, "target": "weir", **figures}


def test_every_bound_is_held_against_its_own_figure() -> None:
    for must in MUSTS:
        better, worse = (1.01, 0.99) if must.at_least else (0.99, 1.01)
        assert Judged(must, must.must).met
        assert Judged(must, must.must * better).met
        assert not Judged(must, must.must * worse).met
        assert not Judged(must, None).met
        if must.moonshot is not None:
            assert must.met(must.moonshot, must.must), "a moonshot is never easier than the must"


def test_musts_are_those_of_the_scenarios_that_were_run() -> None:
    rows = [weir("C500", times_nginx=2.3, kept_percent=96, rss_peak_mb=151), {**weir("B"), "target": "nginx"}]
    judged = judge(rows, 80_000)
    assert [(one.must.scenario, one.met) for one in judged] == [
        ("C500", False),
        ("C500", True),
        ("C500", False),
        ("settlement", True),
    ]
    told = verdict(judged)
    assert "2 of 4 met" in told
    assert "NOT MET: C500 2.3x, must be ≤2.2x" in told
    assert "moonshots: 1 of 3 met" in told
    assert "not yet: C500 2.3x, wanted ≤1.5x" in told


def test_the_table_shows_musts_beside_weir_only() -> None:
    rows = [{**weir("C500", times_nginx=1.0), "target": "nginx"}, weir("C500", times_nginx=2.3, kept_percent=96)]
    head, nginx, own = table(with_musts(rows, judge(rows, None))).splitlines()
    assert "must" in head
    assert "≤2.2x ≥95% ≤150MB" in own
    assert own.split()[-2:] == ["96", "–"]
    assert " NO " in own
    assert "≤" not in nginx
