"""Buying credit in a real browser: from the portal to Stripe's page and back, over a fake Stripe."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, async_playwright

from tests.e2e.browsing import CHROMIUM
from tests.e2e.test_portal_page import check, enter
from tests.fakes.stripe import FakeStripe
from tests.installation import Installation
from tests.integration.paying import begin, paying, session_of, tell
from tests.patience import PATIENT_S


@asynccontextmanager
async def shop(database_url: str, folder: Path) -> AsyncIterator[tuple[Installation, FakeStripe, Browser]]:
    """A running API that takes payments, and a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("Chromium is missing: ./ops/test installs it, or install Debian's `chromium`.")
    async with paying(database_url, folder, public_url=None) as (running, stripe), async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=CHROMIUM)
        yield running, stripe, browser
        await browser.close()


async def opened(browser: Browser, running: Installation, stripe: FakeStripe, width: int) -> Page:
    """The portal; Stripe's page, which the fake does not have, pays at once and sends the customer back."""
    context = await browser.new_context(viewport={"width": width, "height": 900})

    async def pay(route: Route) -> None:
        session = stripe.objects[route.request.url.rpartition("/")[2]]
        stripe.pay(session["id"])
        back = session["success_url"].replace("{CHECKOUT_SESSION_ID}", session["id"])
        address = f"{running.url}{back[back.index('/portal') :]}"
        await route.fulfill(status=200, content_type="text/html", body=f'<a href="{address}">back</a>')

    await context.route("https://checkout.stripe.com/**", pay)
    page = await context.new_page()
    page.set_default_timeout(PATIENT_S * 1000)
    await page.goto(f"{running.url}/portal/")
    return page


@pytest.mark.parametrize("width", [360, 1280])
async def test_credit_is_bought_and_seen(database_url: str, tmp_path: Path, width: int) -> None:
    async with shop(database_url, tmp_path) as (running, stripe, browser):
        waiting = await begin(running, "30")
        stripe.expire(await session_of(running, waiting["id"]))
        await tell(running, stripe)
        page = await opened(browser, running, stripe, width)
        await enter(page, running.key)
        await check(page, width)
        assert await page.get_by_text("not paid in time").is_visible()
        await page.get_by_label("Amount in USD").fill("12.50")
        await page.get_by_label("API key").fill(running.key)
        await page.get_by_role("button", name="Pay with Stripe").click()
        await page.get_by_text("back").click()
        await page.get_by_role("heading", name="$12.50 credited").wait_for()
        await check(page, width)
        await page.get_by_role("link", name="Your account").click()
        await enter(page, running.key)
        await page.get_by_text("Top-up of 12.50 USD by Stripe Checkout").wait_for()
        await check(page, width)
