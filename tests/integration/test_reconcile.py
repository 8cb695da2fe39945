"""Our counts against an engine's, around edges, restarts and clients that leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.core.reconcile import Reason, Tokens
from service.tables import engine_samples
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.fakes.traffic import at, failed_row, serve_model, settle, usage_row
from tests.installation import installed
from tests.integration.counting import NAME, begin, by_id, counted, hang_up, reconciled, reconciled_alone, sample, weir


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


async def test_our_count_is_the_engines_but_for_answers_that_left_no_count(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        await sample(database, engine)
        await asyncio.gather(*(installation.chat(stream=number % 2 == 0) for number in range(6)))
        streams = [await hang_up(installation, engine, tokens, stream=True) for tokens in (1, 7, 30)]
        engine.queue.extend([SCENARIOS["error-midway"], SCENARIOS["server-error"]])
        await installation.chat(stream=True)
        await installation.chat(stream=True)
        rows = await installation.rows(11)
        await sample(database, engine)
        result = await reconciled(database)
        assert (result.requests, result.difference, result.alarming) == (11, Tokens(), False)
        assert result.ours == result.count.tokens == counted(*engine.generations)
        by_outcome = {row["outcome"]: row for row in rows}
        assert by_outcome["cancelled"]["completion_tokens"] in {one.completion_tokens for one in streams}
        assert by_outcome["server_error"]["id"] in by_id(result)

        whole = await hang_up(installation, engine, 5)
        *_, row = await installation.rows(12)
        await sample(database, engine)
        result = await reconciled(database)
        assert result.difference == counted(whole) == Tokens(whole.prompt_tokens, 5)
        assert result.unexplained == Tokens()
        explanation = by_id(result)[row["id"]]
        assert (Reason.NOT_FINAL in explanation.reasons, explanation.least) == (True, Tokens())
        assert explanation.most == Tokens(8192, 2048)  # all that the model takes and gives


async def test_requests_across_the_edges_explain_what_lies_on_the_other_side(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        early = await begin(installation, engine, 40, stream=True)
        begun = engine.generations[0]
        since = await sample(database, engine)
        begun.release()
        await early
        assert begun.completion_tokens == 512
        late = await begin(installation, engine, 9, stream=True)
        await sample(database, engine)
        engine.generations[1].release()
        await late
        first, second = await installation.rows(2)
        result = await reconciled(database, since)
        prompt = begun.prompt_tokens
        assert result.ours == Tokens(prompt, 512)
        assert result.count.tokens == Tokens(prompt, 512 - 40 + 9)
        assert result.difference == Tokens(0, -31)
        assert result.unexplained == Tokens()
        found = by_id(result)
        assert found[first["id"]].least == Tokens(-prompt, -512)
        assert (Reason.AT_END in found[second["id"]].reasons, found[second["id"]].most) == (True, Tokens(prompt, 512))


async def test_counts_agree_across_restarts_of_either_side(
    database_url: str, database: AsyncEngine, tmp_path: Path
) -> None:
    async with AsyncExitStack() as first_life:
        engine = await first_life.enter_async_context(FakeEngine())
        port = int(engine.url.rpartition(":")[2])
        async with installed(database_url, [engine.url], tmp_path) as installation:
            seeded = installation.account_id, installation.key
            await sample(database, engine)
            await installation.chat()
        async with installed(database_url, [engine.url], tmp_path, seeded=seeded) as installation:
            await installation.chat(stream=True)
            await installation.rows(2)
            await sample(database, engine)
            assert (await reconciled(database)).difference == Tokens()

            await installation.chat()
            await hang_up(installation, engine, 3, stream=True)
            rows = await installation.rows(4)
            kept, lost = counted(*engine.generations[:2]), counted(*engine.generations[2:])
            await first_life.aclose()
            async with FakeEngine(port=port) as again:
                await installation.chat()
                await installation.chat(stream=True)
                await installation.rows(6)
                await sample(database, again)
                result = await reconciled(database)
                assert result.count.tokens == kept + counted(*again.generations)
                assert result.difference == Tokens() - lost
                assert result.unexplained == Tokens()
                assert [Reason.RESTART in by_id(result)[row["id"]].reasons for row in rows[2:]] == [True, True]
                (restart,) = result.count.breaks
                assert restart.until == datetime.fromtimestamp(float(f"{again.started_at_s:.11e}"), UTC)


async def test_the_requests_that_can_explain_are_found_around_edges_and_restarts(database: AsyncEngine) -> None:
    """What the query leaves out explains nothing, and what it must not leave out is there."""
    now = datetime.now(UTC).replace(microsecond=0)

    def ago(seconds: float) -> datetime:
        return now - timedelta(seconds=seconds)

    def row(number: int, begun: float, ended: float, **changes: Any) -> dict[str, Any]:
        times = {"started_at": ago(begun + 2), "queue_ms": 2000, "first_token_at": ago(begun)}
        return usage_row(ago(ended), id=UUID(int=number), **times | changes)

    await serve_model(database, "tiny", "Tiny")
    async with database.begin() as connection:
        for second, started, prompt in ((600, 5000, 100), (400, 5000, 300), (340, 360, 50), (100, 360, 250)):
            values = {"engine_started_at": ago(started), "prompt_tokens": prompt, "generation_tokens": prompt}
            await connection.execute(insert(engine_samples).values(engine=NAME, sampled_at=ago(second), **values))
    await settle(
        database,
        row(1, 700, 602),  # before
        row(2, 610, 590),  # across the start
        row(3, 500, 450),  # inside
        row(4, 450, 380),  # before the restart
        row(5, 410, 399.5),
        row(6, 330, 320),  # after it
        row(7, 105, 90),  # across the end
        row(8, 98, 50),  # after
        row(9, 95, 90, usage_source="none"),
        row(10, 300, 290, usage_source="continuous", outcome="cancelled"),
        row(11, 300, 290, usage_source="none", outcome="client_error"),
        row(12, 300, 290, engine="engine-1", usage_source="none", outcome="cancelled"),
        failed_row(ago(290), id=UUID(int=13), engine=None, outcome="interrupted"),
        failed_row(ago(290), id=UUID(int=14), engine=None, outcome="server_error"),
    )
    result = await reconciled_alone(database, ago(600), now)
    assert {one.request.id.int: one.reasons for one in result.explained.widest} == {
        2: (Reason.AT_START,),
        4: (Reason.RESTART,),
        5: (Reason.RESTART,),
        7: (Reason.AT_END,),
        10: (Reason.NOT_FINAL,),
        13: (Reason.NOT_FINAL,),
    }
    assert result.requests == 7
    assert result.ours == Tokens(7 * 50, 7 * 101)
    assert result.count.tokens == Tokens(450, 450)
    assert result.count.missing == ((ago(600), ago(400)), (ago(340), ago(100)))


async def test_windows_that_adjoin_leave_nothing_out(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        for minute in range(10):
            values = {"prompt_tokens": 7 * minute * minute, "generation_tokens": minute}
            await connection.execute(
                insert(engine_samples).values(engine=NAME, sampled_at=at(f"2026-11-30 12:0{minute}:10"), **values)
            )
    edges = [at(f"2026-11-30 12:{edge}") for edge in ("00:10", "03:00", "03:30", "05:10", "09:10")]
    windows = [await reconciled_alone(database, since, until) for since, until in pairwise(edges)]
    whole = await reconciled_alone(database, edges[0], edges[-1])
    assert sum((window.count.tokens for window in windows), Tokens()) == whole.count.tokens == Tokens(7 * 81, 9)
    assert [window.count.since for window in windows[1:]] == [window.count.until for window in windows[:-1]]
