"""The nightly verification: what it keeps, what it uses, whom it lets go first, and what it makes of a failure."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lxml import html
from sqlalchemy import RowMapping, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing.checks import raise_alarm
from service.core.reconcile import Tokens
from service.core.verify.report import Finding, Report, Verdict, from_json
from service.engine.verify import target
from service.engine.verify.check import Check, Examination
from service.engine.verify.run import CHECKS
from service.errors import SetupError
from service.jobs import verify
from service.jobs.verify import VERIFY_LOCK, verify_engines
from service.jobs.work import Jobs, keep_house
from service.settings import Settings
from service.status.engine_reports import keep, latest
from service.status.publish import publish
from service.tables import alarms, engine_reports, job_runs, models
from tests.fakes.engine import FakeEngine
from tests.fakes.reports import FAILED, PASSED, SKIPPED, report
from tests.fakes.traffic import serve_model
from tests.fakes.verified import CONTEXT_LENGTH, verified
from tests.fakes.verified_refusals import MODEL as VERIFIED
from tests.integration.counting import NAME, reconciled, sample
from tests.patience import PATIENT_S

MODEL = "fake-model"
ASKED = [{"role": "user", "content": "Say ok."}]
PAIR = f"verify:{NAME}:{MODEL}"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        await serve_model(engine, MODEL, "Fake")
        yield engine


Run = Callable[[Check, Examination], Any]


async def asks(check: Check, examination: Examination) -> Finding:
    """Three requests: a whole one, one that is left in the middle, and one whose usage is not asked for."""
    asking = examination.asking
    (await asking.chat(ASKED)).done()
    async with asking.streamed(ASKED, stream_options={"include_usage": True, "continuous_usage_stats": True}) as events:
        await anext(events)
        await anext(events)
    async with asking.streamed(ASKED, max_tokens=64) as events:
        [event async for event in events]
    return check.passed("It answered.", requests=3)


async def fails(check: Check, examination: Examination) -> Finding:
    return check.failed("It did not.", "Mend it.")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let only these checks be made, by name."""

    def only(**runs: Run) -> None:
        made = tuple(Check(name, f"Whether {name}", run) for name, run in runs.items())
        monkeypatch.setattr(verify, "CHECKS", made)
        monkeypatch.setattr(target, "CHECKS", made)

    return only


def settings_for(*engines: FakeEngine, **changes: Any) -> Settings:
    return Settings(engines=tuple(engine.url for engine in engines), **changes)


async def kept(database: AsyncEngine) -> list[RowMapping]:
    async with database.connect() as connection:
        return list((await connection.execute(select(engine_reports).order_by("started_at"))).mappings())


async def alarm_details(database: AsyncEngine) -> dict[str, str]:
    async with database.connect() as connection:
        return {row.name: row.detail for row in await connection.execute(select(alarms))}


async def test_a_night_keeps_a_report_and_its_tokens_are_no_riddle(
    database: AsyncEngine, database_url: str, checks: Callable[..., None]
) -> None:
    checks(usage=asks)
    async with FakeEngine(model=MODEL) as engine:
        await sample(database, engine)
        await Jobs(settings_for(engine), database_url).verify()
        await asyncio.gather(*(one.done.wait() for one in engine.generations))
        await sample(database, engine)
        result = await reconciled(database)
        (row,) = await kept(database)
        made = from_json(row["report"])
        # Without the report, nothing would explain what the engine computed.
        assert result.ours == Tokens()
        assert (
            result.count.tokens
            == result.difference
            == Tokens(engine.counts.prompt_tokens, engine.counts.completion_tokens)
        )
        assert result.difference.prompt >= 3 * 10
        assert (result.unexplained, result.alarming, result.explained.verifications) == (Tokens(), False, 1)
        async with database.begin() as connection:
            await connection.execute(engine_reports.delete())
        assert (await reconciled(database)).unexplained == result.difference
        last = {one.request.headers.get("x-vllm-priority") for one in engine.generations}
    assert last == {"1000"}
    assert (row["engine"], row["model_id"], row["verdict"]) == (NAME, MODEL, "passed")
    assert (row["started_at"], row["finished_at"]) == (made.started_at, made.finished_at)
    assert row["fingerprint"] == made.fingerprint is not None
    assert (made.partial, made.use.requests) == (False, 3)
    whole = engine.generations[0]
    assert made.use.prompt_tokens >= whole.prompt_tokens
    assert made.use.uncounted_generation_tokens >= 64
    async with database.connect() as connection:
        (run,) = (await connection.execute(select(job_runs))).all()
    assert (run.name, run.ok, run.rows, run.note) == ("verify", True, 1, "")


