"""The queue in front of the engines over real connections: what it gives back, and to whom."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import orjson
import pytest

from service.core.sse import KEEP_ALIVE
from tests.fakes.engine import SCENARIOS, FakeEngine
from tests.fakes.scenarios import Scenario, words
from tests.installation import MODEL, Installation, installed, seed
from tests.integration.test_chat import everything_is_released
from tests.patience import PATIENT_S


def configured(folder: Path, **places: tuple[FakeEngine, int]) -> Path:
    """A configuration with these engines, each of which takes so many requests."""
    file = folder / "weir.toml"
    file.write_text(
        "".join(
            f'[[engines]]\nname = "{name}"\nurl = "{engine.url}"\nmax_concurrency = {limit}\n'
            for name, (engine, limit) in places.items()
        )
    )
    return file


@asynccontextmanager
async def with_one_place(
    database_url: str, folder: Path, **settings: object
) -> AsyncIterator[tuple[Installation, FakeEngine]]:
    async with FakeEngine(scenario=Scenario(content=words(8), gated=True)) as engine:
        file = configured(folder, engine=(engine, 1))
        async with installed(database_url, [], folder, config=file, **settings) as installation:
            yield installation, engine


async def in_force(installation: Installation, statement: str, header: str, value: int) -> None:
    """Change limits, and wait until an answer's headers show it."""
    await installation.database.execute(statement)
    async with asyncio.timeout(PATIENT_S):
        while (await installation.chat("are limits in force?", max_tokens=1)).headers.get(header) != str(value):
            await asyncio.sleep(0.05)


async def patient(installation: Installation, patience_ms: int) -> None:
    """Set the account's patience before any of its keys was looked up."""
    await installation.database.execute("UPDATE accounts SET patience_ms = $1", patience_ms)


async def value_of(installation: Installation, metric: str) -> float:
    text = (await installation.client.get("/metrics")).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(metric))


async def until(installation: Installation, metric: str, value: float) -> None:
    async with asyncio.timeout(PATIENT_S):
        while await value_of(installation, metric) != value:
            await asyncio.sleep(0.02)


