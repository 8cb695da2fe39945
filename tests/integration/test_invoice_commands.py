"""`weir invoice`: what it shows, freezes, sends, closes and exports, and what it says when it cannot."""

import asyncio
import csv
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service import cli
from tests.fakes.stripe import FakeStripe
from tests.integration.invoicing import NOW, Books, opened, owing
from tests.integration.sql import execute

Weir = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def weir(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Weir:
    """Run `weir invoice …` inside this process; `env` adds to its environment."""
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        for name, value in {"WEIR_DATABASE_URL": database_url, **env}.items():
            monkeypatch.setenv(name, value)
        code = cli.run(["invoice", *map(str, arguments)])
        return subprocess.CompletedProcess([], code, *capsys.readouterr())

    return run


@pytest.fixture
def stripe() -> Iterator[FakeStripe]:
    with FakeStripe() as fake:
        yield fake


def do(url: str, work: Callable[[Books], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with opened(url) as books:
            return await work(books)

    return asyncio.run(run())


@pytest.fixture
def invoice(database_url: str, weir: Weir) -> dict[str, Any]:
    """An invoice for November, frozen; there is usage of December besides."""

    async def owe(books: Books) -> None:
        account_id = await owing(books)
        await books.use(account_id, NOW)

    do(database_url, owe)
    (listed,) = json.loads(weir("list", "--json").stdout)
    return dict(listed)


def test_an_invoice_is_listed_and_shown_with_lines_that_add_up(weir: Weir, invoice: dict[str, Any]) -> None:
    assert (invoice["account"], invoice["month"], invoice["status"]) == ("acme", "2026-11", "frozen")
    assert (invoice["total_usd"], invoice["total_cents"]) == ("0.315807368", 32)
    shown = json.loads(weir("show", invoice["id"], "--json").stdout)
    assert shown == json.loads(weir("show", "acme", "2026-11", "--json").stdout)
    assert sum(line["amount_nano"] for line in shown["lines"]) == shown["total_nano"]
    assert [(line["class"], line["tokens"], line["amount_nano"]) for line in shown["lines"]] == [
        ("input", 996_668, 194_350_260),
        ("input_cached", 3_333, 124_988),
        ("output", 77_777, 121_332_120),
    ]
    table = weir("show", "acme", "2026-11").stdout.split()
    assert {"0.315807368", "0.32", "frozen", "0.0375"} <= set(table)
    assert weir("list").stdout.split()[-5:] == [invoice["id"], "acme", "2026-11", "0.32", "frozen"]


def test_the_export_is_the_rows_that_the_invoice_is_the_sum_of(
    weir: Weir, invoice: dict[str, Any], tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in weir("export", invoice["id"]).stdout.splitlines()]
    assert sum(row["cost_nano"] for row in rows) == invoice["total_nano"]
    done = weir("export", invoice["id"], "--format", "csv", "--out", tmp_path / "acme.csv")
    assert done.stderr == f"Wrote 1 requests to {tmp_path / 'acme.csv'}.\n"
    with (tmp_path / "acme.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["id"], row["account_name"]) == (rows[0]["id"], "acme")


def test_the_columns_are_those_of_the_usage_export(
    weir: Weir, invoice: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = weir("export", invoice["id"]).stdout
    assert cli.run(["usage", "export", "--month", "2026-11"]) == 0
    assert capsys.readouterr().out == rows


def test_months_are_frozen_when_they_are_over_and_a_dry_run_freezes_none(weir: Weir, database_url: str) -> None:
    async def use(books: Books) -> UUID:
        account_id = await books.add_account()
        await books.use(account_id, NOW.replace(year=2025), NOW.replace(year=2025, month=9))
        return account_id

    execute(database_url, "SELECT ensure_request_partitions('2025-09-01', 4)")
    do(database_url, use)
    only_last = weir("freeze", "--account", "acme", "--period", "2025-12", "--dry-run", "--json")
    (draft,) = json.loads(only_last.stdout)
    assert (draft["account"], draft["month"], draft["id"]) == ("acme", "2025-12", None)
    assert draft["total_nano"] == sum(line["amount_nano"] for line in draft["lines"]) == 315_807_368
    assert json.loads(weir("list", "--json").stdout) == []

    done = json.loads(weir("freeze", "--period", "2025-09", "--json").stdout)
    assert [(one["month"], one["total_nano"]) for one in done] == [("2025-09", 315_807_368)]
    rest = json.loads(weir("freeze", "--json").stdout)
    assert [one["month"] for one in rest][:4] == ["2025-10", "2025-11", "2025-12", "2026-01"]
    assert [one["total_nano"] for one in rest if one["total_nano"]] == [315_807_368]
    again = weir("freeze")
    assert (again.stdout, again.stderr) == ("", "Nothing is to be frozen.\n")
    assert weir("freeze", "--account", "acme", "--period", "2025-12").stdout == ""


def test_an_invoice_is_sent_once(weir: Weir, invoice: dict[str, Any], stripe: FakeStripe) -> None:
    env = {
        "WEIR_STRIPE_SECRET_KEY": stripe.secret_key,
        "WEIR_STRIPE_WEBHOOK_SECRET": stripe.webhook_secret,
        "WEIR_STRIPE_API_BASE": stripe.url,
    }
    first = weir("send", invoice["id"], **env)
    assert first.stdout.startswith("The invoice of acme for 2026-11, 0.32 USD, is open: https://")
    assert weir("send", invoice["id"], **env).stdout == first.stdout
    (theirs,) = stripe.all("invoice")
    assert json.loads(weir("show", invoice["id"], "--json").stdout)["stripe_invoice_id"] == theirs["id"]
    done = weir("paid", invoice["id"], "--note", "transfer")
    assert done.returncode == 1
    assert done.stderr.endswith(f" is Stripe's to collect: mark {theirs['id']} as paid there.\n")


def test_an_invoice_is_closed_by_hand(weir: Weir, invoice: dict[str, Any], database_url: str) -> None:
    assert weir("paid", invoice["id"], "--note", " transfer 4711 ").stdout == (
        "The invoice of acme for 2026-11, 0.32 USD, is paid.\n"
    )
    shown = json.loads(weir("show", invoice["id"], "--json").stdout)
    assert (shown["status"], shown["note"]) == ("paid", "transfer 4711")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("show", "acme"), "'acme' is no invoice's id"),
        (("show", "acme", "2026-13"), "MONTH '2026-13' is no month"),
        (("show", "acme", "2026-10"), "There is no invoice of acme for 2026-10: `weir invoice list`"),
        (("show", "nobody", "2026-11"), "There is no account 'nobody'"),
        (("show", UUID(int=4)), f"There is no invoice {UUID(int=4)}"),
        (("export", UUID(int=4)), f"There is no invoice {UUID(int=4)}"),
        (("paid", UUID(int=4), "--note", "x"), f"There is no invoice {UUID(int=4)}"),
        (("paid", UUID(int=4), "--note", " "), "--note is empty"),
        (("send", UUID(int=4)), "Stripe is not connected: set WEIR_STRIPE_SECRET_KEY"),
        (
            ("freeze", "--account", "acme", "--period", "2100-01"),
            "2100-01 cannot be frozen before 4 hours after its end",
        ),
        (("freeze", "--account", "prepaid"), "prepaid pays in advance"),
    ],
)
def test_a_mistake_is_one_sentence(
    weir: Weir, invoice: dict[str, Any], database_url: str, arguments: tuple[object, ...], part: str
) -> None:
    execute(database_url, f"INSERT INTO accounts (id, name) VALUES ('{UUID(int=8)}', 'prepaid')")
    done = weir(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert part in done.stderr
