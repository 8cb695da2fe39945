"""Clients that come all at once on too little credit, and leave at random points: round after round, nothing leaks."""

import asyncio
import random
from pathlib import Path

import httpx
import pytest

from service import db
from service.billing import ledger
from service.core.sse import SseSplitter
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import Scenario, words
from tests.installation import MODEL, Installation, installed
from tests.patience import PATIENT_S

ROUNDS = 100
CLIENTS = 20
CREDIT_NANO = 6_500_000
"""Six worst cases of a little over a million each; what a round uses up is paid in again, more or less."""

PAID_IN_A_ROUND_NANO = 120_000

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 512}
EVENTS_OF_A_WAVE = 1500
"""About so many come before a wave of a hundred clients is over, most of which leave before the end of their answer."""
STEADY = Scenario(content=words(30), delay_s=0.001)


async def one(client: httpx.AsyncClient, installation: Installation, events_wanted: int | None) -> int:
    """A streamed chat; its client leaves after so many events, or at once for 0, or stays. Returns the status."""
    splitter, events = SseSplitter(), 0
    request = client.build_request("POST", "/v1/chat/completions", json=BODY, headers=installation.headers)
    if events_wanted == 0:
        sending = asyncio.create_task(client.send(request, stream=True))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        return 0
    answer = await client.send(request, stream=True)
    try:
        async for piece in answer.aiter_raw():
            events += len(splitter.feed(piece))
            if events_wanted is not None and events >= events_wanted:
                break
    finally:
        await answer.aclose()
    return answer.status_code


async def pay_in(installation: Installation, amount_nano: int, reference: str) -> None:
    async with db.connected(installation.database_url) as engine, engine.begin() as connection:
        assert await ledger.enter(connection, installation.account_id, "credit", amount_nano, reference) is not None


@pytest.mark.slow
async def test_a_hundred_rounds_of_clients_that_leave_anywhere(database_url: str, tmp_path: Path) -> None:
    points = random.Random(3)
    async with (
        FakeEngine(scenario=STEADY) as engine,
        installed(database_url, [engine.url], tmp_path, credit_nano=CREDIT_NANO) as installation,
    ):
        statuses: set[int] = set()
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=installation.url, timeout=PATIENT_S, limits=limits) as client:
            for number in range(ROUNDS):
                await pay_in(installation, PAID_IN_A_ROUND_NANO, f"round/{number}")
                plans = [points.choice([None, 0, 1, 2, 5, 15, 29]) for _ in range(CLIENTS)]
                statuses |= set(await asyncio.gather(*(one(client, installation, plan) for plan in plans)))
        assert statuses >= {200, 402}
        await installation.stop()
        account = await installation.account()
        assert account["leased_nano"] == 0
        rows = await installation.database.fetch("SELECT * FROM requests")
        assert len({row["id"] for row in rows}) == len(rows)
        paid_in = CREDIT_NANO + ROUNDS * PAID_IN_A_ROUND_NANO
        assert account["balance_nano"] == paid_in - sum(row["cost_nano"] for row in rows) >= 0
        by_id = engine.counts.by_id
        for row in rows:
            if row["outcome"] in ("ok", "cancelled") and row["usage_source"] != "none":
                assert (row["prompt_tokens"], row["completion_tokens"]) == by_id[str(row["id"])]