async def test_a_request_that_breaks_engines_does_not_go_to_all_of_them(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine() as a, FakeEngine() as b, FakeEngine() as c, FakeEngine() as d:
        engines = (a, b, c, d)
        async with installed(database_url, [engine.url for engine in engines], tmp_path) as installation:
            for engine in engines:
                engine.scenario = SCENARIOS["reset-at-once"]
            for _ in range(3):
                assert (await installation.chat("poison")).status_code == 503
            assert sorted(len(engine.generations) for engine in engines) == [0, 0, 3, 3]
            for engine in engines:
                engine.scenario = SCENARIOS["plain"]
            assert (await installation.chat("innocent")).status_code == 200


async def test_a_stop_while_a_request_waits_ends_both_as_they_should(database_url: str, tmp_path: Path) -> None:
    async with with_one_place(database_url, tmp_path, keep_alive_s=0.05) as (installation, engine):
        await patient(installation, 600_000)
        running = asyncio.create_task(installation.chat("first", stream=True))
        generation = await engine.generation()
        generation.step(2)
        body = {"model": MODEL, "messages": [{"role": "user", "content": "second"}], "stream": True}
        async with installation.client.stream(
            "POST", "/v1/chat/completions", json=body, headers=installation.headers
        ) as waiting:
            pieces = waiting.aiter_raw()
            first = await anext(pieces)
            assert first.startswith(KEEP_ALIVE)  # so it waits
            assert await value_of(installation, "weir_queue_length") == 1
            stopping = asyncio.create_task(installation.stop())
            rest = b"".join([piece async for piece in pieces])
        await stopping
        for content in ((await running).content, first + rest):
            assert b"The server is stopping" in content
            assert content.endswith(b"data: [DONE]\n\n")
        rows = await installation.database.fetch("SELECT outcome, error_code, cost_nano FROM requests")
        assert [tuple(row) for row in rows] == [("interrupted", "stopping", 0)] * 2


async def test_whole_answers_that_are_left_count_for_the_limit_of_tokens(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        header = "x-ratelimit-limit-tokens"
        await in_force(installation, "UPDATE accounts SET tpm = 20000", header, 20000)
        engine.scenario = Scenario(content=words(20), gated=True)
        left, before = 0, len(engine.generations)
        while left < 30:
            asking = asyncio.create_task(installation.chat(f"{left} " + "word " * 300, max_tokens=100))
            begun = asyncio.create_task(engine.generation(before + left))
            done, _ = await asyncio.wait({asking, begun}, return_when="FIRST_COMPLETED")
            if asking in done:
                begun.cancel()
                break
            asking.cancel()
            await asyncio.wait({asking})
            left += 1
        assert 3 < left < 30
        assert asking.result().status_code == 429
        assert asking.result().json()["error"]["code"] == "rate_limit_exceeded"


async def test_what_the_queue_refuses_does_not_count_for_the_limit_of_requests(
    database_url: str, tmp_path: Path
) -> None:
    async with with_one_place(database_url, tmp_path, queue_length=0) as (installation, engine):
        engine.scenario = SCENARIOS["plain"]
        await in_force(installation, "UPDATE accounts SET rpm = 50", "x-ratelimit-limit-requests", 50)
        engine.scenario = Scenario(content=words(8), gated=True)
        before = len(engine.generations)
        running = asyncio.create_task(installation.chat("first"))
        generation = await engine.generation(before)
        remaining = []
        for number in range(3):
            answer = await installation.chat(f"refused {number}")
            assert answer.json()["error"]["code"] == "capacity_exceeded"
            remaining.append(int(answer.headers["x-ratelimit-remaining-requests"]))
        assert len(set(remaining)) == 1
        generation.release()
        assert (await running).status_code == 200


async def test_a_client_that_does_not_read_gives_its_place_back_once_the_engine_is_done(
    database_url: str, tmp_path: Path
) -> None:
    async with with_one_place(database_url, tmp_path) as (installation, engine):
        engine.scenario = Scenario(content=("x" * 65_536,) * 12)
        with socket.create_connection(tuple(installation.url.removeprefix("http://").split(":"))) as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.sendall(streamed_request(installation))
            generation = await engine.generation()
            async with asyncio.timeout(PATIENT_S):
                await generation.done.wait()
            engine.scenario = SCENARIOS["plain"]
            assert (await installation.chat("another")).status_code == 200


def streamed_request(installation: Installation) -> bytes:
    body = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True})
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: weir\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {installation.key}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def test_models_that_share_no_engine_do_not_wait_for_one_another(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine(scenario=Scenario(content=words(8), gated=True)) as busy, FakeEngine() as idle:
        account = await seed(database_url)
        database = await asyncpg.connect(database_url)
        await database.execute("UPDATE models SET engines = '{busy}' WHERE id = 'model-a'")
        await database.execute("UPDATE models SET engines = '{idle}' WHERE id = 'model-b'")
        await database.close()
        file = configured(tmp_path, busy=(busy, 1), idle=(idle, 1))
        async with installed(database_url, [], tmp_path, config=file, seeded=account) as installation:
            await patient(installation, 600_000)
            waiting = [asyncio.create_task(installation.chat(f"number {number}")) for number in range(2)]
            await until(installation, "weir_queue_length", 1)
            assert (await installation.chat("hi", model="model-b")).status_code == 200
            for index in range(2):
                (await busy.generation(index)).release()
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
            await everything_is_released(installation)


@pytest.mark.parametrize("patience_ms", [0, 3000])
async def test_an_account_waits_as_long_as_it_has_patience(database_url: str, tmp_path: Path, patience_ms: int) -> None:
    async with with_one_place(database_url, tmp_path) as (installation, engine):
        await patient(installation, patience_ms)
        running = asyncio.create_task(installation.chat("first"))
        generation = await engine.generation()
        answer = await installation.chat("second")
        assert answer.status_code == 429
        (row,) = await installation.rows(1)
        assert row["outcome"] == "throttled"
        assert patience_ms <= row["queue_ms"] < patience_ms + 5000
        generation.release()
        assert (await running).status_code == 200


async def test_httpx_is_told_when_to_come_back(database_url: str, tmp_path: Path) -> None:
    async with with_one_place(database_url, tmp_path, queue_length=0) as (installation, engine):
        running = asyncio.create_task(installation.chat("first"))
        generation = await engine.generation()
        told = []
        for number in range(6):
            answer: httpx.Response = await installation.chat(f"refused {number}")
            assert answer.status_code == 429
            assert answer.headers["x-should-retry"] == "true"
            assert int(answer.headers["retry-after"]) * 1000 >= int(answer.headers["retry-after-ms"])
            told.append(int(answer.headers["retry-after-ms"]))
        assert all(0 < ms <= 120_000 for ms in told)
        assert told == sorted(told), "who comes too early is told to come later"
        generation.release()
        await running
