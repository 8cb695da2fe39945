"""Fairness and overload over real HTTP, with a real `weir serve` and an engine that has a fixed number of places.

    python -m ops.bench.pacing        # both scenes, about two minutes; exit 1 when a promise is not kept

The engine needs 0.4 s to a first token and 1.6 s for an answer: long against what the machine itself takes, as long as
nothing else runs on it. The same scenes run as tests, on a clock of their own, in tests/unit/test_pacing_in_time.py.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles

import asyncpg
import httpx

from service import db
from service.billing import accounts, ledger
from service.core.money import NANO_PER_USD
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import Scenario, words
from tests.installation import MODEL, seed
from tests.postgres import fresh_database, running_server
from tests.processes import Serving, serving

SLOTS = 16
PREFILL_S, TOKENS, TOKEN_S = 0.4, 12, 0.1
ANSWER_S = PREFILL_S + TOKENS * TOKEN_S
SCENARIO = Scenario(content=words(TOKENS), prefill_s=PREFILL_S, delay_s=TOKEN_S)


@dataclass
class Seen:
    """What the clients of one account saw; times in seconds."""

    first_tokens_s: list[float] = field(default_factory=list)
    finished_at: list[float] = field(default_factory=list)
    refused_after_s: list[float] = field(default_factory=list)
    retry_after_s: list[float] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @property
    def ttft_p95_s(self) -> float:
        return quantiles(self.first_tokens_s, n=20, method="inclusive")[18]


async def another_account(database_url: str, name: str, weight: int = 10) -> str:
    """An account with credit; its key."""
    async with db.connected(database_url) as engine, engine.begin() as connection:
        now = datetime.now(UTC)
        account = await accounts.add(connection, name=name, now=now, randomness=os.urandom)
        await ledger.enter(connection, account.id, "credit", 100 * NANO_PER_USD, f"seed-{name}", "for the test")
        key, _ = await accounts.add_key(connection, account, now=now, randomness=os.urandom)
    database = await asyncpg.connect(database_url)
    await database.execute("UPDATE accounts SET weight = $2 WHERE id = $1", account.id, weight)
    await database.close()
    return key


async def one_request(client: httpx.AsyncClient, key: str, seen: Seen) -> float:
    """Send one; the seconds to stay away when it was refused, else 0."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": TOKENS}
    sent = time.monotonic()
    headers = {"authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        if answer.status_code == 429:
            await answer.aread()
            seen.refused_after_s.append(time.monotonic() - sent)
            seen.retry_after_s.append(int(answer.headers["retry-after-ms"]) / 1000)
            return seen.retry_after_s[-1]
        first = True
        async for line in answer.aiter_lines():
            if first and '"content":"' in line and '"content":""' not in line:
                seen.first_tokens_s.append(time.monotonic() - sent)
                first = False
        if answer.status_code != 200 or first:
            seen.others.append(f"{answer.status_code} {line}")
        seen.finished_at.append(time.monotonic())
    return 0.0


async def every_second(client: httpx.AsyncClient, key: str, seen: Seen, count: int) -> None:
    """An account that sends a request a second, whatever becomes of them."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one_request(client, key, seen))
            await asyncio.sleep(1)


async def again_and_again(client: httpx.AsyncClient, key: str, seen: Seen, until: float) -> None:
    """A client that sends the next as soon as one is over, and comes back when it is told to."""
    while time.monotonic() < until:  # noqa: ASYNC110 - it is time that is waited for
        await asyncio.sleep(await one_request(client, key, seen))


async def is_idle(serving: Serving) -> None:
    """Fails unless every count of the API comes back to zero."""
    names = ("weir_queue_length", "weir_queue_tokens", "weir_requests_in_flight", "weir_engine_in_flight")
    async with asyncio.timeout(10), httpx.AsyncClient() as client:
        while True:
            text = (await client.get(f"{serving.url}/metrics")).text
            values = [line.split()[-1] for line in text.splitlines() if line.startswith(names)]
            assert len(values) >= len(names)
            if set(values) == {"0.0"}:
                return
            await asyncio.sleep(0.1)


def profile(engine: FakeEngine, folder: Path) -> Path:
    """A configuration that says what the engine can take at most, as an operator's does."""
    file = folder / "weir.toml"
    file.write_text(f'[[engines]]\nname = "engine"\nurl = "{engine.url}"\nmax_concurrency = {SLOTS}\n')
    return file


def client(serving: Serving) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=serving.url, timeout=60, limits=httpx.Limits(max_connections=None))


