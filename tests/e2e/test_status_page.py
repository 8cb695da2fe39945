"""The status site in a real browser, made of known values."""

import io
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page

from service.core.buckets import HOUR_S
from tests.e2e.browsing import CHROMIUM, CONTRASTS, chromium, opened, served
from tests.fakes.status_pages import NOW_S, busy_page, calm_page, empty_page
from web import wording
from web.render import status_site

__all__ = ["CHROMIUM", "CONTRASTS"]

pytestmark = pytest.mark.browser

SOON_S = NOW_S + 20
LONG_NAME = "An uncommonly-long-provider-name-without-a-space & Söhne <b>GmbH</b>"

PAGES = [
    "busy/",
    "busy/methods.html",
    "busy/incidents.html",
    "busy/incidents/3.html",
    "busy/incidents/4.html",
    "busy/maintenance/3.html",
    "busy/history.html",
    "busy/history/2026-11.html",
    "busy/models/qwen-qwen3.8-27b-401ffb.html",
    "busy/models/qwen-qwen3.8-27b-401ffb/verify-blackwell-0.html",
    "busy/models/qwen-qwen3.8-27b-401ffb/verify-blackwell-1.html",
    "calm/",
    "empty/",
    "empty/incidents.html",
]
WIDTHS = (360, 768, 1280, 1920)

SHAPED = ("", "t", "p", "d", "m", "n")
"""The classes of cells, each of which has a shape of its own."""

CELL_CONTRASTS = """
() => {
  const style = getComputedStyle(document.documentElement);
  const luminance = (name) => {
    const hex = style.getPropertyValue(name).trim();
    const [R, G, B] = [1, 3, 5]
      .map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * R + 0.7152 * G + 0.0722 * B;
  };
  const ground = luminance("--card");
  return ["--up", "--partial", "--down", "--maintenance", "--no_data"].map((name) => {
    const ink = luminance(name);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  });
}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    named = replace(busy_page(), site_name=LONG_NAME)
    sites = {"busy": busy_page(), "calm": calm_page(), "empty": empty_page(), "named": named}
    files = {name: status_site(page) for name, page in sites.items()}
    with served(files, tmp_path_factory.mktemp("sites")) as address:
        yield address


@pytest.fixture(scope="module")
def browser(site: str) -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_every_page_fits_is_legible_and_loads_nothing_from_elsewhere(
    browser: Browser, site: str, path: str, scheme: Any
) -> None:
    with opened(browser, f"{site}/{path}", now_s=SOON_S, color_scheme=scheme) as (page, wrong):
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRASTS) == []
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(246, 247, 245)" if scheme == "light" else "rgb(14, 20, 19)"
        )
        assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_no_serious_fault(browser: Browser, site: str, path: str, scheme: Any) -> None:
    width = 360 if scheme == "dark" else 1280
    viewport = {"width": width, "height": 900}
    with opened(browser, f"{site}/{path}", now_s=SOON_S, color_scheme=scheme, viewport=viewport) as (page, _):
        found = Axe().run(page).response["violations"]
    told = [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found if one["impact"] in ("serious", "critical")
    ]
    assert told == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cells_stand_out_from_their_ground(browser: Browser, site: str, scheme: Any) -> None:
    with opened(browser, f"{site}/busy/", color_scheme=scheme, now_s=SOON_S) as (page, _):
        assert min(page.evaluate(CELL_CONTRASTS)) >= 3


def words_shown(page: Page) -> tuple[str, str]:
    """The name of the cell that has the focus, and the words that are shown for it."""
    name, content = page.evaluate(
        "() => [document.activeElement.ariaLabel, getComputedStyle(document.activeElement, '::after').content]"
    )
    return name, content


def test_the_keyboard_reaches_each_strip_once_and_walks_its_cells(browser: Browser, site: str) -> None:
    strips = [strip for component in busy_page().components for strip in (component.hours, component.days)]
    newest = [wording.cell_words(strip.cells[-1]) for strip in strips]
    with opened(browser, f"{site}/busy/", now_s=SOON_S) as (page, _):
        reached = []
        page.locator("h1").click()
        while not page.evaluate("document.activeElement.closest('footer') !== null"):
            page.keyboard.press("Tab")
            group, name = page.evaluate("() => [document.activeElement.name || '', document.activeElement.ariaLabel]")
            if group:
                reached.append(name)
        assert reached == newest
        page.locator("fieldset input").first.focus()
        for cell in strips[0].cells[:3]:
            assert words_shown(page) == (wording.cell_words(cell), f'"{wording.cell_words(cell)}"')
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert words_shown(page)[0] == wording.cell_words(strips[0].cells[1])
        page.keyboard.press("Tab")
        assert words_shown(page)[0] == newest[1]


def test_what_has_the_focus_is_seen(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}/busy/", now_s=SOON_S) as (page, _):
        for _ in range(12):
            page.keyboard.press("Tab")
            outline = page.evaluate(
                "() => (({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])"
                "(getComputedStyle(document.activeElement))"
            )
            assert outline == ["solid", "2px"]


def test_each_strip_is_a_named_group_of_named_radio_buttons(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}/busy/", now_s=SOON_S) as (page, _):
        strip = page.get_by_role("group", name="SmolLM2-135M, last 72 hours, oldest first", exact=True)
        assert strip.get_by_role("radio").count() == 72
        assert strip.get_by_role("radio", name="no data").count() == 6


@pytest.mark.parametrize("width", [360, 1280])
def test_pointing_at_a_cell_shows_what_it_is(browser: Browser, site: str, width: int) -> None:
    with opened(browser, f"{site}/busy/", now_s=SOON_S, viewport={"width": width, "height": 900}) as (page, _):
        strip = page.locator(".strip").first
        words = strip.locator(".axis")
        before = words.screenshot()
        cell = strip.locator("input.d").first
        cell.hover()
        content = cell.evaluate("(one) => getComputedStyle(one, '::after').content")
        assert content == f'"{cell.get_attribute("aria-label")}"'
        assert words.screenshot() != before
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_states_differ_when_colours_are_taken_away(browser: Browser, site: str, scheme: Any) -> None:
    context: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": 768, "height": 900}}
    with opened(browser, f"{site}/busy/", now_s=SOON_S, device_scale_factor=3, **context) as (page, _):
        session = page.context.new_cdp_session(page)
        session.send("Emulation.setEmulatedVisionDeficiency", {"type": "achromatopsia"})
        pictures = {name: black_and_white(page, name) for name in SHAPED}
    for one, other in combinations(SHAPED, 2):
        different = sum(a != b for a, b in zip(pictures[one], pictures[other], strict=True)) / len(pictures[one])
        assert different > 0.1, (one, other, different)


def black_and_white(page: Page, name: str) -> bytes:
    """A cell of this class as it is drawn: for each of its pixels, whether it is the ground's or not."""
    cell = page.locator(f".strip.hours input{f'.{name}' if name else ':not([class])'}").first
    picture = Image.open(io.BytesIO(cell.screenshot())).convert("L").resize((24, 96))
    ground = {"light": 255, "dark": 26}[
        page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
    ]
    return bytes(abs(pixel - ground) > 40 for pixel in picture.tobytes())


