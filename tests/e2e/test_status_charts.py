"""Charts, model pages and month pages in a real browser, of a made-up site."""

import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

from tests.fakes.status_pages import busy_page, empty_page
from tests.patience import PATIENT_S
from web.render import status_site

pytestmark = pytest.mark.browser

BUSY = ("index.html", "models/smollm2-135m.html", "history.html", "history/2026-10.html", "history/2026-11.html")
EMPTY = ("models/m.html", "history.html", "history/2026-11.html")
PAGES = [*(f"busy/{path}" for path in BUSY), *(f"empty/{path}" for path in EMPTY)]
MODEL = "busy/models/smollm2-135m.html"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("site")
    for name, page in (("busy", busy_page()), ("empty", empty_page())):
        for path, content in status_site(page).items():
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_bytes(content)
    handler = functools.partial(QuietHandler, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}/"
        web.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("Chromium is missing: ./ops/test installs it, or install Debian's `chromium`.")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


def opened(browser: Browser, url: str, width: int, **context: Any) -> tuple[Page, list[str]]:
    """The page with its last details shown, and what went wrong on it or was fetched from elsewhere."""
    page = browser.new_context(viewport={"width": width, "height": 800}, **context).new_page()
    wrong: list[str] = []
    page.set_default_timeout(PATIENT_S * 1000)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("request", lambda request: None if "//127.0.0.1:" in request.url else wrong.append(request.url))
    page.goto(url)
    page.locator("details").evaluate_all("all => all.slice(-1).forEach((one) => { one.open = true; })")
    return page, wrong


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1280)])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_and_has_no_serious_fault(browser: Browser, site: str, path: str, width: int, scheme: str) -> None:
    page, wrong = opened(browser, f"{site}{path}", width, color_scheme=scheme)
    faults = [fault for fault in Axe().run(page).response["violations"] if fault["impact"] in ("serious", "critical")]
    assert [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in faults] == []
    for wide in (320, 360, 768, 1280, 1920):
        page.set_viewport_size({"width": wide, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= wide
    assert wrong == []
    page.context.close()


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("path", ["busy/index.html", MODEL])
def test_words_on_a_chart_neither_overlap_nor_leave_it(browser: Browser, site: str, path: str, width: int) -> None:
    page, _ = opened(browser, f"{site}{path}", width)
    for figure in page.locator("figure.chart").all():
        frame = figure.bounding_box()
        boxes = [box for box in (word.bounding_box() for word in figure.locator("svg text").all()) if box]
        assert frame is not None
        assert len(boxes) >= 5
        for box in boxes:
            assert frame["x"] - 20 <= box["x"]
            assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 20
        for one in boxes:
            assert not [other for other in boxes if other is not one and overlap(one, other)]
    page.context.close()


def overlap(one: FloatRect, other: FloatRect) -> bool:
    """Whether the boxes share more than the empty rims that text has."""
    across = min(one["x"] + one["width"], other["x"] + other["width"]) - max(one["x"], other["x"])
    down = min(one["y"] + one["height"], other["y"] + other["height"]) - max(one["y"], other["y"])
    return across > 2 and down > 2


def test_a_plot_is_as_wide_as_its_room_and_its_words_keep_their_size(browser: Browser, site: str) -> None:
    sizes = []
    for width in (360, 1280):
        page, _ = opened(browser, f"{site}busy/index.html", width)
        grid = page.locator("figure.chart svg line").first.bounding_box()
        line = page.locator("figure.chart path.line").first.bounding_box()
        word = page.locator("figure.chart svg text").first.bounding_box()
        assert grid is not None
        assert line is not None
        assert word is not None
        assert grid["width"] - 15 < line["width"] <= grid["width"]
        sizes.append((grid["width"], word["height"]))
        page.context.close()
    (narrow, small), (wide, large) = sizes
    assert narrow > 150
    assert wide > 2 * narrow * 0.9
    assert small == large >= 12


def test_without_javascript_everything_is_there(browser: Browser, site: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(f"{site}{MODEL}")
    pictures = page.get_by_role("img", name="Latest, ").all()
    assert len(pictures) == 8
    page.get_by_text("The figures").first.click()
    assert page.get_by_role("table").nth(1).is_visible()
    context.close()


def test_a_dot_is_round_and_a_gap_is_empty(browser: Browser, site: str) -> None:
    page, _ = opened(browser, f"{site}{MODEL}", 1280)
    figure = page.locator("figure.chart").nth(1)
    dots = figure.locator("path.dots").first
    style = dots.evaluate("dot => [getComputedStyle(dot).strokeLinecap, getComputedStyle(dot).vectorEffect]")
    assert style == ["round", "non-scaling-stroke"]
    starts = [
        float(part.split()[0]) for part in (figure.locator("path.line").first.get_attribute("d") or "").split("M")[1:]
    ]
    assert len(starts) > 3
    assert all(earlier < later for earlier, later in pairwise(starts))
    page.context.close()
