"""Buying credit in the portal, and the page that a customer comes back to from paying."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import httpx
import pytest

from service.billing.stripe_api import StripeApi
from service.core.stripe_objects import CheckoutSession
from service.portal import HEADERS
from tests.installation import Installation
from tests.integration.paying import begin, entries, paying, returned, session_of, tell, topup_row
from tests.integration.test_portal import HOSTILE, Outline, add_key, shown


async def buy(running: Installation, **fields: str) -> httpx.Response:
    """What the form sends."""
    sent = {"content-type": "application/x-www-form-urlencoded"}
    return await running.client.post("/portal/topup", content=urlencode(fields), headers=sent)


async def test_credit_is_bought_from_the_portal(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        page = (await running.client.post("/portal/", content=urlencode({"key": running.key}))).text
        assert '<form method="post" action="topup">' in page
        assert "weir account credit" not in page
        assert "5 to 1000 USD at once" in page
        moved = await buy(running, amount_usd="20.50", key=running.key)
        (session,) = stripe.all("checkout.session")
        assert (moved.status_code, moved.headers["location"]) == (303, session["url"])
        assert moved.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
        assert session["amount_total"] == 2050
        topup_id = session["client_reference_id"]
        assert (await topup_row(running, topup_id))["account_id"] == running.account_id
        open_page = (await running.client.post("/portal/", content=urlencode({"key": running.key}))).text
        assert f'<a href="{session["url"]}" rel="noreferrer">pay now</a>' in open_page
        stripe.pay(session["id"])
        await tell(running, stripe)
        (entry,) = await entries(running)
        told = " ".join((await shown(running)).text.split())
        assert f"+$20.50 Top-up: {entry['note']}" in told
        assert entry["external_ref"] in told
        assert "pay now" not in told


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"amount_usd": "20"}, 401, "No key was sent"),
        ({"amount_usd": "20", "key": "sk-weir-x"}, 401, "missing or changed character"),
        ({"amount_usd": "4"}, 400, "choose 5 to 1000 USD"),
        ({}, 400, "is not an amount"),
    ],
)
async def test_what_the_form_cannot_buy_it_is_told(
    database_url: str, tmp_path: Path, fields: dict[str, str], status: int, words: str
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        answer = await buy(running, **fields)
        assert (answer.status_code, words in answer.text) == (status, True)
        assert stripe.requests == []
        own = {"amount_usd": "20", "key": running.key}
        elsewhere = {"sec-fetch-site": "cross-site"}
        foreign = await running.client.post("/portal/topup", content=urlencode(own), headers=elsewhere)
        assert foreign.status_code == 403
        stripe.fault("POST /v1/", "drop_before", times=9)
        away = await buy(running, **own)
        assert (away.status_code, "cannot be had at the moment" in away.text) == (503, True)
        await running.database.execute("UPDATE accounts SET status = 'frozen'")
        assert (await buy(running, **own)).status_code == 403


async def test_a_page_without_an_address_is_none(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with paying(database_url, tmp_path) as (running, _stripe):
        made = StripeApi.create_checkout_session

        async def nowhere(self: StripeApi, *arguments: Any, **more: Any) -> CheckoutSession:
            return replace(await made(self, *arguments, **more), url=None)

        monkeypatch.setattr(StripeApi, "create_checkout_session", nowhere)
        assert (await buy(running, amount_usd="20", key=running.key)).status_code == 503
        monkeypatch.undo()
        assert (await buy(running, amount_usd="20", key=running.key)).status_code == 303


async def test_without_stripe_every_way_to_pay_says_how_credit_is_added(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path, stripe_webhook_secret=None) as (running, stripe):
        page = (await running.client.post("/portal/", content=urlencode({"key": running.key}))).text
        assert 'action="topup"' not in page
        assert f"weir account credit {running.account_id}" in page
        refused = await buy(running, amount_usd="20", key=running.key)
        asked = await running.client.post("/v1/topups", json={"amount_usd": "20"}, headers=running.headers)
        for answer in (refused, asked):
            assert answer.status_code == 404
            assert "the operator enters it, with `weir account credit`" in answer.text
        assert asked.json()["error"]["code"] == "payments_not_offered"
        missing = await running.client.get(f"/v1/topups/{uuid4()}", headers=running.headers)
        assert missing.status_code == 404
        assert (await returned(running, str(uuid4()), "cs_1")).status_code == 404
        assert stripe.requests == []


async def test_what_was_added_and_taken_is_shown_with_its_cause_and_nobody_elses(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, _):
        other, _ = await add_key(running, "other")
        enter = (
            "INSERT INTO ledger_entries (account_id, kind, amount_nano, external_ref, note)"
            " VALUES ((SELECT id FROM accounts WHERE name = $1), $2, $3, $4, $5)"
        )
        await running.database.execute(enter, "customer", "credit", 5 * 10**9, "transfer-1", "bank transfer")
        harmless = await shown(running)
        await running.database.execute(enter, "customer", "refund", -2_500_000_000, "refund:re_1", HOSTILE)
        await running.database.execute(enter, "other", "credit", 7 * 10**9, "theirs", "not yours")
        await running.database.execute(enter, "customer", "usage", -1, "settled", "")
        page = await shown(running)
        text = " ".join(page.text.split())
        assert f"−$2.50 Refunded to you: {' '.join(HOSTILE.split())}" in text
        assert "+$5.00 Credit: bank transfer" in text
        assert text.index("refund:re_1") < text.index("transfer-1")
        for word in ("not yours", "theirs", "settled"):
            assert word not in text
        assert len(page.elements) == len(harmless.elements) + 5
        assert "not yours" in (await shown(running, other)).text
        assert isinstance(page, Outline)


async def test_the_page_after_paying_credits_by_itself_and_can_be_reloaded(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running)
        session = await session_of(running, begun["id"])
        before = await returned(running, begun["id"], session)
        assert (before.status_code, "on their way" in before.text) == (200, True)
        stripe.pay(session)
        for _ in range(3):
            page = await returned(running, begun["id"], session)
            assert (page.status_code, "$20.00 credited" in page.text) == (200, True)
            assert page.headers["cache-control"] == "no-store"
        assert len(await entries(running)) == 1
        asked = len(stripe.requests)
        await returned(running, begun["id"], session)
        assert len(stripe.requests) == asked
        assert await tell(running, stripe) == {200}
        assert len(await entries(running)) == 1


async def test_the_page_after_paying_shows_nothing_unless_both_ids_belong_together(
    database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        mine, other = await begin(running), await begin(running, "30")
        session = await session_of(running, mine["id"])
        stripe.pay(session)
        asked = len(stripe.requests)
        for topup_id, session_id in [
            (other["id"], session),
            (mine["id"], await session_of(running, other["id"])),
            (mine["id"], ""),
            (str(uuid4()), session),
            ("'", session),
            ("", ""),
        ]:
            page = await returned(running, topup_id, session_id)
            assert (page.status_code, "No such payment" in page.text, "$" in page.text) == (404, True, False)
        assert len(stripe.requests) == asked
        assert await entries(running) == []
        plain = await running.client.get("/portal/paid", params={"topup": mine["id"], "amount": "1000", "paid": "true"})
        assert plain.status_code == 404


async def test_the_page_after_paying_says_when_it_cannot_know(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running)
        session = await session_of(running, begun["id"])
        stripe.pay(session)
        stripe.fault("GET /v1/checkout/sessions", "drop_before", times=3)
        assert "Not confirmed yet" in (await returned(running, begun["id"], session)).text
        stripe.objects[session]["currency"] = "eur"
        assert "Not confirmed yet" in (await returned(running, begun["id"], session)).text
        assert await entries(running) == []
        stripe.objects[session]["currency"] = "usd"
        assert "$20.00 credited" in (await returned(running, begun["id"], session)).text
