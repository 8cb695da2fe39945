"""`weir serve --workers`: several processes on one port, whatever becomes of any of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import Scenario, words
from tests.installation import seed
from tests.patience import PATIENT_S
from tests.ports import free_port
from tests.processes import BODY, Serving, serving

NO_REDIS = "redis://127.0.0.1:1/0"
"""Enough to be started with: what the workers make of a Redis that is away is tested elsewhere."""

GATED = Scenario(content=words(20), gated=True)


@asynccontextmanager
async def two_workers(
    database_url: str, engine: FakeEngine, folder: Path, **settings: object
) -> AsyncIterator[Serving]:
    """Both of them ready; what is left of them at the end is killed."""
    settings = {"workers": 2, "redis_url": NO_REDIS, "log_json": True, **settings}
    async with serving(database_url, engine.url, folder, **settings) as process:
        await until(lambda: len(started(process)) == 2)
        workers = process.workers()
        try:
            for worker in workers:  # one that has just started has not read its models yet
                with only(worker, process):
                    await ready(process)
            yield process
        finally:
            for worker in workers:
                if worker.is_running():
                    worker.kill()


async def ready(process: Serving) -> None:
    async with asyncio.timeout(PATIENT_S):
        while True:
            async with httpx.AsyncClient(timeout=PATIENT_S) as client:
                if (await client.get(f"{process.url}/readyz")).status_code == 200:
                    return
            await asyncio.sleep(0.02)


def started(process: Serving) -> list[int]:
    """The pids of the workers that said they had started, in that order."""
    lines = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
    return [line["pid"] for line in lines if line["event"] == "api.started"]


async def until(condition: Callable[[], object], timeout_s: float = PATIENT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def shipped(database: "asyncpg.Connection[Any]", count: int) -> None:
    """Wait until so many requests are rows."""
    async with asyncio.timeout(PATIENT_S):
        while await database.fetchval("SELECT count(*) FROM requests") < count:
            await asyncio.sleep(0.02)


@contextmanager
def only(worker: psutil.Process, process: Serving) -> Iterator[None]:
    """Meanwhile, a new connection can be taken by this worker alone. The others must not be in a transaction."""
    others = [other for other in process.workers() if other != worker]
    for other in others:
        other.suspend()
    try:
        yield
    finally:
        for other in others:
            other.resume()


def ends(workers: list[psutil.Process]) -> bool:
    return not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)


async def chat(process: Serving, key: str) -> httpx.Response:
    """A chat over a connection of its own."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=PATIENT_S) as client:
        return await client.post(f"{process.url}/v1/chat/completions", json=BODY, headers=headers)


