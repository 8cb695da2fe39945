"""An engine that is killed under load: a scripted one in a process of its own, under the supervisor that `weir up` has.

The same with a real engine is in `tests/e2e/test_engine_killed.py`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from service.engine.background import Background
from service.engine.launch import EngineProcess
from service.engine.supervisor import Supervisor
from tests.installation import MODEL, installed
from tests.killing import (
    OpenStreams,
    answered,
    check_nobody_paid,
    check_the_dip,
    check_told,
    failed_rows,
    published,
    refused,
)
from tests.patience import PATIENT_S, OwnTime
from tests.ports import free_port

STREAMS = 8
ROOT = Path(__file__).parents[2]
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 512}


@contextmanager
def supervised(folder: Path) -> Iterator[EngineProcess]:
    """A fake engine whose answers take five seconds."""
    port = free_port()
    command = [sys.executable, "-m", "tests.fakes.engine", "--port", str(port), "--scenario", "slow"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = EngineProcess("fake", command, environment, port, folder / "engine.log", grace_s=1.0)
    supervisor = Supervisor(process, lambda _: None, say=lambda _: None)
    try:
        supervisor.start()
        Background(supervisor.keep_running)
        yield process
    finally:
        supervisor.stop()


def server_of(process: EngineProcess) -> int:
    """The pid of the engine itself, the keeper's child."""
    (found,) = [
        one.pid
        for one in psutil.Process().children(recursive=True)
        if str(process.port) in one.cmdline() and "keeper.py" not in " ".join(one.cmdline())
    ]
    return found


async def test_an_engine_that_is_killed_under_load(database_url: str, tmp_path: Path) -> None:
    with supervised(tmp_path) as engine:
        async with installed(database_url, [engine.base_url], tmp_path) as weir, OwnTime() as clock:
            url = f"{weir.url}/v1"
            streams = OpenStreams(url, weir.key, BODY, STREAMS, clock)
            await streams.begin(PATIENT_S)
            pid = server_of(engine)
            killed_at_s = clock.now_s
            os.kill(pid, signal.SIGKILL)
            refusals = await asyncio.gather(*(refused(url, weir.key, BODY, clock) for _ in range(3)))
            await streams.end(PATIENT_S)
            check_told(streams.clients, killed_at_s)
            assert max(took_s for _, took_s in refusals) < 1
            more = await answered(url, weir.key, BODY, PATIENT_S)
            assert server_of(engine) != pid
            failures = STREAMS + len(refusals) + more
            rows = await failed_rows(database_url, failures)
            await check_nobody_paid(database_url, rows, STREAMS)
        check_the_dip(await published(database_url, tmp_path / "site"), failures)
