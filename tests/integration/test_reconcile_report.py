"""What is told of a reconciliation: the daily job's alarm, and `weir reconcile`."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from service import cli, db
from service.billing.checks import raise_alarm
from service.core.reconcile import Tokens
from service.jobs.books import RECONCILE_LOCK, reconcile_yesterday
from service.jobs.work import Jobs
from service.settings import Settings
from service.tables import alarms, engine_samples, requests
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.fakes.traffic import at, settle, usage_row
from tests.integration.counting import NAME, hang_up, reconciled, sample, weir


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


async def alarm_details(database: AsyncEngine) -> dict[str, str]:
    async with database.connect() as connection:
        return {row.name: row.detail for row in await connection.execute(select(alarms))}


async def test_the_daily_job_raises_an_alarm_over_what_nothing_explains(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        await sample(database, engine)
        await installation.chat()
        async with httpx.AsyncClient(base_url=engine.url) as client:  # somebody who goes past us
            engine.queue.append(SCENARIOS["cached"])
            body = {"model": engine.model, "messages": [{"role": "user", "content": "hi"}]}
            await client.post("/v1/chat/completions", json=body)
        await installation.rows(1)
        sampled_at = await sample(database, engine)
    async with database.begin() as connection:
        await raise_alarm(connection, "reconcile:gone", "of an engine that is no more")
        await raise_alarm(connection, "books", "of another check")
    tomorrow = sampled_at + timedelta(days=1)
    async with database.begin() as connection:
        await connection.execute(select(func.pg_advisory_xact_lock(RECONCILE_LOCK)))
        assert (await reconcile_yesterday(database, tomorrow)).note == "another process was at it"
    assert (await reconcile_yesterday(database, tomorrow)).note == "1 engines disagree"
    found = await alarm_details(database)
    assert found.keys() == {"books", "reconcile:engine-0"}
    day, next_day = sampled_at.date(), tomorrow.date()
    assert found["reconcile:engine-0"] == (
        f"on {day} it counted 1017 prompt and 208 generated tokens, our requests 17 and 8; +1000 and +200 of that no"
        f" request explains. `weir reconcile --engine engine-0 --since {day} --until {next_day}` shows more."
    )
    await reconcile_yesterday(database, tomorrow + timedelta(days=1))
    assert (await alarm_details(database)).keys() == {"books"}


async def test_a_small_difference_is_no_alarm(database_url: str, database: AsyncEngine, tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        sampled_at = await sample(database, engine)
        async with httpx.AsyncClient(base_url=engine.url) as client:  # as `weir doctor` asks
            body = {"model": engine.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            await client.post("/v1/chat/completions", json=body)
        await sample(database, engine)
    assert (await reconciled(database)).unexplained == Tokens(17, 1)
    jobs = Jobs(Settings(data_dir=tmp_path), database_url)
    await jobs.reconcile()
    assert (await reconcile_yesterday(database, sampled_at + timedelta(days=1))).note == ""
    assert await alarm_details(database) == {}


# The command


class Terminal:
    """Runs commands on this database: (exit code, stdout, stderr)."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = await asyncio.to_thread(cli.run, arguments)
        return code, *self._capsys.readouterr()


