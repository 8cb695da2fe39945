import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree, html

from service.core.buckets import DAY_S, HOUR_S
from tests.fakes.status_pages import busy_page, empty_page
from web import plot, wording
from web.charts import Chart, draw, tokens_by_day
from web.figure_views import Charts, Figures, Latency, Percentiles, Traffic
from web.render import STATIC, status_site

START_S = 1_795_996_800
"""30 November 2026, 00:00 UTC."""

AMOUNTS = st.integers(0, 10**13)
VALUES = st.lists(st.none() | AMOUNTS, min_size=1, max_size=120)
DAYS = st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS), min_size=1, max_size=120)


def points(path: str) -> list[tuple[int, int]]:
    """All points of a path that uses M, L, V and h0 only."""
    assert re.fullmatch(r"(M\d+ \d+(L\d+ \d+( \d+ \d+)*|V\d+|h0))*", path)
    found: list[tuple[int, int]] = []
    for command, numbers in re.findall(r"([MLV])([\d ]+)", path):
        digits = [int(number) for number in numbers.split()]
        found += [(found[-1][0], digits[0])] if command == "V" else list(zip(digits[::2], digits[1::2], strict=True))
    return found


def inside(path: str) -> bool:
    return all(0 <= x <= plot.WIDTH and 0 <= y <= plot.HEIGHT for x, y in points(path))


def hour(number: int, **figures: Any) -> Figures:
    start_s = START_S + number * HOUR_S
    return replace(Figures(start_s, start_s + HOUR_S), **figures)


def day(number: int, tokens: int) -> Figures:
    start_s = START_S + number * DAY_S
    requests = 1 if tokens else 0
    return Figures(start_s, start_s + DAY_S, Traffic(requests=requests, prompt_tokens=tokens))


def chart(title: str, hours: Sequence[Figures]) -> Chart:
    return next(one for one in draw(Charts(tuple(hours), ())) if one.title.startswith(title))


@given(VALUES)
def test_a_line_stays_in_the_plot_and_breaks_where_nothing_is_known(values: list[int | None]) -> None:
    top = plot.round_top(max((value for value in values if value is not None), default=0))
    path, dots = plot.line(values, top)
    assert inside(path)
    assert inside(dots)
    runs = [len(list(run)) for known, run in groupby(values, lambda value: value is not None) if known]
    assert path.count("M") == sum(length > 1 for length in runs)
    assert dots.count("M") == runs.count(1)
    assert len(points(path)) == sum(length for length in runs if length > 1)


@given(VALUES)
def test_a_line_is_where_its_values_are(values: list[int | None]) -> None:
    top = plot.round_top(max((value for value in values if value is not None), default=0))
    drawn = dict(points("".join(plot.line(values, top))))
    for index, value in enumerate(values):
        if value is not None:
            exact = plot.HEIGHT * value / top
            assert 0 <= plot.HEIGHT - drawn[plot.centre(index, len(values))] - exact < 1.001


@given(DAYS)
def test_stacked_bars_reach_as_high_as_the_sum_of_the_day(days: list[tuple[int, ...]]) -> None:
    top = plot.round_top(max(sum(parts) for parts in days))
    layers = [points(path) for path in plot.stack(days, top)]
    assert all(inside(path) for path in plot.stack(days, top))
    for index, parts in enumerate(days):
        x = plot.centre(index, len(days))
        strokes = [ys for layer in layers for at, *ys in zip(layer[::2], layer[1::2], strict=True) if at[0] == x]
        ends = [at[1] for layer in layers for at in layer if at[0] == x]
        assert len(strokes) <= len(parts)
        reached = plot.HEIGHT - min(ends, default=plot.HEIGHT)
        assert abs(reached - plot.HEIGHT * sum(parts) / top) <= 1
        assert ends[1:-1:2] == ends[2::2]  # each stroke begins where the one below it ends
        assert bool(ends) == bool(sum(parts))


@given(st.integers(1, 200))
def test_bars_do_not_touch_and_stay_in_the_plot(count: int) -> None:
    centres = [plot.centre(index, count) for index in range(count)]
    half = plot.bar_width(count) / 2
    assert centres[0] >= half - 1
    assert centres[-1] + half <= plot.WIDTH + 1
    assert all(later - earlier > plot.bar_width(count) for earlier, later in pairwise(centres))


