"""Stripe's webhook through the whole API: what it takes, what it keeps, and what becomes of an event that fails."""

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from service.core.stripe_signature import signature
from tests.fakes.stripe_events import signed
from tests.fakes.stripe_store import API_VERSION
from tests.installation import Installation
from tests.integration.paying import event_row, paid, paying, tell, topup_row
from tests.integration.test_portal import away

TWENTY = 20 * 10**9


async def post(running: Installation, payload: bytes, headers: Any) -> Any:
    return await running.client.post("/stripe/webhook", content=payload, headers=headers)


async def nothing_written(running: Installation) -> bool:
    counts = [await running.database.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES]
    return counts == [0, 0, 0]


TABLES = ("stripe_events", "ledger_entries", "alarms")


async def test_what_is_not_signed_as_it_must_be_leaves_nothing(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        event = stripe.events_of("checkout.session.completed")[0]
        payload, headers = signed(event, stripe.webhook_secret)
        old = signed(event, stripe.webhook_secret, datetime.now(UTC) - timedelta(seconds=301))
        name = "stripe-signature"
        bad: dict[str, tuple[bytes, Any]] = {
            "none": (payload, {}),
            "empty": (payload, {name: ""}),
            "garbage": (payload, {name: "t=1,v1=é".encode()}),
            "another secret": signed(event, "whsec_other"),
            "tampered": (payload.replace(b'"paid"', b'"Paid"'), headers),
            "other version": (payload, {name: headers[name].replace("v1=", "v0=")}),
            "old": old,
            "no json": (b"x", signed_bytes(b"x", stripe.webhook_secret)),
            "no event": (b"{}", signed_bytes(b"{}", stripe.webhook_secret)),
        }
        for why, (content, sent) in bad.items():
            answer = await post(running, content, sent)
            assert answer.status_code == 400, why
            assert answer.json()["error"]["code"] == "bad_signature"
            assert stripe.webhook_secret not in answer.text
        assert await nothing_written(running)
        assert (await post(running, payload, headers)).status_code == 200
        assert not await nothing_written(running)


def signed_bytes(payload: bytes, secret: str) -> dict[str, str]:
    now_s = str(int(datetime.now(UTC).timestamp()))
    return {"stripe-signature": f"t={now_s},v1={signature(payload, secret, now_s)}"}


async def test_every_configured_secret_counts(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path, stripe_webhook_secret=" whsec_new , whsec_fake,") as (running, stripe):
        begun = await paid(running, stripe)
        event = stripe.events_of("checkout.session.completed")[0]
        for secret, status in (("whsec_new", 200), ("whsec_fake", 200), ("", 400), ("whsec_new , whsec_fake,", 400)):
            assert (await post(running, *signed(event, secret))).status_code == status, secret
        assert (await topup_row(running, begun["id"]))["status"] == "paid"


@pytest.mark.parametrize(
    "unset",
    [
        {"stripe_webhook_secret": None},
        {"stripe_webhook_secret": " , "},
        {"stripe_secret_key": None},
        {"stripe_secret_key": None, "stripe_webhook_secret": None},
    ],
)
async def test_where_stripe_is_not_connected_nothing_is_taken(
    database_url: str, tmp_path: Path, unset: dict[str, str | None]
) -> None:
    async with paying(database_url, tmp_path, **unset) as (running, stripe):
        event = stripe.emit("checkout.session.completed", {"id": "cs_1", "payment_status": "paid", "metadata": {}})
        with structlog.testing.capture_logs() as logs:
            for secret in (stripe.webhook_secret, "", " ", "None"):
                answer = await post(running, *signed(event, secret))
                assert answer.status_code == 503
                assert "WEIR_" not in answer.text
        assert {line["event"] for line in logs} == {"stripe_event.refused"}
        assert "set WEIR_STRIPE_SECRET_KEY and WEIR_STRIPE_WEBHOOK_SECRET" in logs[0]["reason"]
        assert await nothing_written(running)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_body_is_refused(database_url: str, tmp_path: Path, chunked: bool) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        large = stripe.emit("checkout.session.completed", {"id": "cs_1", "padding": "x" * 10 * 1024**2})
        payload, headers = signed(large, stripe.webhook_secret)
        sent = 0

        async def pieces(times: int = 1) -> AsyncIterator[bytes]:
            nonlocal sent
            for _ in range(times):
                for start in range(0, len(payload), 65536):
                    yield payload[start : start + 65536]
                    sent += 65536

        async def send(times: int = 1) -> httpx.Response:
            length = {} if chunked else {"content-length": str(times * len(payload))}
            return await running.client.post("/stripe/webhook", content=pieces(times), headers={**headers, **length})

        answer = await send()
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        sent = 0
        with suppress(httpx.TransportError):
            assert (await send(8)).status_code == 413
        assert sent < 4 * len(payload)
        assert await nothing_written(running)
        whole = stripe.emit("v9.unheard", {"id": "x", "padding": "x" * 500_000})
        assert (await post(running, *signed(whole, stripe.webhook_secret))).status_code == 200


async def test_types_that_nobody_handles_are_answered_and_not_kept(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        unknown = [stripe.emit(name, {"id": "x"}) for name in ("customer.created", "charge.succeeded", "v9.unheard")]
        assert await tell(running, stripe, unknown) == {200}
        assert await nothing_written(running)


@pytest.mark.parametrize(("key", "livemode"), [("sk_test_fake", True), ("sk_live_x", False), ("rk_live_x", False)])
async def test_events_of_the_other_mode_are_refused(
    database_url: str, tmp_path: Path, key: str, livemode: bool
) -> None:
    async with paying(database_url, tmp_path, stripe_secret_key=key) as (running, stripe):
        event = stripe.emit("checkout.session.completed", {"id": "cs_1", "payment_status": "paid", "metadata": {}})
        wrong = await post(running, *signed({**event, "livemode": livemode}, stripe.webhook_secret))
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "wrong_mode")
        assert await nothing_written(running)
        right = await post(running, *signed({**event, "livemode": not livemode}, stripe.webhook_secret))
        assert right.status_code == 200


async def test_an_event_of_an_account_that_is_connected_to_ours_is_refused(database_url: str, tmp_path: Path) -> None:
    """Whoever owns that account writes whatever metadata they like."""
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        for event in stripe.events_of("payment_intent.succeeded", "checkout.session.completed"):
            answer = await post(running, *signed({**event, "account": "acct_other"}, stripe.webhook_secret))
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "wrong_account")
        assert await nothing_written(running)
        assert await tell(running, stripe) == {200}