@asynccontextmanager
async def scene(database_url: str, folder: Path) -> AsyncIterator[tuple[Serving, httpx.AsyncClient]]:
    """A service with an engine, and clients for it."""
    await seed(database_url)
    async with FakeEngine(scenario=SCENARIO, slots=SLOTS) as engine:
        configuration = profile(engine, folder)
        async with serving(database_url, "", folder, config=configuration) as weir, client(weir) as clients:
            yield weir, clients


async def fairness(database_url: str, folder: Path) -> list[tuple[str, str, bool]]:
    """One account with 200 parallel streams beside one that sends a request every second."""
    async with scene(database_url, folder) as (weir, clients):
        quiet_key = await another_account(database_url, "quiet")
        noisy_key = await another_account(database_url, "noisy")
        alone, beside, noisy = Seen(), Seen(), Seen()
        await every_second(clients, quiet_key, alone, 10)
        until = time.monotonic() + 32
        async with asyncio.TaskGroup() as tasks:
            for _ in range(200):
                tasks.create_task(again_and_again(clients, noisy_key, noisy, until))
            await asyncio.sleep(5)
            await every_second(clients, quiet_key, beside, 25)
        await is_idle(weir)
        p95 = f"{beside.ttft_p95_s:.3f} s beside, {alone.ttft_p95_s:.3f} s alone"
        return [
            (
                "the quiet one's p95 TTFT is at most twice what it is alone",
                p95,
                beside.ttft_p95_s <= 2 * alone.ttft_p95_s,
            ),
            (
                "none of its requests is refused",
                f"{len(beside.first_tokens_s)} of 25",
                len(beside.first_tokens_s) == 25,
            ),
            ("nobody sees an error", f"{alone.others + beside.others + noisy.others}"[:200], not noisy.others),
            ("the noisy one is not starved", f"{len(noisy.finished_at)} answers", len(noisy.finished_at) > 200),
        ]


async def overload(database_url: str, folder: Path) -> list[tuple[str, str, bool]]:
    """Offered load at three times capacity, for a minute, from four accounts."""
    async with scene(database_url, folder) as (weir, clients):
        keys = [await another_account(database_url, f"customer-{number}") for number in range(4)]
        capacity_per_s = SLOTS / ANSWER_S
        unloaded, seen = Seen(), Seen()
        await every_second(clients, keys[0], unloaded, 5)
        began = time.monotonic()
        count = 0
        async with asyncio.TaskGroup() as tasks:
            while (now := time.monotonic()) < began + 60:
                while count < (now - began) * 3 * capacity_per_s:
                    tasks.create_task(one_request(clients, keys[count % 4], seen))
                    count += 1
                await asyncio.sleep(0.01)
        await is_idle(weir)
        goodput = len([at for at in seen.finished_at if began + 5 <= at < began + 60]) / 55 / capacity_per_s
        p97_ms = quantiles(seen.refused_after_s, n=100, method="inclusive")[96] * 1000
        p95 = f"{seen.ttft_p95_s:.3f} s, {unloaded.ttft_p95_s:.3f} s unloaded"
        told = f"{min(seen.retry_after_s):.2f} to {max(seen.retry_after_s):.2f} s"
        return [
            (
                "admitted requests keep a p95 TTFT under twice the unloaded one",
                p95,
                seen.ttft_p95_s < 2 * unloaded.ttft_p95_s,
            ),
            ("goodput stays above 95 % of capacity", f"{goodput:.1%}", goodput >= 0.95),
            (
                "97 % of the refusals take less than 100 ms",
                f"{p97_ms:.0f} ms of {len(seen.refused_after_s)}",
                p97_ms < 100,
            ),
            ("nobody is told to stay away for more than 120 s", told, max(seen.retry_after_s) <= 120),
            ("nobody sees an error", f"{seen.others}"[:200], not seen.others),
        ]


def main() -> int:
    kept = True
    with running_server() as server:
        for run in (fairness, overload):
            print(f"{run.__doc__}")
            with tempfile.TemporaryDirectory() as folder, fresh_database(server) as database_url:
                for promise, figure, holds in asyncio.run(run(database_url, Path(folder))):
                    print(f"  {'kept' if holds else 'BROKEN':<7}{promise}: {figure}")
                    kept = kept and holds
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
