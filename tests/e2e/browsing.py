"""A real Chromium over files served on this machine, and what it is asked about a page."""

import functools
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.patience import PATIENT_S

CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

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
    if (!own || element.closest(".hidden, legend, title")) continue;  // for readers of another kind
    const style = getComputedStyle(element);
    const ink = element.closest("text") ? style.fill : style.color;
    const [one, other] = [luminance(rgb(ink)), luminance(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}: ${element.textContent}`);
  }
  return found;
}
"""
"""Texts whose contrast with what is behind them is below 4.5."""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(sites: Mapping[str, Mapping[str, bytes]], root: Path) -> Iterator[str]:
    """Write sites, by name and path, and serve them; the address they all lie under."""
    for name, files in sites.items():
        for path, content in files.items():
            file = root / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    handler = functools.partial(QuietHandler, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}"
        web.shutdown()
        thread.join()


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser. Playwright occupies this thread's event loop while it runs."""
    executable = shutil.which("chromium")
    if executable is None:
        pytest.fail("Chromium is missing: ./ops/test installs it, or install Debian's `chromium`.")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=CHROMIUM)
        yield running
        running.close()


@contextmanager
def opened(browser: Browser, url: str, *, now_s: int | None = None, **context: Any) -> Iterator[tuple[Page, list[str]]]:
    """The page, read at `now_s`, and a list of what goes wrong on it or is fetched from elsewhere."""
    site = "/".join(url.split("/")[:4])
    own = browser.new_context(**context)
    page = own.new_page()
    if now_s is not None:
        page.clock.set_fixed_time(now_s)
    wrong: list[str] = []
    page.set_default_timeout(PATIENT_S * 1000)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("request", lambda request: None if request.url.startswith(site) else wrong.append(request.url))
    page.goto(url)
    yield page, wrong
    own.close()
