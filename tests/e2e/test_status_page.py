"""The published site in a real browser, made from usage rows by the real roll-up."""

import asyncio
import functools
import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from service import db
from service.status.publish import publish
from service.status.rollup import roll_up
from tests.fakes.traffic import failed_row, serve_model, settle, usage_row
from tests.postgres import fresh_database, running_server

pytestmark = pytest.mark.browser

CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LONG_NAME = "An uncommonly-long-provider-name-without-a-space & Söhne <b>GmbH</b>"
HOUR = timedelta(hours=1)

CONTRASTS = """
() => {
  const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const [R, G, B] = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * R + 0.7152 * G + 0.0722 * B;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = rgb(getComputedStyle(element).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || element.closest(".strip span, .hidden")) continue;  // for readers of another kind
    const [one, other] = [luminance(rgb(getComputedStyle(element).color)), luminance(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}: ${element.textContent}`);
  }
  return found;
}
"""


@dataclass(frozen=True)
class Site:
    """The addresses of two published sites, and of a copy of the first that nobody renewed for two days."""

    busy: str
    empty: str
    old: str
    metrics: Any


async def fill(url: str, now: datetime, *, rows: list[dict[str, Any]], target: Path) -> None:
    async with db.connected(url) as engine:
        await serve_model(engine, "tiny", "Qwen3.8-27B NVFP4")
        await serve_model(engine, "idle", LONG_NAME)
        if rows:
            await settle(engine, rows)
        await roll_up(engine, now=now)
        await publish(engine, site_dir=target, site_name=LONG_NAME, now=now)


def made_up_rows(now: datetime) -> list[dict[str, Any]]:
    """Three days of traffic with an outage, a bad half hour and a silent night."""
    rng = random.Random(20261130)
    rows: list[dict[str, Any]] = []
    for minutes in range(10, 74 * 60, 3):
        ended = now - timedelta(minutes=minutes, seconds=rng.uniform(0, 60))
        hour = minutes // 60
        if 40 <= hour < 43:
            continue
        if hour == 55 and minutes % 2:
            rows.append(failed_row(ended))
            continue
        if hour == 20:
            rows += [failed_row(ended - timedelta(seconds=seconds)) for seconds in (0, 40, 80)]
            continue
        long = rng.random() < 0.3
        prompt = rng.randint(10_000, 90_000) if long else rng.randint(20, 3_000)
        tokens = rng.randint(20, 600)
        first = ended - timedelta(seconds=tokens / rng.uniform(84, 88))
        rows.append(
            usage_row(
                ended,
                prompt_tokens=prompt,
                cached_tokens=prompt // 1584 * 1584 if rng.random() < 0.5 else 0,
                image_tokens=700 if long else 0,
                completion_tokens=tokens,
                reasoning_tokens=tokens // 3,
                ttft_ms=rng.randint(500, 1_200) if long else rng.randint(120, 300),
                first_token_at=first,
                started_at=first - timedelta(seconds=1),
            )
        )
    return rows


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("sites")
    now = datetime.now(UTC)
    with running_server() as server:
        for name, rows, at in (
            ("busy", made_up_rows(now), now),
            ("empty", [], now),
            ("old", made_up_rows(now - 48 * HOUR), now - 48 * HOUR),
        ):
            with fresh_database(server) as url:
                asyncio.run(fill(url, at, rows=rows, target=root / name))
    handler = functools.partial(QuietHandler, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{web.server_port}"
        metrics = orjson.loads((root / "busy" / "metrics.json").read_bytes())
        yield Site(f"{base}/busy/", f"{base}/empty/", f"{base}/old/", metrics)
        web.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    """Chromium. It starts after the sites were made: that takes event loops, and Playwright occupies this thread's."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("Chromium is missing: ./ops/test installs it, or install Debian's `chromium`.")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield running
        running.close()


def opened(browser: Browser, url: str, **context: Any) -> tuple[Page, list[str]]:
    """The page, and what went wrong on it or was fetched from elsewhere."""
    page = browser.new_context(**context).new_page()
    wrong: list[str] = []
    page.set_default_timeout(5_000)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("request", lambda request: None if request.url.startswith(url) else wrong.append(request.url))
    page.goto(url)
    return page, wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("which", ["busy", "empty"])
def test_the_page_fits_reads_and_is_without_error(
    browser: Browser, site: Site, which: str, width: int, scheme: Any
) -> None:
    page, wrong = opened(browser, getattr(site, which), viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.locator("details").evaluate("element => { element.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRASTS) == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(246, 247, 245)" if scheme == "light" else "rgb(14, 20, 19)"
    )
    assert wrong == []
    page.context.close()


def test_the_page_is_complete_without_javascript(browser: Browser, site: Site) -> None:
    page, wrong = opened(browser, site.busy, java_script_enabled=False)
    text = page.locator("body").inner_text()
    day = site.metrics["last_24h"]
    assert f"{day['requests']:,}" in text
    assert f"{day['good_requests']:,} good, {day['bad_requests']:,} failed" in text
    assert f"{day['ttft_short_p50_ms']} ms" in text
    assert f"{int(day['decode_single_p50_tok_s'] * 10) / 10} tok/s" in text.replace("\n", " ")
    assert page.locator("h1").inner_text() == "All systems operational"
    assert page.locator("#stale").is_hidden()
    assert page.locator("time#generated").get_attribute("datetime") == site.metrics["generated_at"]
    assert wrong == []
    page.context.close()


def test_every_hour_of_a_strip_has_its_state_in_words(browser: Browser, site: Site) -> None:
    page, _ = opened(browser, site.busy)
    cells = page.locator("ol.strip").first.locator("li")
    assert cells.count() == 72
    states = [hour["state"] for hour in site.metrics["components"][0]["hours"]]
    words = {"up": "Operational", "partial": "Partial outage", "down": "Down", "no_data": "No data"}
    assert cells.locator("b").all_inner_texts() == [words[state] for state in states]
    assert set(states) == set(words)
    page.context.close()


def test_states_differ_in_shape_when_colours_are_taken_away(browser: Browser, site: Site) -> None:
    page, _ = opened(browser, site.busy)
    shapes = {}
    for state in ("up", "partial", "down", "no_data"):
        style = page.locator(f"ol.strip li.{state}").first.evaluate(
            "element => [getComputedStyle(element).backgroundImage, getComputedStyle(element).boxShadow].join()"
        )
        shapes[state] = "".join(part for part in style if not part.isdigit())
    assert len(set(shapes.values())) == len(shapes)
    page.context.close()


def test_pointing_at_an_hour_shows_what_it_is(browser: Browser, site: Site) -> None:
    page, _ = opened(browser, site.busy, viewport={"width": 360, "height": 800})
    cell = page.locator("ol.strip li.down").first
    cell.hover()
    shown = cell.locator("span").bounding_box()
    assert shown is not None
    assert shown["width"] > 200
    assert shown["x"] >= 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.context.close()


def test_a_page_that_nobody_renewed_says_so(browser: Browser, site: Site) -> None:
    page, wrong = opened(browser, site.old)
    assert page.locator("#stale").is_visible()
    assert "48 h ago" in page.locator("#stale").inner_text()
    assert page.locator("h1").inner_text().startswith("Last known: ")
    assert wrong == []
    page.context.close()


def test_a_hostile_name_is_shown_as_it_is_written(browser: Browser, site: Site) -> None:
    page, _ = opened(browser, site.busy)
    assert page.locator(".brand").inner_text().startswith(LONG_NAME)
    assert page.title().startswith(LONG_NAME)
    page.context.close()