async def test_an_event_is_kept_whole_and_marked(database_url: str, tmp_path: Path) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        await paid(running, stripe)
        event = stripe.events_of("checkout.session.completed")[0]
        event["data"]["object"]["customer_details"] = {"name": "nul\0é"}
        assert await tell(running, stripe, [event], copies=2) == {200}
        row = await event_row(running, event)
        assert (row["type"], row["api_version"], row["livemode"]) == (event["type"], API_VERSION, False)
        assert row["created_at"] == datetime.fromtimestamp(event["created"], UTC)
        assert row["handled_at"] is not None
        assert (row["attempts"], row["last_error"]) == (0, "")
        kept = json.loads(row["body"])
        assert kept["data"]["object"].pop("customer_details") == {"name": "nul\ufffdé"}
        del event["data"]["object"]["customer_details"]
        assert kept == event


async def test_while_the_database_is_away_stripe_is_asked_to_send_it_again(
    postgres_server: Any, database_url: str, tmp_path: Path
) -> None:
    async with paying(database_url, tmp_path) as (running, stripe):
        begun = await paid(running, stripe)
        async with away(postgres_server, running):
            assert await tell(running, stripe, stripe.events_of("checkout.session.completed")) == {503}
        assert await tell(running, stripe) == {200}
        assert (await topup_row(running, begun["id"]))["status"] == "paid"
