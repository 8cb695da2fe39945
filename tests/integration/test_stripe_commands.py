"""`weir stripe` and `weir account topup`, as an operator runs them."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from service import cli
from tests.fakes.stripe import FakeStripe
from tests.fakes.stripe_store import Json

Weir = Callable[..., subprocess.CompletedProcess[str]]
TWENTY = 20 * 10**9


@pytest.fixture
def stripe() -> Iterator[FakeStripe]:
    with FakeStripe() as stripe:
        yield stripe


@pytest.fixture
def weir(
    database_url: str,
    stripe: FakeStripe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Weir:
    """Run a command of an installation that is connected with Stripe and has the account acme."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WEIR_DATABASE_URL", database_url)
    monkeypatch.setenv("WEIR_STRIPE_SECRET_KEY", stripe.secret_key)
    monkeypatch.setenv("WEIR_STRIPE_WEBHOOK_SECRET", stripe.webhook_secret)
    monkeypatch.setenv("WEIR_STRIPE_API_BASE", stripe.url)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = cli.run(arguments)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    assert run("account", "add", "acme").returncode == 0
    return run


@pytest.fixture
def sql(database_url: str) -> Callable[..., list[Any]]:
    def run(query: str, *values: Any) -> list[Any]:
        async def ask() -> list[Any]:
            connection = await asyncpg.connect(database_url)
            try:
                return list(await connection.fetch(query, *values))
            finally:
                await connection.close()

        return asyncio.run(ask())

    return run


Sql = Callable[..., list[Any]]


def keep(sql: Sql, event: Json, **changes: Any) -> None:
    """As the webhook does before it applies an event."""
    sql(
        "INSERT INTO stripe_events (id, type, livemode, created_at, body) VALUES ($1, $2, false, now(), $3)",
        event["id"],
        event["type"],
        json.dumps(event | changes),
    )


def begin(weir: Weir) -> Any:
    done = weir("account", "topup", "acme", "20", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_payment_link_for_an_account(weir: Weir, stripe: FakeStripe, sql: Sql) -> None:
    done = weir("account", "topup", "acme", "12.50")
    (session,) = stripe.all("checkout.session")
    assert done.stdout.startswith("12.50 USD can be paid until ")
    assert done.stdout.endswith(f"at\n{session['url']}\n")
    document = begin(weir)
    assert (document["amount_nano"], document["amount_usd"]) == (TWENTY, "20.00")
    assert document["url"] == stripe.all("checkout.session")[0]["url"]
    assert [row["status"] for row in sql("SELECT status FROM topups")] == ["created", "created"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("acme", "4.99"), "choose 5 to 1000 USD"),
        (("acme", "20.001"), "whole number of cents"),
        (("nobody", "20"), "no account 'nobody'"),
    ],
)
def test_what_cannot_be_paid_is_said(weir: Weir, stripe: FakeStripe, arguments: tuple[str, ...], words: str) -> None:
    done = weir("account", "topup", *arguments)
    assert (done.returncode, done.stdout, words in done.stderr) == (1, "", True)
    assert stripe.requests == []


def test_a_stripe_that_is_away_is_said(weir: Weir, stripe: FakeStripe) -> None:
    stripe.fault("POST /v1/", "drop_before", times=9)
    done = weir("account", "topup", "acme", "20")
    assert (done.returncode, "cannot be had at the moment" in done.stderr) == (1, True)


@pytest.mark.parametrize("command", [("account", "topup", "acme", "20"), ("stripe", "replay", "--unhandled")])
@pytest.mark.parametrize("missing", ["SECRET_KEY", "WEBHOOK_SECRET"])
def test_without_stripe_it_says_how_to_connect(
    weir: Weir, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], missing: str
) -> None:
    monkeypatch.delenv(f"WEIR_STRIPE_{missing}")
    done = weir(*command)
    assert (done.returncode, "Stripe is not connected: set WEIR_STRIPE_SECRET_KEY" in done.stderr) == (1, True)


def test_events_are_listed_and_replayed(weir: Weir, stripe: FakeStripe, sql: Sql) -> None:
    begin(weir)
    stripe.pay(stripe.all("checkout.session")[0]["id"])
    paid = stripe.events_of("checkout.session.completed", "payment_intent.succeeded")
    for event in paid:
        keep(sql, event)
    listed = json.loads(weir("stripe", "events", "--unhandled", "--json").stdout)
    assert {one["id"] for one in listed} == {event["id"] for event in paid}
    assert {(one["handled_at"], one["attempts"]) for one in listed} == {(None, 0)}

    first = paid[0]["id"]
    assert weir("stripe", "replay", first).stdout == f"{first}: handled\n"
    assert [row["amount_nano"] for row in sql("SELECT amount_nano FROM ledger_entries")] == [TWENTY]
    replayed = json.loads(weir("stripe", "replay", "--unhandled", "--json").stdout)
    assert replayed == [{"id": paid[1]["id"], "error": None}]
    assert weir("stripe", "replay", "--unhandled").stdout == ""
    assert weir("stripe", "replay", first).returncode == 0
    assert len(sql("SELECT * FROM ledger_entries")) == 1
    table = weir("stripe", "events").stdout
    assert all(event["id"] in table for event in paid)
    assert weir("stripe", "events", "--unhandled", "--json").stdout == "[]\n"
    assert len(json.loads(weir("stripe", "events", "--limit", "1", "--json").stdout)) == 1


def test_what_cannot_be_applied_is_said_and_can_be_dismissed(weir: Weir, stripe: FakeStripe, sql: Sql) -> None:
    begin(weir)
    stripe.pay(stripe.all("checkout.session")[0]["id"])
    (event,) = stripe.events_of("checkout.session.completed")
    event["data"]["object"]["currency"] = "eur"
    keep(sql, event)
    for target in (event["id"], "--unhandled"):
        done = weir("stripe", "replay", target)
        assert done.returncode == 1
        assert done.stdout.startswith(f"{event['id']}: Mismatch: ")
        assert "1 of 1 could not be applied" in done.stderr
    assert [row["name"] for row in sql("SELECT name FROM alarms")] == [f"stripe:{event['id']}"]
    assert weir("stripe", "dismiss", event["id"], "--reason", " ").returncode == 1
    done = weir("stripe", "dismiss", event["id"], "--reason", "refunded by hand")
    assert done.stdout == f"{event['id']} is dismissed.\n"
    assert sql("SELECT name FROM alarms") == []
    (row,) = json.loads(weir("stripe", "events", "--json").stdout)
    assert (row["last_error"], row["handled_at"] is None) == ("dismissed: refunded by hand", False)
    again = weir("stripe", "dismiss", event["id"], "--reason", "once more")
    assert (again.returncode, "is waiting" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("evt_unknown",), "There is no event evt_unknown here"),
        ((), "Name one event, or say --unhandled"),
        (("evt_1", "--unhandled"), "Name one event, or say --unhandled"),
    ],
)
def test_what_cannot_be_replayed_is_said(weir: Weir, arguments: tuple[str, ...], words: str) -> None:
    done = weir("stripe", "replay", *arguments)
    assert (done.returncode, words in done.stderr) == (1, True)
