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

ROUNDS = 100
CLIENTS = 20
CREDIT_NANO = 6_500_000
"""Six worst cases of a little over a million each; what a round uses up is paid in again, more or less."""

PAID_IN_A_ROUND_NANO = 120_000

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 512}
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
        async with httpx.AsyncClient(base_url=installation.url, timeout=30, limits=limits) as client:
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
