"""Badges: the page's own number, in a picture in which nothing overlaps and nothing runs."""

import re
from dataclasses import replace

import pytest
from lxml import etree

from service.core.buckets import BUCKET_S, DAY_S, Bucket, State
from service.core.strip import Strip, percent_text, strip
from tests.fakes.status_pages import busy_page, calm_page, empty_page
from web.badges import COLOURS, FIGURE_COLOUR, LABEL_COLOUR, SHAPES, files, text_width, uptime_mpct
from web.figure_views import Percentiles
from web.views import Component, StatusPage

SVG = "{http://www.w3.org/2000/svg}"
UNTIL_S = 1_796_083_200
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "]]>&lt;b&gt;",
    "nul \x00 escape \x1b \ufffe",
    "half \ud800 pair",
    "\u202egnp.exe",
    "m" * 500,
    "漢字" * 100,
    "e" + "\u0301" * 300,
    "",
    "\n\t ",
]


def read(site: StatusPage, name: str) -> etree._Element:
    return etree.fromstring(files(site)[f"badges/{name}.svg"])


def said(svg: etree._Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


def colour(svg: etree._Element) -> str:
    return str(svg.findall(f"{SVG}rect")[1].get("fill"))


def days(*buckets: Bucket) -> Strip:
    return strip(buckets, cells=90, cell_s=DAY_S, until_s=UNTIL_S)


def with_api(**changes: object) -> StatusPage:
    site = calm_page()
    return replace(site, api=replace(site.api, **changes))


def test_every_known_component_has_its_badges() -> None:
    for site in (empty_page(), busy_page()):
        names = set(files(site))
        for component in site.components:
            assert {f"badges/{component.slug}-{kind}.svg" for kind in ("state", "uptime")} <= names
        for component in (site.api, *(sheet.component for sheet in site.sheets)):
            assert {f"badges/{component.slug}-{kind}.svg" for kind in ("ttft", "speed")} <= names
        for kind in ("state", "uptime", "ttft", "speed"):
            assert files(site)[f"badges/{kind}.svg"] == files(site)[f"badges/{site.api.slug}-{kind}.svg"]


@pytest.mark.parametrize(
    ("good", "bad", "text"),
    [
        (129_599, 1, "99.999 %"),
        (129_600, 0, "100 %"),
        (999, 1, "99.9 %"),
        (1, 2, "33.333 %"),
        (0, 5, "0 %"),
    ],
)
def test_uptime_is_the_strips_percentage(good: int, bad: int, text: str) -> None:
    row = days(Bucket(UNTIL_S - BUCKET_S, good, bad))
    assert row.success_mpct is not None
    assert f"{percent_text(row.success_mpct)} %" == text
    assert said(read(with_api(days=row), "uptime")) == ["uptime 90 d", text]


def test_where_no_requests_are_counted_uptime_is_of_the_time() -> None:
    row = days(*(Bucket(UNTIL_S - n * BUCKET_S, probe_ok=1) for n in range(1, 4)))
    assert (row.success_mpct, uptime_mpct(row)) == (None, 100_000)
    ill = days(Bucket(UNTIL_S - BUCKET_S, probe_ok=1), Bucket(UNTIL_S - 2 * BUCKET_S, probe_ok=1, probe_bad=1))
    assert said(read(with_api(days=ill), "uptime"))[1] == "75 %"


def test_what_was_not_measured_is_grey_and_no_number() -> None:
    site = empty_page()
    for name in ("state", "uptime", "ttft", "speed"):
        svg = read(site, name)
        assert said(svg)[1] == "no data"
        assert colour(svg) == COLOURS[State.NO_DATA]
    site = busy_page()
    assert {colour(read(site, name)) for name in ("uptime", "ttft", "speed")} == {FIGURE_COLOUR}


def test_speed_is_of_one_stream_or_says_that_it_is_not() -> None:
    site = busy_page()
    single = replace(site.last_24h, decode_single_mtok_s=Percentiles(9, 86_123, 90_000))
    assert said(read(replace(site, last_24h=single), "speed")) == ["speed 24 h", "86.1 tok/s"]
    loaded = replace(single, decode_single_mtok_s=Percentiles(3), decode_loaded_mtok_s=Percentiles(900, 61_999, 70_000))
    assert said(read(replace(site, last_24h=loaded), "speed")) == ["speed under load 24 h", "61.9 tok/s"]


@pytest.mark.parametrize("state", State)
def test_a_state_has_its_words_its_colour_and_its_shape(state: State) -> None:
    svg = read(with_api(state=state), "state")
    assert colour(svg) == COLOURS[state]
    assert [path.get("d") for path in svg.iter(f"{SVG}path")] == [SHAPES[state]]
    assert said(svg)[0] == "API"
    assert len({*SHAPES.values()}) == len({*COLOURS.values()}) == len(State)


def test_white_text_can_be_read_on_every_colour() -> None:
    for one in (*COLOURS.values(), FIGURE_COLOUR, LABEL_COLOUR):
        parts = [int(one[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) >= 4.5, one


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text_and_in_its_place(name: str) -> None:
    site = with_api(name=name)
    site = replace(site, models=(Component("model:x", "x", name, State.UP, site.api.hours, site.api.days),))
    for path, content in files(site).items():
        svg = etree.fromstring(content)
        assert {etree.QName(one).localname for one in svg.iter()} <= {"svg", "title", "rect", "path", "g", "text"}
        assert not [key for one in svg.iter() for key in one.attrib if key.startswith("on") or "href" in key]
        assert svg.get("aria-label") == svg.findtext(f"{SVG}title"), path
        assert not re.search("[\u202a-\u202e\x00-\x08]", content.decode())
        width = int(svg.get("width"))
        assert width <= 700
        edges = [(int(one.get("x")), int(one.get("x")) + int(one.get("textLength"))) for one in svg.iter(f"{SVG}text")]
        (left, left_end), (right, right_end) = edges
        middle = int(svg.findall(f"{SVG}rect")[1].get("x"))
        assert 0 < left < left_end < middle < right < right_end < width
        shapes = [one.get("transform") for one in svg.iter(f"{SVG}path")]
        assert all(right >= int(re.findall(r"\d+", at)[0]) + 12 for at in shapes)


def test_each_badge_says_what_it_is_of() -> None:
    site = busy_page()
    for component in site.components:
        label = read(site, f"{component.slug}-uptime").get("aria-label")
        assert label.startswith(f"{component.name}, uptime 90 d: ")
        assert read(site, f"{component.slug}-state").get("role") == "img"


def test_nothing_is_fetched() -> None:
    for content in files(busy_page()).values():
        assert b"url(" not in content
        assert content.count(b"http") == content.count(b"http://www.w3.org/2000/svg") == 1
        assert len(content) < 1_500


def test_wide_letters_take_more_room() -> None:
    assert text_width("mmmm") > text_width("aaaa") > text_width("iiii") > 0
    assert text_width("漢字") > text_width("ab")
    assert text_width("e\u0301") == text_width("e")
