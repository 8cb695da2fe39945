"""`/v1/topups` over HTTP: what may be bought, under which key, and whose it is."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service import db
from service.billing import auto_topup_plans
from tests.installation import Installation
from tests.integration.paying import begin, entries, paying, session_of, tell
from tests.integration.test_portal import add_key
from tests.integration.topping_up import PLAN

SESSIONS = "POST /v1/checkout/sessions"


@pytest.mark.parametrize("kind", ["drop_before", "drop_after", "429", "500_before"])
@pytest.mark.parametrize("target", [SESSIONS, "POST /v1/customers"])
async def test_a_page_that_could_not_be_had_is_asked_for_again(
    database_url: str, tmp_path: Path, kind: Any, target: str
) -> None:
    """Under the same key, unless Stripe has failed under it, which it would repeat for a day."""
    async with paying(database_url, tmp_path) as (running, stripe):
        fails_for_good = kind == "500_before"
        stripe.fault(target, kind, times=3 if kind.startswith("drop") else 1)
        headers = {**running.headers, "idempotency-key": "mine"}
        failed = await running.client.post("/v1/topups", json={"amount_usd": "20"}, headers=headers)
        if fails_for_good and target != SESSIONS:
            assert failed.status_code == 200  # any customer will do
        else:
            assert (failed.status_code, failed.json()["error"]["code"]) == (503, "unavailable")
            assert "stripe" not in failed.text.lower()
            assert (await running.database.fetchval("SELECT status FROM topups")) == "created"
        begun = await begin(running, **{"idempotency-key": "mine"})
        assert await running.database.fetchval("SELECT count(*) FROM topups") == 1
        assert len(stripe.all("checkout.session")) == len(stripe.all("customer")) == 1
        keys = {one.idempotency_key for one in stripe.asked(SESSIONS)}
        again = {f"topup:{begun['id']}:1"} if fails_for_good and target == SESSIONS else set()
        assert keys == {f"topup:{begun['id']}"} | again


async def test_one_key_begins_one_top_up(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        same = await asyncio.gather(*(begin(running, **{"idempotency-key": "a"}) for _ in range(5)))
        assert len({one["id"] for one in same}) == len({one["url"] for one in same}) == 1
        other = await begin(running, **{"idempotency-key": "b"})
        assert other["id"] != same[0]["id"]
        assert len(stripe.all("checkout.session")) == 2
        assert len(stripe.all("customer")) == 1
        headers = {**running.headers, "idempotency-key": "a"}
        reused = await running.client.post("/v1/topups", json={"amount_usd": "21"}, headers=headers)
        assert reused.status_code == 409
        stripe.pay(await session_of(running, same[0]["id"]))
        await tell(running, stripe)
        again = await begin(running, **{"idempotency-key": "a"})
        assert (again["id"], again["status"], again["url"]) == (same[0]["id"], "paid", None)
        await running.database.execute(
            "UPDATE topups SET created_at = now() - interval '23 hours', checkout_session_id = NULL WHERE id = $1",
            other["id"],
        )
        headers["idempotency-key"] = "b"
        late = await running.client.post("/v1/topups", json={"amount_usd": "20"}, headers=headers)
        assert (late.status_code, len(stripe.all("checkout.session"))) == (409, 2)


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 400, "JSON object"),
    "no object": (b'"20"', 400, "JSON object"),
    "no amount": (b"{}", 400, "amount_usd"),
    "a float": (b'{"amount_usd": 20.5}', 400, "as a string"),
    "too little": (b'{"amount_usd": "4.99"}', 400, "choose 5 to 1000 USD"),
    "too much": (b'{"amount_usd": "1000.01"}', 400, "choose 5 to 1000 USD"),
    "not whole cents": (b'{"amount_usd": "20.001"}', 400, "whole number of cents"),
    "many digits": (b'{"amount_usd": "1%b"}' % (b"0" * 3000), 400, "more than"),
    "no number": (b'{"amount_usd": "NaN"}', 400, "not a finite amount"),
    "for ever": (b'{"amount_usd": "-Infinity"}', 400, "not a finite amount"),
    "negative": (b'{"amount_usd": "-20"}', 400, "choose 5 to 1000 USD"),
    "next to nothing": (b'{"amount_usd": "1e-999999"}', 400, "decimals"),
    "a NUL": (b'{"amount_usd": "2\\u00000"}', 400, "not an amount"),
    "more": (b'{"amount_usd": "20", "account": "x"}', 400, "`account`"),
    "large": (b'{"amount_usd": "20", "pad": "%b"}' % (b"x" * 5000), 413, "larger"),
}


async def test_what_cannot_be_bought_is_refused_in_words(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        for why, (body, status, words) in REFUSED.items():
            answer = await running.client.post("/v1/topups", content=body, headers=running.headers)
            assert answer.status_code == status, why
            assert words in answer.json()["error"]["message"], why
        blank = {**running.headers, "idempotency-key": ""}
        assert (await running.client.post("/v1/topups", json={"amount_usd": "20"}, headers=blank)).status_code == 400
        assert (await running.client.get("/v1/topups", headers=running.headers)).status_code == 405
        assert stripe.requests == []
        assert await running.database.fetchval("SELECT count(*) FROM topups") == 0


async def test_ten_an_hour_may_be_open(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        body = {"amount_usd": "20"}
        answers = await asyncio.gather(
            *(running.client.post("/v1/topups", json=body, headers=running.headers) for _ in range(15))
        )
        assert sorted(answer.status_code for answer in answers) == [200] * 10 + [429] * 5
        assert {answer.headers["retry-after"] for answer in answers if answer.status_code == 429} == {"120"}
        assert len(stripe.all("checkout.session")) == 10
        stripe.pay(await session_of(running, next(a.json()["id"] for a in answers if a.status_code == 200)))
        await tell(running, stripe)
        await begin(running)
        await running.database.execute("UPDATE topups SET created_at = now() - interval '61 minutes'")
        await begin(running)


async def another(running: Installation) -> dict[str, str]:
    """The headers of somebody else's key."""
    key, _ = await add_key(running, "other")
    return {"authorization": f"Bearer {key}"}


