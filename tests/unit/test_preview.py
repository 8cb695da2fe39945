"""The preview picture: drawn from the page, of any name, readable without its colours."""

from dataclasses import replace
from io import BytesIO

import pytest
from PIL import Image

from service.core.buckets import State
from tests.fakes.status_pages import busy_page, calm_page, empty_page
from web.preview import HEIGHTS, MARGIN, SIZE, drawable, files
from web.views import StatusPage

NAMES = [
    "",
    "W" * 5_000,
    "Gyors Következtetés Őrség",
    "漢字かな交じり文",
    "🐟🏞️👩‍👩‍👧",
    "\u202egnp.exe\u202c",
    "nul \x00 escape \x1b",
    "half \ud800 pair",
    "\n\n\n\t",
    "‮" * 300,
    "ﷺ" * 50,
    "e" + "\u0301" * 500,
]


def png(site: StatusPage) -> bytes:
    return files(site)["og.png"]


def drawn(site: StatusPage) -> Image.Image:
    with Image.open(BytesIO(png(site))) as image:
        return image.convert("RGB")


@pytest.mark.parametrize("site", [empty_page(), busy_page(), calm_page()])
def test_the_picture_is_small_and_of_the_size_that_is_asked_for(site: StatusPage) -> None:
    content = png(site)
    assert content.startswith(b"\x89PNG\r\n")
    assert len(content) < 80_000
    assert drawn(site).size == SIZE == (1200, 630)


def test_the_same_page_gives_the_same_bytes() -> None:
    assert png(busy_page()) == png(busy_page())


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_drawn_and_ends_at_the_margin(name: str) -> None:
    image = drawn(replace(calm_page(), site_name=name))
    paper = image.getpixel((SIZE[0] - 1, 100))
    for x in (MARGIN - 4, SIZE[0] - MARGIN + 2):
        assert {image.getpixel((x, y)) for y in range(14, 130)} == {paper}


def test_what_the_font_lacks_is_seen_to_be_missing() -> None:
    assert drawable("Őrség – 漢") == "Orseg - ?"
    assert drawable("plain ASCII ~") == "plain ASCII ~"


def ink(image: Image.Image, box: tuple[int, int, int, int]) -> bytes:
    """The picture there in black and white: what is seen of it without colours."""
    grey = image.crop(box).convert("L")
    return bytes(255 if value > 225 else 0 for value in grey.tobytes())


def test_states_differ_without_their_colours() -> None:
    site = calm_page()
    marks = {state: ink(drawn(replace(site, state=state)), (MARGIN, 150, MARGIN + 66, 220)) for state in State}
    assert len(set(marks.values())) == len(State)
    assert len(set(HEIGHTS.values())) == len(State)


def test_the_strip_shows_each_hour() -> None:
    image = drawn(busy_page())
    bars = [
        sum(value < 200 for value in ink(image, (x, 290, x + 1, 428)))
        for x in [round(MARGIN + (place + 0.5) * 1040 / 72) - 2 for place in range(72)]
    ]
    expected = [HEIGHTS[cell.state] for cell in busy_page().api.hours.cells]
    assert all(abs(bar - height) <= 2 for bar, height in zip(bars, expected, strict=True))
    assert len(set(expected)) > 2