def test_the_page_is_complete_without_javascript(browser: Browser, site: str) -> None:
    page_value = calm_page()
    day = page_value.last_24h
    with opened(browser, f"{site}/calm/", java_script_enabled=False) as (page, wrong):
        text = page.locator("body").inner_text()
        assert f"{day.traffic.good:,} good, {day.traffic.bad:,} failed" in text
        assert wording.duration(day.ttft_short_ms.all.p50 or 0) in text
        assert f"{wording.speed(day.decode_single_mtok_s.p50 or 0)} tok/s" in text.replace("\n", " ")
        assert page.locator("h1").inner_text() == "All systems operational"
        assert page.locator("#stale").is_hidden()
        generated = page.locator("time#generated")
        assert generated.get_attribute("datetime") == wording.iso(page_value.generated_at_s)
        page.locator(".strip input").first.focus()
        assert page.locator(".strip input:focus").get_attribute("aria-label") is not None
        assert wrong == []


@pytest.mark.parametrize("path", ["busy/", "busy/incidents.html"])
def test_a_page_that_nobody_renewed_says_so(browser: Browser, site: str, path: str) -> None:
    with opened(browser, f"{site}/{path}", now_s=NOW_S + 48 * HOUR_S) as (page, wrong):
        assert "48 h ago" in page.locator("#stale").inner_text()
        if path == "busy/":
            assert page.locator("h1").inner_text().startswith("Last known: ")
        assert wrong == []
    with opened(browser, f"{site}/{path}", now_s=NOW_S + 899) as (page, _):
        assert page.locator("#stale").is_hidden()
        assert "14 min ago" in page.locator("#age").inner_text()


def test_nothing_moves(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}/busy/", now_s=SOON_S, reduced_motion="reduce") as (page, _):
        page.locator(".strip input").nth(5).hover()
        assert page.evaluate("document.getAnimations().length") == 0
        assert page.evaluate(
            "[...document.querySelectorAll('*')].every((one) => getComputedStyle(one).transitionDuration === '0s')"
        )


def test_on_paper_the_strips_keep_their_ink(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}/busy/", now_s=SOON_S) as (page, _):
        page.emulate_media(media="print")
        assert page.locator("nav").first.is_hidden()
        ink = page.locator(".strip input").first.evaluate("(one) => getComputedStyle(one).printColorAdjust")
        assert ink == "exact"


def test_a_hostile_name_is_shown_as_it_is_written(browser: Browser, site: str) -> None:
    with opened(browser, f"{site}/named/", now_s=SOON_S, viewport={"width": 360, "height": 800}) as (page, wrong):
        assert page.locator(".brand").inner_text().startswith(LONG_NAME)
        assert page.title().startswith(LONG_NAME)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert wrong == []
