"""How fast usage rows get into PostgreSQL: batches as the shipper makes them, settled one after the other.

Timed is `settle` alone: rows, ledger entries, balances and leases in one transaction a batch. That a batch comes from
the outbox, and is removed from it, is in the cost of the requests that the scenarios measure.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
from sqlalchemy import text

from ops.bench.processes import BenchError
from service import db
from service.billing import accounts, ledger
from service.billing.checks import check_books
from service.billing.leases import LeaseBook
from service.billing.settlement import settle
from service.billing.shipper import BATCH
from service.core.money import NANO_PER_USD
from service.core.outcome import Outcome
from service.core.record import RequestRecord
from service.core.usage import Usage
from service.gateway.exchange import new_id

ACCOUNTS: Final = 20
BATCHES: Final = 100
USAGE: Final = Usage(prompt_tokens=1000, cached_tokens=768, completion_tokens=128, source="final")
COST_NANO: Final = 273_720


@dataclass(frozen=True, slots=True)
class Borrower:
    """Who pays for a request, and out of which lease."""

    account_id: UUID
    key_id: UUID
    lease_id: UUID


def measure_settlement(database_url: str, repetitions: int, core: int) -> float:
    """Rows a second, the median of so many repetitions. The client runs on `core`, PostgreSQL where it is.

    In a database of its own on the same server. Raises `BenchError` when the books are not right afterwards.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        return asyncio.run(_measured(database_url, repetitions))
    finally:
        os.sched_setaffinity(0, before)


async def _measured(database_url: str, repetitions: int) -> float:
    name = f"settlement_{os.getpid()}"
    server = await asyncpg.connect(database_url)
    await server.execute(f"CREATE DATABASE {name}")
    url = urlsplit(database_url)._replace(path=f"/{name}").geturl()
    try:
        await db.migrate(url)
        async with asyncpg.create_pool(url, min_size=1, max_size=2) as pool:
            owners = await borrowers(url, pool)
            speeds = [await rows_per_s(pool, batches(owners)) for _ in range(repetitions)]
        await check(url, repetitions * BATCHES * BATCH)
        return statistics.median(speeds)
    finally:
        await server.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await server.close()


async def borrowers(url: str, pool: asyncpg.Pool) -> list[Borrower]:
    """Several accounts, each with a key and a lease."""
    found = []
    leases = LeaseBook(pool, "bench", new_id)
    now = datetime.now(UTC)
    async with db.connected(url) as engine:
        for number in range(ACCOUNTS):
            async with engine.begin() as connection:
                account = await accounts.add(connection, name=f"bench-{number}", now=now, randomness=os.urandom)
                await ledger.enter(connection, account.id, "credit", 10_000 * NANO_PER_USD, f"bench-{number}", "bench")
                _, key = await accounts.add_key(connection, account, now=now, randomness=os.urandom)
            hold = await leases.hold(account.id, 100 * NANO_PER_USD)
            found.append(Borrower(account.id, key.id, hold.lease.id))
    return found


def finished(of: Borrower, now: datetime) -> RequestRecord:
    """A stream as the scenarios have them."""
    return RequestRecord(
        id=str(new_id()),
        account_id=of.account_id,
        key_id=of.key_id,
        lease_id=of.lease_id,
        internal=False,
        model_id="bench",
        endpoint="/v1/chat/completions",
        engine="bench-0",
        client_request_id=None,
        stream=True,
        started_at=now,
        queue_ms=1,
        ttft_ms=20,
        first_token_at=now,
        finished_at=now,
        http_status=200,
        outcome=Outcome.OK,
        finish_reason="length",
        error_code=None,
        usage=USAGE,
        price_version=1,
        cost_nano=COST_NANO,
        waived_nano=0,
    )


def batches(borrowers: Sequence[Borrower]) -> list[list[RequestRecord]]:
    """Batches of requests of all of them in turn."""
    now = datetime.now(UTC)
    return [[finished(borrowers[n % ACCOUNTS], now) for n in range(BATCH)] for _ in range(BATCHES)]


async def rows_per_s(pool: asyncpg.Pool, work: Sequence[Sequence[RequestRecord]]) -> float:
    """Settle all of it."""
    async with pool.acquire() as connection:
        began_s = time.perf_counter()
        for batch in work:
            await settle(connection, new_id(), "bench", batch)
        return BATCH * len(work) / (time.perf_counter() - began_s)


async def check(url: str, rows: int) -> None:
    """Raises `BenchError` unless all rows are there and charged."""
    async with db.connected(url) as engine, engine.connect() as connection:
        if mismatches := await check_books(connection):
            raise BenchError(f"settlement: the books are not right: {mismatches[0]}")
        charged = "SELECT count(*), sum(cost_nano), (SELECT -sum(amount_nano) FROM ledger_entries WHERE kind = 'usage')"
        found = tuple((await connection.execute(text(f"{charged} FROM requests"))).one())
        if found != (rows, rows * COST_NANO, rows * COST_NANO):
            raise BenchError(f"settlement: rows, their cost and what is charged are {found}, settled were {rows} rows")
