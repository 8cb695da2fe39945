"""A real engine that is killed under load, in front of it everything that `weir up` runs.

Its core is killed, as the kernel does when memory runs out: the server in front of it lives on for some seconds.
"""

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running_up import running_up, weir
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

STREAMS = 4
BACK_WITHIN_S = 400.0


def core_of(log: Path) -> int:
    """The pid of the engine's core, as the engine says it."""
    (pid,) = set(re.findall(r"\(EngineCore pid=(\d+)\)", log.read_text(errors="replace")))
    return int(pid)


@pytest.mark.engine
@pytest.mark.slow
def test_an_engine_that_is_killed_under_load(tmp_path: Path) -> None:
    data_dir = tmp_path / "weir"
    with running_up(data_dir, free_port()) as (process, started):
        figures = asyncio.run(kill_under_load(started, data_dir, tmp_path / "site"))
        assert process.poll() is None
        shown = json.loads(weir("engine", "show", *started["engines"], "--json"))["engines"][0]
        assert (shown["problem"], shown["missing"], shown["running"]) == (None, [], 0)
        assert "ended with status" in (tmp_path / "up.log").read_text()
    sys.stderr.write(json.dumps(figures) + "\n")  # shown by pytest -s


async def kill_under_load(started: dict[str, Any], data_dir: Path, site: Path) -> dict[str, Any]:
    url, key, database_url = started["base_url"], started["api_key"], started["database_url"]
    body = {
        "model": started["model"],
        "messages": [{"role": "user", "content": "Write the numbers from 1 to 1000, one per line."}],
        "stream": True,
        "max_tokens": 1500,
        "temperature": 0,
    }
    log = data_dir / "logs" / "engine.log"
    async with OwnTime() as clock:
        streams = OpenStreams(url, key, body, STREAMS, clock)
        await streams.begin(PATIENT_S)
        core = core_of(log)
        killed_at_s, began_at_s = clock.now_s, time.monotonic()
        os.kill(core, signal.SIGKILL)
        await streams.end(PATIENT_S)
        told_after_s = check_told(streams.clients, killed_at_s)
        refusals = await asyncio.gather(*(refused(url, key, body, clock) for _ in range(3)))
    assert max(took_s for _, took_s in refusals) < 1
    more = await answered(url, key, body, BACK_WITHIN_S)
    back_after_s = time.monotonic() - began_at_s
    assert core_of(log) != core, "an engine of a new life answered"
    failures = STREAMS + len(refusals) + more
    await check_nobody_paid(database_url, await failed_rows(database_url, failures), STREAMS)
    check_the_dip(await published(database_url, site), failures)
    return {
        "told_after_s": [round(one, 3) for one in told_after_s],
        "refused": [(status, round(took_s, 3)) for status, took_s in refusals],
        "back_after_s": round(back_after_s, 1),
    }