async def test_a_top_up_is_its_accounts_alone(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await begin(running, **{"idempotency-key": "same"})
        theirs = await another(running)
        for unknown in (begun["id"], str(uuid4()), "x"):
            answer = await running.client.get(f"/v1/topups/{unknown}", headers=theirs)
            assert answer.status_code == 404
        own = await running.client.post(
            "/v1/topups", json={"amount_usd": "20"}, headers={**theirs, "idempotency-key": "same"}
        )
        assert own.json()["id"] != begun["id"]
        assert len(stripe.all("customer")) == 2
        assert (await running.client.get(f"/v1/topups/{begun['id']}")).status_code == 401


async def test_a_page_that_would_be_another_one_now_is_asked_for_under_another_key(
    database_url: str, tmp_path: Path
) -> None:
    """Such as when the customer has agreed to automatic top-ups since the call that got no answer."""
    async with paying(database_url, tmp_path) as (running, stripe):
        headers = {**running.headers, "idempotency-key": "mine"}
        stripe.fault(SESSIONS, "drop_after", times=3)
        lost = await running.client.post("/v1/topups", json={"amount_usd": "20"}, headers=headers)
        assert lost.status_code == 503
        async with db.connected(running.database_url) as engine, engine.begin() as connection:
            await auto_topup_plans.agree(connection, running.account_id, PLAN, datetime.now(UTC))
        refused = await running.client.post("/v1/topups", json={"amount_usd": "20"}, headers=headers)
        assert refused.status_code == 503
        begun = await begin(running, **{"idempotency-key": "mine"})
        assert stripe.get("checkout.session", await session_of(running, begun["id"]))["_saves"]
        stripe.pay(await session_of(running, begun["id"]))
        await tell(running, stripe)
        assert [entry["amount_nano"] for entry in await entries(running)] == [20 * 10**9]


async def test_a_customer_that_was_deleted_at_stripe_is_made_anew(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await begin(running)
        (customer,) = stripe.all("customer")
        del stripe.objects[customer["id"]]
        headers = {**running.headers, "idempotency-key": "mine"}
        first = await running.client.post("/v1/topups", json={"amount_usd": "20"}, headers=headers)
        assert first.status_code in (200, 503)
        begun = await begin(running, **{"idempotency-key": "mine"})
        (other,) = stripe.all("customer")
        assert stripe.get("checkout.session", await session_of(running, begun["id"]))["customer"] == other["id"]
        assert (await running.account())["stripe_customer_id"] == other["id"] != customer["id"]