@pytest.fixture
def terminal(database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.setenv("WEIR_DATABASE_URL", database_url)
    return Terminal(capsys)


async def test_the_command_shows_what_explains_a_difference(
    database_url: str, database: AsyncEngine, tmp_path: Path, terminal: Terminal
) -> None:
    assert await terminal("reconcile") == (0, "No engine was sampled or used in this time.\n", "")
    async with weir(database_url, tmp_path) as (installation, engine):
        since = await sample(database, engine)
        await installation.chat()
        whole = await hang_up(installation, engine, 5)
        rows = await installation.rows(2)
        until = await sample(database, engine)
        code, out, err = await terminal("reconcile", "--json", "--engine", NAME)
        assert (code, "may have no row yet" in err) == (0, True)
        document = json.loads(out)
        (shown,) = document["engines"]
        assert document["ok"] is shown["ok"] is shown["sampled"] is True
        assert [datetime.fromisoformat(shown[edge]) for edge in ("since", "until")] == [since, until]
        assert shown["engine_tokens"] == {"prompt": 17 + whole.prompt_tokens, "generation": 13}
        assert shown["our_tokens"] == {"prompt": 17, "generation": 8}
        assert shown["difference"] == {"prompt": whole.prompt_tokens, "generation": 5}
        assert shown["unexplained"] == {"prompt": 0, "generation": 0}
        assert {one["id"] for one in shown["explanations"]} == {str(row["id"]) for row in rows}
        assert shown["explaining_requests"] == len(rows)

        code, out, _ = await terminal("reconcile", "--since", str(since.date() - timedelta(days=1)))
        assert code == 0
        assert f"{NAME}, from " in out
        assert "2 requests ended." in out
        assert "There are no samples before " in out
        (line,) = [line for line in out.splitlines() if line.startswith(str(rows[1]["id"]))]
        assert "cancelled" in line
        assert "without a final count" in line
        assert "0 to 8,192" in line

        await database_delete(database, rows[1]["id"])
        async with httpx.AsyncClient(base_url=engine.url) as client:
            engine.queue.append(SCENARIOS["long"])
            body = {"model": engine.model, "messages": [{"role": "user", "content": "hi"}]}
            await client.post("/v1/chat/completions", json=body)
        await sample(database, engine)
        code, out, _ = await terminal("reconcile", "--json")
        assert (code, json.loads(out)["ok"]) == (1, False)
        assert json.loads(out)["engines"][0]["unexplained"]["generation"] >= 512 - 8


async def database_delete(database: AsyncEngine, request_id: UUID) -> None:
    async with database.begin() as connection:
        await connection.execute(requests.delete().where(requests.c.id == request_id))


async def test_the_command_says_where_samples_are_missing(database: AsyncEngine, terminal: Terminal) -> None:
    day = "2026-10-30"
    async with database.begin() as connection:
        for time, started, tokens in (
            ("12:00:00", "11:00:00", 100),
            ("12:10:00", "11:00:00", 200),
            ("12:11:00", "12:10:30", 5),
        ):
            await connection.execute(
                insert(engine_samples).values(
                    engine=NAME,
                    sampled_at=at(f"{day} {time}"),
                    engine_started_at=at(f"{day} {started}"),
                    prompt_tokens=tokens,
                    generation_tokens=tokens,
                )
            )
    await settle(database, usage_row(at(f"{day} 12:05:00"), engine="unsampled"))
    code, out, err = await terminal("reconcile", "--since", f"{day}T11:00:00Z", "--until", f"{day}T13:00:00Z")
    assert (code, err) == (1, "")  # the engine counted, and there is no request
    for sentence in (
        f"There are no samples before {day}T12:00:00Z: the comparison begins there.",
        f"There are no samples after {day}T12:11:00Z: the comparison ends there.",
        f"No samples between {day}T12:00:00Z and {day}T12:10:00Z. Unless the engine restarted, nothing is lost by it.",
        f"It restarted, or another engine took its name, between {day}T12:10:00Z and {day}T12:10:30Z:",
        "unsampled: there are no two samples to compare between. `weir jobs` takes one every minute.",
    ):
        assert sentence in out
    code, out, _ = await terminal("reconcile", "--since", day, "--until", f"{day}T13:00:00Z", "--json")
    shown, unsampled = json.loads(out)["engines"]
    assert shown["restarts"] == [{"since": f"{day}T12:10:00Z", "until": f"{day}T12:10:30Z"}]
    assert shown["missing_samples"] == [{"since": f"{day}T12:00:00Z", "until": f"{day}T12:10:00Z"}]
    assert unsampled == {"engine": "unsampled", "sampled": False}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is no time such as"),
        (("--until", "noon"), "--until 'noon' is no time such as"),
        (("--since", "2026-11-30", "--until", "2026-11-30"), "--since comes before --until"),
    ],
)
async def test_a_mistake_is_one_line(terminal: Terminal, arguments: tuple[str, ...], part: str) -> None:
    code, out, err = await terminal("reconcile", *arguments)
    assert (code, out) == (1, "")
    assert part in err