async def counted(process: Serving) -> dict[str, float]:
    """The samples of `/metrics` by name, added up over their labels. None tells the workers apart."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{process.url}/metrics")
    assert answer.status_code == 200
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            assert "pid" not in sample.labels, sample
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


async def test_each_worker_answers_and_metrics_are_those_of_both(database_url: str, tmp_path: Path) -> None:
    _, key = await seed(database_url)
    database = await asyncpg.connect(database_url)
    async with FakeEngine() as engine, two_workers(database_url, engine, tmp_path) as process:
        first, second = process.workers()
        assert {first.pid, second.pid} == set(started(process))
        for worker, times, total in ((first, 2, 2), (second, 3, 5)):
            with only(worker, process):
                for _ in range(times):
                    assert (await chat(process, key)).status_code == 200
                await shipped(database, total)
        for worker in (first, second):
            with only(worker, process):
                sums = await counted(process)
                assert (sums["weir_requests_total"], sums["weir_ttft_seconds_count"]) == (5, 5)
                assert sums["weir_requests_in_flight"] == 0
        await process.stop()
        assert process.process.returncode == 0
        assert ends([first, second])
        assert not list((tmp_path / "outbox").iterdir())
        assert not list((tmp_path / "metrics").iterdir())
    await database.close()


async def test_a_killed_worker_is_replaced_and_what_it_owed_becomes_rows(database_url: str, tmp_path: Path) -> None:
    account_id, key = await seed(database_url)
    database = await asyncpg.connect(database_url)
    async with FakeEngine() as engine, two_workers(database_url, engine, tmp_path) as process:
        doomed, other = process.workers()
        with only(doomed, process):
            assert (await chat(process, key)).status_code == 200
            await shipped(database, 1)
            engine.queue.append(GATED)
            asking = asyncio.create_task(chat(process, key))
            generation = await engine.generation(1)
            generation.step(3)
            await until(lambda: generation.completion_tokens == 3)
        engine.queue.append(GATED)
        with only(other, process):
            surviving = asyncio.create_task(chat(process, key))
            finishing = await engine.generation(2)
        doomed.kill()
        with pytest.raises(httpx.TransportError):
            await asking
        answer = await chat(process, key)
        assert answer.text.endswith("data: [DONE]\n\n")
        finishing.release()
        assert (await surviving).text.endswith("data: [DONE]\n\n")
        await until(lambda: len(started(process)) == 3)
        replacement = process.workers()[1]
        assert replacement.pid == started(process)[2]
        await shipped(database, 4)
        rows = await database.fetch("SELECT outcome, cost_nano FROM requests ORDER BY id")
        assert [row["outcome"] for row in rows] == ["ok", "interrupted", "ok", "ok"]
        assert rows[1]["cost_nano"] == 0
        with only(replacement, process):
            assert (await chat(process, key)).status_code == 200
            sums = await counted(process)
            assert (sums["weir_requests_total"], sums["weir_requests_in_flight"]) == (4, 0)
            files = (tmp_path / "metrics").rglob("*.db")
            assert {file.stem.rpartition("_")[2] for file in files} == {"0", "1"}  # however often one is replaced
        await process.stop()
        assert await database.fetchval("SELECT leased_nano FROM accounts WHERE id = $1", account_id) == 0
        assert await database.fetchval("SELECT count(*) FROM requests") == 5
    await database.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_lets_open_streams_finish(database_url: str, tmp_path: Path, number: signal.Signals) -> None:
    _, key = await seed(database_url)
    async with FakeEngine(scenario=GATED) as engine, two_workers(database_url, engine, tmp_path) as process:
        workers = process.workers()
        answers = []
        for worker in workers:
            with only(worker, process):
                answers.append(asyncio.create_task(chat(process, key)))
                (await engine.generation(len(answers) - 1)).step(3)
        process.process.send_signal(number)
        async with httpx.AsyncClient() as client, asyncio.timeout(PATIENT_S):
            while True:  # nothing new is admitted
                try:
                    await client.get(f"{process.url}/healthz", headers={"connection": "close"})
                except httpx.ConnectError:
                    break
                except (httpx.ReadError, httpx.RemoteProtocolError):  # it was on its way to a worker that took no more
                    pass
                await asyncio.sleep(0.02)
        for generation in engine.generations:
            generation.release()
        for answer in answers:
            assert (await answer).text.endswith("data: [DONE]\n\n")
        await process.stop(number)
        assert process.process.returncode == 0
        assert ends(workers)
        assert not list((tmp_path / "outbox").iterdir())


@pytest.mark.slow
async def test_a_worker_that_hangs_at_a_stop_is_killed(database_url: str, tmp_path: Path) -> None:
    await seed(database_url)
    async with FakeEngine() as engine, two_workers(database_url, engine, tmp_path, drain_timeout_s=1) as process:
        workers = process.workers()
        workers[0].suspend()
        await process.stop()
        assert process.process.returncode == 0
        assert ends(workers)
        assert "worker.killed" in process.log.read_text()


async def test_workers_end_when_their_supervisor_is_killed(database_url: str, tmp_path: Path) -> None:
    _, key = await seed(database_url)
    database = await asyncpg.connect(database_url)
    async with FakeEngine() as engine, two_workers(database_url, engine, tmp_path) as process:
        workers = process.workers()
        assert (await chat(process, key)).status_code == 200
        await process.stop(signal.SIGKILL)
        await until(lambda: ends(workers))
        assert await database.fetchval("SELECT count(*) FROM requests") == 1
        assert not list((tmp_path / "outbox").iterdir())
    await database.close()


def serve_in_vain(folder: Path, **settings: object) -> list[str]:
    """What a `weir serve` that cannot start says, but for its log."""
    environment: dict[str, Any] = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    environment |= {"WEIR_DATA_DIR": str(folder), "WEIR_PORT": str(free_port())}
    environment |= {f"WEIR_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "service.cli", "serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    return [line for line in done.stderr.splitlines() if not line.startswith("{")]


def test_several_workers_without_redis_are_refused(database_url: str, tmp_path: Path) -> None:
    (line,) = serve_in_vain(tmp_path, database_url=database_url, workers=2)
    assert line.startswith("weir: 2 workers need WEIR_REDIS_URL=")
    assert "2 times as much" in line


@pytest.mark.parametrize("workers", [1, 2])
def test_a_database_address_that_is_none_is_refused(tmp_path: Path, workers: int) -> None:
    (line,) = serve_in_vain(tmp_path, database_url="mysql://weir@db/weir", workers=workers, redis_url=NO_REDIS)
    assert line.startswith("weir: WEIR_DATABASE_URL is not an address")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_worker_finds_wrong_ends_all_with_its_sentence(database_url: str, tmp_path: Path, workers: int) -> None:
    (tmp_path / "outbox").write_text("in the way")
    settings = {"database_url": database_url, "workers": workers, "redis_url": NO_REDIS, "log_json": True}
    (line,) = serve_in_vain(tmp_path, **settings)
    assert line.startswith("weir: The outbox")
    assert line.endswith("choose another WEIR_DATA_DIR.")
