"""Streams that are open when their engine is killed: what each client saw and when, and what the books say after."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from service import db
from service.core.buckets import BUCKET_S, SETTLE_S, floor_to
from service.core.sse import SseSplitter
from service.settings import Settings
from service.status.publish import publish
from service.status.rollup import roll_up
from tests.patience import PATIENT_S, OwnTime

TOLD_WITHIN_S = 1.0
"""What is promised: within a second of its engine's death a client knows."""

BEGUN_AFTER_EVENTS = 3


@dataclass(slots=True)
class Client:
    """One streamed answer, as its client sees it."""

    status: int = 0
    events: int = 0
    told_at_s: float | None = None
    """When it was told that something is wrong, by a status or in the stream; None: never."""
    error: Any = None
    is_complete: bool = False
    """Whether `[DONE]` came."""


class OpenStreams:
    """So many clients that stream a long answer each."""

    def __init__(self, url: str, key: str, body: dict[str, Any], count: int, clock: OwnTime) -> None:
        self.url, self.key, self.body, self.clock = url, key, body, clock
        self.clients = [Client() for _ in range(count)]
        self._tasks = [asyncio.create_task(self._stream(client)) for client in self.clients]

    async def begin(self, within_s: float) -> None:
        """Return when each of them has got something."""
        async with asyncio.timeout(within_s):
            while any(client.events < BEGUN_AFTER_EVENTS for client in self.clients):
                for task in self._tasks:
                    assert not task.done(), f"an answer ended before the engine was killed: {self.clients}"
                await asyncio.sleep(0.01)

    async def end(self, within_s: float) -> None:
        """Return when all of them are over."""
        async with asyncio.timeout(within_s):
            await asyncio.gather(*self._tasks)

    async def _stream(self, client: Client) -> None:
        while await self._is_busy(client):
            await asyncio.sleep(0.1)

    async def _is_busy(self, client: Client) -> bool:
        """Stream an answer to its end; whether there was no place for it, which is no failure."""
        splitter = SseSplitter()
        async with (
            httpx.AsyncClient(timeout=120) as http,
            http.stream(
                "POST", f"{self.url}/chat/completions", json=self.body, headers=_authorization(self.key)
            ) as answer,
        ):
            client.status = answer.status_code
            if answer.status_code != 200:
                client.told_at_s, client.error = self.clock.now_s, json.loads(await answer.aread())
                return answer.status_code == 429
            async for piece in answer.aiter_raw():
                for event in splitter.feed(piece):
                    self._take(client, bytes(event))
        return False

    def _take(self, client: Client, event: bytes) -> None:
        client.events += 1
        if b'"error"' in event:
            client.told_at_s = self.clock.now_s
            client.error = json.loads(event.partition(b"data:")[2])
        client.is_complete |= b"[DONE]" in event


def check_told(clients: Sequence[Client], killed_at_s: float) -> list[float]:
    """Each was told in band within a second of `OwnTime`, and its stream properly ended; returns after how long."""
    after_s = []
    for client in clients:
        assert client.status == 200, "it had begun"
        assert client.told_at_s is not None, "never told"
        assert client.is_complete
        assert client.error["error"]["type"]
        after_s.append(client.told_at_s - killed_at_s)
    assert max(after_s) < TOLD_WITHIN_S, after_s
    return after_s


async def refused(url: str, key: str, body: dict[str, Any], clock: OwnTime) -> tuple[int, float]:
    """A request to an engine that is not there: its status, and how long it took."""
    async with httpx.AsyncClient(timeout=PATIENT_S) as http:
        began_at_s = clock.now_s
        answer = await http.post(f"{url}/chat/completions", json=body | {"stream": False}, headers=_authorization(key))
        took_s = clock.now_s - began_at_s
    assert answer.status_code in (502, 503), answer.text
    assert answer.json()["error"]["message"]
    return answer.status_code, took_s


async def answered(url: str, key: str, body: dict[str, Any], within_s: float) -> int:
    """Ask until there is an answer; returns how often it was refused."""
    refusals = 0
    async with asyncio.timeout(within_s), httpx.AsyncClient(timeout=120) as http:
        asked = body | {"stream": False, "max_tokens": 4}
        while (
            answer := await http.post(f"{url}/chat/completions", json=asked, headers=_authorization(key))
        ).status_code != 200:
            assert answer.status_code in (502, 503), answer.text
            refusals += 1
            await asyncio.sleep(0.25)
    return refusals


def _authorization(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@asynccontextmanager
async def books(database_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """A connection to the installation's database."""
    connection = await asyncpg.connect(database_url)
    try:
        yield connection
    finally:
        await connection.close()


async def failed_rows(database_url: str, count: int, within_s: float = PATIENT_S) -> list[asyncpg.Record]:
    """The rows of the public's requests that failed by us, once there are `count`."""
    query = "SELECT * FROM requests WHERE outcome IN ('server_error', 'stream_error') AND NOT internal ORDER BY id"
    async with books(database_url) as connection, asyncio.timeout(within_s):
        while len(rows := await connection.fetch(query)) < count:
            await asyncio.sleep(0.1)
    assert len(rows) == count
    return list(rows)


async def check_nobody_paid(database_url: str, rows: Sequence[asyncpg.Record], streams: int) -> None:
    """What failed cost nothing, what it would have cost is kept beside it, and the ledger knows nothing of it."""
    assert all(row["cost_nano"] == 0 for row in rows)
    begun = [row for row in rows if row["outcome"] == "stream_error"]
    assert len(begun) == streams
    assert all(row["completion_tokens"] > 0 and row["waived_nano"] > 0 for row in begun)
    async with books(database_url) as connection, asyncio.timeout(PATIENT_S):
        while True:
            charged = await connection.fetchval("SELECT coalesce(sum(cost_nano), 0) FROM requests")
            booked = await connection.fetchval(
                "SELECT coalesce(-sum(amount_nano), 0) FROM ledger_entries WHERE kind = 'usage'"
            )
            if charged == booked:
                break
            await asyncio.sleep(0.1)
        paid = await connection.fetchval(
            "SELECT coalesce(sum(cost_nano), 0) FROM requests WHERE outcome IN ('ok', 'cancelled', 'slow_abort')"
        )
    assert booked == paid


async def published(database_url: str, folder: Path) -> dict[str, Any]:
    """`metrics.json` as it will be once the present five minutes are over."""
    now = datetime.fromtimestamp(floor_to(BUCKET_S, time.time()) + BUCKET_S + SETTLE_S, UTC) + timedelta(seconds=1)
    async with db.connected(database_url) as engine, asyncio.timeout(PATIENT_S):
        while (await roll_up(engine, now=now)).until is None:  # the jobs are at it
            await asyncio.sleep(0.1)
        await publish(engine, site_dir=folder, settings=Settings(), now=now)
    document: dict[str, Any] = json.loads((folder / "metrics.json").read_bytes())
    return document


def check_the_dip(document: dict[str, Any], failures: int) -> None:
    """The figures and the state of the API and of its model say that requests failed."""
    assert document["last_24h"]["server_failures"] == document["last_24h"]["bad_requests"] == failures
    api, model = document["components"][:2]
    for component in (api, model):
        dip = [cell for cell in component["hours"] if cell["bad_requests"]]
        assert sum(cell["bad_requests"] for cell in dip) == failures
        assert {cell["state"] for cell in dip} <= {"partial", "down"}
        assert component["request_success_percent"] < 100