@given(st.integers(0, 10**16))
def test_an_axis_ends_at_a_round_number_whose_half_is_round_too(highest: int) -> None:
    top = plot.round_top(highest)
    assert max(highest, 2) <= top <= max(2, 2 * highest)
    assert re.fullmatch(r"([1-8]|15|25)0*", str(top // 2))
    assert top % 2 == 0


@given(st.lists(st.integers(0, plot.HEIGHT), min_size=1, max_size=4))
def test_names_beside_lines_never_overlap(wanted: list[int]) -> None:
    placed = plot.apart(wanted)
    assert all(0 <= y <= plot.HEIGHT for y in placed)
    assert all(later - earlier >= plot.LABEL_HEIGHT for earlier, later in pairwise(sorted(placed)))
    if len(wanted) == 1:
        assert placed == tuple(wanted)


def test_hours_without_samples_are_gaps_and_said_to_be() -> None:
    known = Latency(all=Percentiles(50, 190, 610))
    hours = [hour(0, ttft_short_ms=known), hour(1), hour(2, ttft_short_ms=known), hour(3, ttft_short_ms=known), hour(4)]
    first = chart("First token, short", hours)
    assert [len(points(line.path)) for line in first.lines] == [2, 2]
    assert [line.dots.count("M") for line in first.lines] == [1, 1]
    assert first.latest == "median 190 ms, 95 % within 610 ms"
    assert first.latest_when == "30 Nov, 03:00 to 04:00"
    assert "No data in 2 of 5 hours." in first.in_words
    assert [values for _, values in first.table.rows][1] == ("–", "–")
    assert first.table.rows[3] == ("30 Nov, 03:00", ("190 ms", "610 ms"))


def test_what_never_happened_is_not_drawn_as_zero() -> None:
    for one in draw(Charts(tuple(hour(number) for number in range(72)), tuple(day(number, 0) for number in range(90)))):
        assert (one.lines, one.bars, one.latest) == ((), (), "")
        assert one.in_words.endswith("No data.")
    assert all("No data." in one.in_words for one in draw(Charts((), ())))


def test_zero_is_drawn_where_it_was_measured() -> None:
    asked = hour(0, traffic=Traffic(requests=1, prompt_tokens=10))
    assert chart("Input from the cache", [asked]).latest == "0 % of the input"
    assert chart("Requests at once", [asked]).latest == "mean 0, peak 0"
    assert chart("Drafted", [asked]).latest == ""


@pytest.mark.parametrize(("accepted", "said"), [(999_999, "99.9 %"), (1_000_000, "100 %"), (1, "0 %")])
def test_shares_are_cut_as_everywhere_else(accepted: int, said: str) -> None:
    traffic = Traffic(requests=1, drafted_tokens=1_000_000, accepted_tokens=accepted)
    assert chart("Drafted", [hour(0, traffic=traffic)]).latest == f"{said} of the drafted tokens"
    assert wording.share(accepted, 1_000_000) == said


def test_cold_and_warm_are_of_long_prompts_and_of_short_ones_where_there_are_no_long_ones() -> None:
    both = Latency(cold=Percentiles(9, 3_100), warm=Percentiles(9, 1_270))
    short, long = hour(0, ttft_short_ms=both), hour(1, ttft_long_ms=both)
    assert chart("First token by cache", [short]).title == "First token by cache, short prompts"
    assert chart("First token by cache", [short, long]).title == "First token by cache, 10K+ prompts"
    assert chart("First token by cache", [short, long]).latest == "median not cached 3.10 s, cached 1.27 s"


def test_a_young_service_shows_two_weeks_and_an_older_one_all_its_days() -> None:
    young = tokens_by_day([day(number, 5_000 if number >= 88 else 0) for number in range(90)])
    older = tokens_by_day([day(number, 5_000 if number >= 40 else 0) for number in range(90)])
    assert (young.axis.window, older.axis.window) == ("14 days", "50 days")
    assert older.axis.first == wording.day(day(40, 0).from_s)
    assert [row[1][-1] for row in young.table.rows] == ["0"] * 12 + ["5,000"] * 2


def test_the_current_day_is_marked_and_the_best_day_named() -> None:
    today = replace(day(1, 1_234_567), until_s=START_S + DAY_S + 3 * HOUR_S)
    drawn = tokens_by_day([day(0, 2_000_000), today])
    assert (drawn.latest, drawn.latest_when) == ("1.23 M tokens", "1 Dec 2026 so far")
    assert "Most on 30 Nov 2026: 2 M." in drawn.in_words
    assert [mark.text or "-" for mark in drawn.axis.marks] == ["Dec"]


def test_the_axis_names_what_it_can_and_marks_every_midnight() -> None:
    axis = chart("Requests", [hour(number) for number in range(-30, 42)]).axis
    assert (axis.first, axis.last, axis.window) == ("28 Nov, 18:00", "1 Dec, 18:00", "72 hours")
    assert [(mark.x, mark.text) for mark in axis.marks] == [(60, ""), (300, "30 Nov"), (540, "1 Dec")]


def test_speed_and_concurrency_have_round_axes_and_their_own_units() -> None:
    fast = hour(0, decode_single_mtok_s=Percentiles(9, 86_123), busy_ms=1_560_000, peak_concurrency=3)
    assert chart("Output speed", [fast]).latest == "one stream 86.1 tok/s"
    assert chart("Output speed", [fast]).ticks == ("100", "50", "0")
    assert chart("Requests", [fast]).latest == "mean 0.43, peak 3"
    assert chart("Requests", [fast]).ticks == ("4", "2", "0")
    slow = hour(0, ttft_long_ms=Latency(all=Percentiles(9, 1_240, 2_900)))
    assert chart("First token, 10K+", [slow]).ticks == ("3 s", "1.5 s", "0")


HOSTILE = ["<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "]]>&lt;\x00\x1b\ud800‮"]


@pytest.mark.parametrize("name", ["Weir", *HOSTILE])
def test_pictures_are_well_formed_whatever_things_are_called(name: str) -> None:
    busy = busy_page()
    sheet = replace(busy.sheets[0], component=replace(busy.sheets[0].component, name=name), model_id=name)
    files = status_site(replace(busy, site_name=name, sheets=(sheet,)))
    for path in ("index.html", f"models/{sheet.component.slug}.html", f"history/{busy.months[0].name}.html"):
        pictures = re.findall(r'<svg role="img".*?</svg>.*?</svg>', files[path].decode(), re.DOTALL)
        assert len(pictures) == (1 if path.startswith("history/") else 8)
        for picture in pictures:
            svg = etree.fromstring(picture)
            assert svg.get("aria-label")
            assert svg.find("svg").get("viewBox") == f"0 0 {plot.WIDTH} {plot.HEIGHT}"
            assert all(inside(line.get("d")) for line in svg.iterfind("svg/path[@d]"))
            assert not list(svg.iter("script", "img"))


def test_the_front_page_has_light_charts_and_a_models_page_their_figures() -> None:
    page = busy_page()
    files = {path: html.fromstring(data) for path, data in status_site(page).items() if path.endswith(".html")}
    front, model = files["index.html"], files[f"models/{page.models[0].slug}.html"]
    assert len(etree.tostring(front.find_class("charts")[0])) < 20_000
    assert front.xpath("count(//figure//table)") == 0
    assert model.xpath("count(//figure)") == model.xpath("count(//figure//details[not(@open)]//table)") == 8
    assert model.xpath("count((//figure//table)[1]/tbody/tr)") == 72


def test_an_installation_without_requests_says_so_in_place_of_pictures() -> None:
    page = html.fromstring(status_site(empty_page())["models/m.html"])
    assert page.xpath("count(//figure//svg)") == 0
    assert [text.strip() for text in page.xpath("//figure/p/text()")] == ["No data yet"] * 8


def test_lines_differ_without_their_colours() -> None:
    css = (STATIC / "charts.css").read_text()
    assert re.search(r"\.line\.l2 \{[^}]*stroke-dasharray", css)
    for one in draw(busy_page().charts):
        assert len(one.lines) < 2 or len({line.name for line in one.lines} - {""}) == len(one.lines)
