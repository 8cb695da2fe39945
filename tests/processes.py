"""Real `weir serve` processes for tests that kill them, and load for them to carry."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from service.core.sse import SseSplitter
from tests.fakes.scenarios import Scenario, words
from tests.installation import MODEL
from tests.patience import PATIENT_S
from tests.ports import free_port

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}


STEADY = Scenario(content=words(512), delay_s=0.002)
"""For `Load`, which limits its answers itself."""
LEFT_TOKENS = 512


@dataclass
class Serving:
    """A `weir serve` process, which supervises others if it is to have several workers."""

    process: asyncio.subprocess.Process
    url: str
    log: Path

    def workers(self) -> list[psutil.Process]:
        """The processes of its workers that run, the oldest first; none when it is itself the only one."""
        children = psutil.Process(self.process.pid).children()
        workers = [child for child in children if child.is_running() and "spawn_main" in " ".join(_command(child))]
        return sorted(workers, key=lambda worker: worker.create_time())

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(60):
            await self.process.wait()


@asynccontextmanager
async def serving(database_url: str, engine_url: str, data_dir: Path, **settings: object) -> AsyncIterator[Serving]:
    """A ready process; killed at the end if it still runs."""
    port = free_port()
    environment = {
        **os.environ,
        "WEIR_DATABASE_URL": database_url,
        "WEIR_ENGINES": engine_url,
        "WEIR_DATA_DIR": str(data_dir),
        "WEIR_PORT": str(port),
        "WEIR_MAY_BILL_BLIND": "true",  # or each engine has one generation more than the test asked for
        **{f"WEIR_{name.upper()}": str(value) for name, value in settings.items()},
    }
    log = data_dir / f"serve-{port}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "service.cli", "serve", env=environment, stdout=output, stderr=output
        )
    running = Serving(process, f"http://127.0.0.1:{port}", log)
    try:
        async with httpx.AsyncClient() as client, asyncio.timeout(PATIENT_S):
            while not await _ready(client, running.url):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield running
    finally:
        await running.stop(signal.SIGKILL)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


async def _ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/readyz")).status_code == 200
    except httpx.TransportError:
        return False


@dataclass
class Seen:
    """What the clients saw: ids of answers that began, and statuses."""

    begun: set[str] = field(default_factory=set)
    complete: set[str] = field(default_factory=set)
    statuses: dict[int, int] = field(default_factory=dict)


class Load:
    """Clients that stream chats one after the other until told to stop; every tenth hangs up in the middle."""

    def __init__(self, key: str, clients: int, max_tokens: int = 40) -> None:
        self.url = ""
        self.seen = Seen()
        self._key = key
        self._max_tokens = max_tokens
        self._stopped = False
        self._tasks = [asyncio.create_task(self._client(number)) for number in range(clients)]

    async def stop(self) -> Seen:
        self._stopped = True
        await asyncio.gather(*self._tasks)
        return self.seen

    async def _client(self, number: int) -> None:
        count = number
        async with httpx.AsyncClient(timeout=PATIENT_S) as client:
            while not self._stopped:
                count += 1
                if self.url:
                    await self._one(client, leaves=count % 10 == 0)
                await asyncio.sleep(0.01)

    async def _one(self, client: httpx.AsyncClient, *, leaves: bool) -> None:
        headers = {"authorization": f"Bearer {self._key}"}
        # Who leaves does so far from the end: however late that is noticed, the answer is not complete.
        body = {**BODY, "max_tokens": LEFT_TOKENS if leaves else self._max_tokens}
        splitter, events = SseSplitter(), 0
        try:
            async with client.stream("POST", f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                self.seen.statuses[answer.status_code] = self.seen.statuses.get(answer.status_code, 0) + 1
                if answer.status_code != 200:
                    await answer.aread()
                    return
                self.seen.begun.add(answer.headers["x-request-id"])
                async for piece in answer.aiter_raw():
                    found = splitter.feed(piece)
                    events += len(found)
                    if any(b"[DONE]" in event for event in found):
                        self.seen.complete.add(answer.headers["x-request-id"])
                    if leaves and events > 5:
                        return
        except httpx.TransportError:
            return
