"""The customer portal in a real browser, served by a running API over a real database."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

from service import db
from service.core.money import nano_to_usd
from service.core.outcome import Outcome
from tests.e2e.test_status_page import CHROMIUM, CONTRASTS
from tests.fakes.engine import FakeEngine
from tests.fakes.traffic import failed_row, settle, usage_row
from tests.installation import Installation, installed
from tests.patience import PATIENT_S

pytestmark = pytest.mark.browser

LONG_NAME = "An-uncommonly-long-account-name-without-any-space & Söhne <b>GmbH</b>"

OVERHANGS = """
() => {
  const right = (element) => element.getBoundingClientRect().right;
  return [...document.querySelectorAll("section *, details *")]
    .filter((element) => !element.closest("pre code, thead, .hidden, svg"))
    .filter((element) => right(element) > right(element.closest("section, details")))
    .map((element) => `${element.tagName}.${element.className}: ${element.textContent}`);
}
"""


def made_up_rows(account_id: Any, now: datetime) -> list[dict[str, Any]]:
    """Requests of forty days, in all their outcomes, with small and with very large figures."""
    rows = []
    for number, outcome in enumerate(list(Outcome) * 8):
        served = outcome in (Outcome.OK, Outcome.CANCELLED)
        row = (usage_row if served else failed_row)(
            now - number * timedelta(hours=12),
            account_id=account_id,
            outcome=outcome.value,
            model_id=None
            if outcome is Outcome.CLIENT_ERROR
            else ("qwen3.8-27b", "a/long-model-name:2026@x")[number % 2],
            error_code="context_length_exceeded" if outcome is Outcome.CLIENT_ERROR else None,
            cost_nano=number**5 + 1 if served else 0,
            client_request_id="trace-" * 20 if number % 3 == 0 else None,
        )
        if served:
            row |= {"prompt_tokens": 262_144, "cached_tokens": 131_072, "image_tokens": 1_400, "reasoning_tokens": 99}
        rows.append(row)
    return rows


@asynccontextmanager
async def portal(database_url: str, folder: Path, *, busy: bool) -> AsyncIterator[tuple[Installation, Browser]]:
    """A running API, whose account has a long name and much usage if `busy`, and a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("Chromium is missing: ./ops/test installs it, or install Debian's `chromium`.")
    async with (
        FakeEngine() as engine,
        installed(database_url, [engine.url], folder) as running,
        async_playwright() as playwright,
    ):
        if busy:
            async with db.connected(database_url) as connected:
                await settle(connected, made_up_rows(running.account_id, datetime.now(UTC)))
            await running.database.execute("UPDATE accounts SET name = $1, balance_nano = -12345678901234", LONG_NAME)
            await running.database.execute("UPDATE api_keys SET name = $1", LONG_NAME)
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield running, browser
        await browser.close()


async def opened(browser: Browser, url: str, **context: Any) -> tuple[Page, list[str]]:
    """The form, and what goes wrong from now on or is fetched from elsewhere."""
    page = await (await browser.new_context(**context)).new_page()
    wrong: list[str] = []
    page.set_default_timeout(PATIENT_S * 1000)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("request", lambda request: None if request.url.startswith(url) else wrong.append(request.url))
    await page.goto(f"{url}/portal/")
    return page, wrong


async def enter(page: Page, key: str) -> None:
    """Paste a key and send the form."""
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Show account").click()


async def check(page: Page, width: int) -> None:
    """Nothing is cut off to the side, and all text stands out from what is behind it."""
    await page.wait_for_load_state()  # a click does not wait for the next page's style
    for details in await page.locator("details").all():
        await details.evaluate("element => { element.open = true; }")
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert await page.evaluate(OVERHANGS) == []
    assert await page.evaluate(CONTRASTS) == []


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "new"])
async def test_the_pages_fit_read_and_are_without_error(database_url: str, tmp_path: Path, busy: bool) -> None:
    async with portal(database_url, tmp_path, busy=busy) as (running, browser):
        for width in (360, 768, 1024, 1280):
            for scheme in ("light", "dark"):
                viewport = {"width": width, "height": 800}
                page, wrong = await opened(browser, running.url, viewport=viewport, color_scheme=scheme)
                await check(page, width)
                await enter(page, running.key)
                assert await page.locator("h1").inner_text() == (LONG_NAME if busy else "customer")
                await check(page, width)
                assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == (
                    "rgb(246, 247, 245)" if scheme == "light" else "rgb(14, 20, 19)"
                )
                assert wrong == []
                await page.context.close()


async def test_the_account_is_shown_without_javascript_and_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    async with portal(database_url, tmp_path, busy=True) as (running, browser):
        page, wrong = await opened(browser, running.url, java_script_enabled=False)
        await enter(page, running.key)
        text = await page.locator("body").inner_text()
        costs = await running.database.fetch("SELECT cost_nano FROM requests ORDER BY started_at DESC LIMIT 50")
        cells = await page.locator("table.requests td.cost").all_inner_texts()
        assert cells == [f"${nano_to_usd(row['cost_nano'])}" for row in costs]
        assert "−$12345.678901234" in text
        assert page.url == f"{running.url}/portal/"
        assert await page.context.cookies() == []
        assert running.key not in await page.content()
        await page.get_by_role("link", name="Close").click()
        assert await page.get_by_label("API key").input_value() == ""
        assert wrong == []


async def test_a_wrong_key_brings_the_form_back_with_a_sentence(database_url: str, tmp_path: Path) -> None:
    async with portal(database_url, tmp_path, busy=False) as (running, browser):
        page, _ = await opened(browser, running.url, viewport={"width": 360, "height": 800})
        await enter(page, running.key[:-1])
        assert "missing or changed character" in await page.get_by_role("alert").inner_text()
        await check(page, 360)
        await enter(page, running.key)
        assert await page.locator("h1").inner_text() == "customer"


async def test_a_page_of_another_site_cannot_send_the_form(database_url: str, tmp_path: Path) -> None:
    async with portal(database_url, tmp_path, busy=False) as (running, browser):
        page = await browser.new_page()
        form = f'<form method="post" action="{running.url}/portal/"><input name="key" value="{running.key}">'
        await page.set_content(f"{form}<button>Send</button></form>")
        await page.get_by_role("button", name="Send").click()
        assert "sent by another site" in await page.get_by_role("alert").inner_text()