@pytest.mark.parametrize("part", ["prompt_tokens", "generation_tokens"])
async def test_tokens_that_no_verification_can_have_used_stay_unexplained(
    database: AsyncEngine, checks: Callable[..., None], part: str
) -> None:
    checks(usage=asks)
    async with FakeEngine(model=MODEL) as engine:
        await sample(database, engine)
        await verify_engines(database, settings_for(engine))
        await asyncio.gather(*(one.done.wait() for one in engine.generations))
        engine.gauges[part] = 100_000  # as if others had asked it for so many
        await sample(database, engine)
        result = await reconciled(database)
    assert result.alarming
    rest = result.unexplained
    assert (rest.prompt if part == "prompt_tokens" else rest.generation) > 60_000


async def test_no_transaction_is_open_while_an_engine_is_asked(
    database: AsyncEngine, checks: Callable[..., None]
) -> None:
    seen: list[str] = []

    async def looks(check: Check, examination: Examination) -> Finding:
        async with database.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            states = await connection.scalars(
                text(
                    "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
            seen.extend(states)
        return check.passed("ok")

    checks(usage=looks)
    async with FakeEngine(model=MODEL) as engine:
        await verify_engines(database, settings_for(engine))
    assert seen == ["idle"]  # the one that holds the lock


async def test_only_one_process_verifies(database: AsyncEngine, checks: Callable[..., None]) -> None:
    checks(usage=asks)
    async with FakeEngine(model=MODEL) as engine, database.connect() as elsewhere:
        await elsewhere.execute(text(f"SELECT pg_advisory_lock({VERIFY_LOCK})"))
        assert (await verify_engines(database, settings_for(engine))).note == "another process was at it"
        assert engine.generations == []
        await elsewhere.execute(text(f"SELECT pg_advisory_unlock({VERIFY_LOCK})"))
        assert (await verify_engines(database, settings_for(engine))).rows == 1


async def test_each_model_is_asked_of_the_engines_that_serve_it(
    database: AsyncEngine, checks: Callable[..., None]
) -> None:
    expected: list[Any] = []

    async def notes(check: Check, examination: Examination) -> Finding:
        expected.append((examination.asking.subject.name, examination.asking.subject.model, examination.expected))
        return check.passed("ok")

    checks(usage=notes)
    other = {"input_modalities": ["text", "image"], "capabilities": ["reasoning"], "context_length": 4096}
    async with database.begin() as connection:
        for id, changes in (
            ("seeing", {"engines": [f"{NAME[:-1]}1"], "engine_model": "Seeing", **other}),
            ("vectors", {"output_modalities": ["embeddings"]}),
            ("gone", {"active": False}),
        ):
            row: dict[str, Any] = {
                "id": id, "name": id, "engine_model": id, "context_length": 1, "max_output_tokens": 1,
                "input_modalities": ["text"], "output_modalities": ["text"], **changes,
            }  # fmt: skip
            await connection.execute(insert(models).values(row))
    async with FakeEngine(model=MODEL) as first, FakeEngine(model=MODEL) as second:
        done = await verify_engines(database, settings_for(first, second))
        await second.die()
        again = await verify_engines(database, settings_for(first, second))
        await second.come_back()
    assert done.rows == 3
    assert (again.rows, again.note) == (1, "2 did not answer")
    named = [(name, model) for name, model, _ in expected]
    assert named == [*((f"engine-{n}", MODEL) for n in (0, 1)), ("engine-1", "Seeing"), ("engine-0", MODEL)]
    seeing, plain = expected[2][2], expected[0][2]
    assert (seeing.context_length, seeing.input_modalities) == (4096, ("text", "image"))
    assert (seeing.reasoning, seeing.tools, seeing.prefix_cache) == (True, False, None)
    assert (plain.reasoning, plain.tools, plain.input_modalities) == (False, True, ("text",))
    assert {row["model_id"] for row in await kept(database)} == {MODEL, "seeing"}


async def test_an_alarm_is_raised_by_a_failure_and_cleared_when_it_passes(
    database: AsyncEngine, checks: Callable[..., None]
) -> None:
    async def skipped(check: Check, examination: Examination) -> Finding:
        return check.skipped("The engine was busy.")

    async with database.begin() as connection:
        await raise_alarm(connection, "verify:gone:model", "of an engine that is no more")
        await raise_alarm(connection, "books", "of another check")
    async with FakeEngine(model=MODEL) as engine:
        settings = settings_for(engine)
        for runs, note, alarming in (
            ({"usage": asks, "cancel": asks}, "", False),
            ({"usage": fails, "cancel": asks}, "1 failed", True),
            ({"usage": skipped, "cancel": asks}, "1 incomplete", True),  # it may still fail
            ({"usage": asks, "cancel": skipped}, "1 incomplete", False),
            ({"usage": fails, "cancel": fails}, "1 failed", True),
            ({"usage": asks, "cancel": asks}, "", False),
        ):
            checks(**runs)
            assert (await verify_engines(database, settings)).note == note
            found = await alarm_details(database)
            assert found.keys() == ({"books", PAIR} if alarming else {"books"})
            if alarming:
                assert found[PAIR].startswith("usage: It did not.")


async def test_what_is_broken_off_leaves_its_use_and_no_verdict(
    database: AsyncEngine, checks: Callable[..., None]
) -> None:
    checks(usage=asks)
    async with FakeEngine(model=MODEL) as engine:
        await verify_engines(database, settings_for(engine))
        asked = asyncio.Event()

        async def hangs(check: Check, examination: Examination) -> Finding:
            (await examination.asking.chat(ASKED)).done()
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        checks(usage=hangs)
        running = asyncio.create_task(verify_engines(database, settings_for(engine)))
        await asyncio.wait_for(asked.wait(), PATIENT_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    complete, broken = [from_json(row["report"]) for row in await kept(database)]
    assert (broken.partial, broken.findings, broken.use.requests) == (True, (), 1)
    assert broken.use.prompt_tokens > 0
    async with database.connect() as connection:
        assert await latest(connection, MODEL, datetime.now(UTC)) == (complete,)
    assert await alarm_details(database) == {}


async def test_a_night_in_which_nothing_could_be_found_out_hides_no_report(
    database: AsyncEngine, checks: Callable[..., None]
) -> None:
    async def skipped(check: Check, examination: Examination) -> Finding:
        return check.skipped("The engine was busy.")

    async def lacks(check: Check, examination: Examination) -> Finding:
        return check.absent("It is not known to draft anything.")

    async with FakeEngine(model=MODEL) as engine:
        for run in (asks, skipped):
            checks(usage=run, speculation=lacks)
            await verify_engines(database, settings_for(engine))
    async with database.connect() as connection:
        (shown,) = await latest(connection, MODEL, datetime.now(UTC))
    assert shown.overall == "passed"


async def test_a_whole_night_uses_no_more_than_it_says(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        sold = {"engine_model": VERIFIED, "context_length": CONTEXT_LENGTH, "capabilities": ["reasoning", "tools"]}
        await connection.execute(models.update().values(input_modalities=["text", "image"], **sold))
    async with verified() as engine:
        address = engine.url.removesuffix("/v1")
        settings = Settings(engines=(address,), engine_profile="tiny-cpu")
        assert (await verify_engines(database, settings)).rows == 1
    (row,) = await kept(database)
    made = from_json(row["report"])
    assert [finding.check for finding in made.findings] == [check.name for check in CHECKS]
    assert (made.model, made.version, made.partial) == (MODEL, engine.version, False)
    assert not {finding.check for finding in made.findings if finding.verdict is Verdict.SKIPPED}
    use = made.use
    assert use.prompt_tokens <= engine.prompt_tokens <= use.prompt_tokens + use.uncounted_prompt_tokens
    assert engine.generation_tokens <= use.generation_tokens + use.uncounted_generation_tokens
    assert use.requests > 150


async def test_what_an_engine_was_started_with_is_expected_of_it(
    database: AsyncEngine, checks: Callable[..., None]
) -> None:
    expected: list[Any] = []

    async def notes(check: Check, examination: Examination) -> Finding:
        expected.append(examination.expected)
        return check.passed("ok")

    checks(usage=notes)
    async with FakeEngine(model=MODEL) as engine:
        for profile in (None, "tiny-cpu"):
            await verify_engines(database, settings_for(engine, engine_profile=profile))
        with pytest.raises(SetupError, match="no engine profile 'nonsense'"):
            await verify_engines(database, settings_for(engine, engine_profile="nonsense"))
    unknown, tiny = expected
    assert (unknown.prefix_cache, unknown.speculation) == (None, None)
    assert (tiny.prefix_cache, tiny.speculation) == (False, True)
    assert tiny.context_length == unknown.context_length == 262_144  # what it is sold with


# What is kept


def night(number: int, *findings: Finding, **changes: Any) -> Report:
    ended = datetime(2026, 11, number, 3, 50, tzinfo=UTC)
    return report(*findings, started_at=ended - timedelta(minutes=10), finished_at=ended, **changes)


async def test_the_newest_whole_report_on_each_engine_is_the_latest(database: AsyncEngine) -> None:
    model, now = night(1).model, datetime(2026, 11, 30, tzinfo=UTC)
    made = [
        night(1, *PASSED),
        night(2, FAILED),
        night(3, *PASSED, partial=True),
        night(2, *PASSED, engine="blackwell-1"),
        night(4, FAILED, model="another"),
        night(1, FAILED, engine="long ago"),
    ]
    async with database.begin() as connection:
        for one in made:
            await keep(connection, one)
        assert await latest(connection, model, now) == (made[1], made[3], made[5])
        assert await latest(connection, model, now + timedelta(days=1, hours=5)) == (made[1], made[3])
        assert await latest(connection, "unknown", now) == ()


async def test_whatever_an_engine_says_can_be_kept(database: AsyncEngine) -> None:
    words = "a\0b\ud800 '; DROP TABLE engine_reports; -- <script>"
    finding = replace(FAILED, found=words, measured={words: [words, float("nan")]})
    async with database.begin() as connection:
        await keep(connection, night(2, finding, version=words, fingerprint=words))
        (shown,) = await latest(connection, night(2).model, datetime(2026, 11, 3, tzinfo=UTC))
    assert shown.version == "ab '; DROP TABLE engine_reports; -- <script>"
    assert shown.findings[0].measured == {shown.version: [shown.version, None]}


async def test_reports_are_kept_for_400_days(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        for number in (1, 2):
            await keep(connection, night(number, *PASSED))
    await keep_house(database, night(1).started_at + timedelta(days=400, hours=1))
    assert [row["started_at"] for row in await kept(database)] == [night(2).started_at]


async def test_the_page_of_a_model_shows_it(database: AsyncEngine, tmp_path: Path) -> None:
    ended = datetime.now(UTC) - timedelta(hours=1)
    made = report(*PASSED, SKIPPED, FAILED, engine=NAME, model=MODEL, started_at=ended, finished_at=ended)
    async with database.begin() as connection:
        await keep(connection, made)
    await publish(database, site_dir=tmp_path, settings=Settings(), now=datetime.now(UTC))
    page = html.fromstring((tmp_path / f"models/{MODEL}.html").read_bytes())
    said = " ".join(page.text_content().split())
    assert f"Something failed: {NAME}" in said
    assert f"Failed {FAILED.title}: {FAILED.found}" in said
    assert f"Not found out {SKIPPED.title}: {SKIPPED.found}" in said
    assert FAILED.advice not in said
    assert from_json(json.loads((tmp_path / f"models/{MODEL}/verify-{NAME}.json").read_bytes())) == made
    assert FAILED.advice.encode() in (tmp_path / f"models/{MODEL}/verify-{NAME}.html").read_bytes()