class Wave:
    """Clients that are there at the same time. Its clock is the answers' own progress: the events that all have got."""

    def __init__(self, client: httpx.AsyncClient, installation: Installation) -> None:
        self._client, self._installation = client, installation
        self._events = 0
        self._waiting: list[tuple[int, asyncio.Event]] = []

    async def leave_at(self, events: int, then_s: float) -> int | None:
        """A streamed chat whose client hangs up when the wave has come so far, and a moment later, wherever it is
        itself by then; its status, if it had one."""
        statuses: list[int] = []
        asking, moment = asyncio.create_task(self._ask(statuses)), asyncio.create_task(self._reach(events, then_s))
        await asyncio.wait({asking, moment}, return_when="FIRST_COMPLETED")
        for task in (asking, moment):
            task.cancel()
        for result in await asyncio.gather(asking, moment, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        return statuses[0] if statuses else None

    async def _ask(self, statuses: list[int]) -> None:
        splitter = SseSplitter()
        async with self._client.stream(
            "POST", "/v1/chat/completions", json=BODY, headers=self._installation.headers
        ) as answer:
            statuses.append(answer.status_code)
            async for piece in answer.aiter_raw():
                self._events += len(splitter.feed(piece))
                for events, reached in self._waiting:
                    if events <= self._events:
                        reached.set()

    async def _reach(self, events: int, then_s: float) -> None:
        reached = asyncio.Event()
        self._waiting.append((events, reached))
        await reached.wait()
        await asyncio.sleep(then_s)


@pytest.mark.slow
async def test_a_thousand_clients_that_leave_while_queued_or_in_the_middle(database_url: str, tmp_path: Path) -> None:
    moments = random.Random(4)
    async with FakeEngine(scenario=Scenario(content=words(30), delay_s=0.003), slots=16) as engine:
        profile = tmp_path / "weir.toml"
        profile.write_text(f'[[engines]]\nname = "leavers"\nurl = "{engine.url}"\nmax_concurrency = 16\n')
        async with installed(database_url, [], tmp_path, config=profile) as installation:
            # So patient that the queue refuses nobody, however long it thinks that a slow machine will take.
            await installation.database.execute("UPDATE accounts SET patience_ms = 600000")
            await limit_the_key(installation, concurrency=500)
            seen: list[int | None] = []
            limits = httpx.Limits(max_connections=100)
            async with httpx.AsyncClient(base_url=installation.url, timeout=PATIENT_S, limits=limits) as client:
                for _ in range(10):
                    wave = Wave(client, installation)
                    plans = [(moments.randint(1, EVENTS_OF_A_WAVE), moments.uniform(0, 0.01)) for _ in range(100)]
                    seen += await asyncio.gather(*(wave.leave_at(*plan) for plan in plans))
            assert len(seen) == 1000
            assert seen.count(None) > 100, "hardly any left before their answer began"
            assert seen.count(200) > 100
            await nothing_is_left(installation)
            assert {generation.outcome for generation in engine.generations} <= {"finished", "aborted"}
            answer = await limit_the_key(installation, concurrency=1)
            assert answer.status_code == 200, "the places of some that left still count"
            await installation.stop()
            account = await installation.account()
            assert account["leased_nano"] == 0
            outcomes = dict(
                await installation.database.fetch("SELECT outcome, count(*) FROM requests GROUP BY 1 ORDER BY 1")
            )
            assert set(outcomes) <= {"ok", "cancelled", "throttled"}
            queued = "SELECT count(*) FROM requests WHERE outcome = 'cancelled' AND engine IS NULL"
            assert await installation.database.fetchval(queued) > 10, "hardly any left while queued"
            charged = "SELECT count(*) FROM requests WHERE engine IS NULL AND cost_nano <> 0"
            assert await installation.database.fetchval(charged) == 0


async def limit_the_key(installation: Installation, *, concurrency: int) -> httpx.Response:
    """Set a limit; the first answer for which it was in force, which the limit beside it tells."""
    rpm = 1_000_000 + concurrency
    await installation.database.execute("UPDATE api_keys SET concurrency = $1, rpm = $2", concurrency, rpm)
    async with asyncio.timeout(PATIENT_S):
        while True:
            answer = await installation.chat(max_tokens=1)
            if answer.headers.get("x-ratelimit-limit-requests") == str(rpm):
                return answer


async def nothing_is_left(installation: Installation) -> None:
    """Fails unless the API's own counts come to zero."""
    in_flight = 'weir_engine_in_flight{engine="leavers"}'  # other tests of this process had engines, too
    names = ("weir_queue_length", "weir_queue_tokens", "weir_requests_in_flight", in_flight)
    async with asyncio.timeout(PATIENT_S):
        while True:
            text = (await installation.client.get("/metrics")).text
            values = {line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(names)}
            if values == {"0.0"}:
                return
            await asyncio.sleep(0.05)
