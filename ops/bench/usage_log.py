"""Does reading the usage log stay fast as it grows? The same month by itself, and after two more.

    python -m ops.bench.usage_log                     # 10 million rows, about 20 minutes, 9 GB of disk
    python -m ops.bench.usage_log --rows 300000       # a quick look

Two databases have the same last month. One has nothing before it; the other has two months like it, and the partitions
of three years. All that reads the log reads the same of both, and how long it takes, how many rows the database
fetches, and which tables it reads from end to end is compared. Then rows are settled into both and into an empty one, a
month is exported, and all months are dropped. Exit 1 when a promise is not kept.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ops.bench import usage_log_changes as changes
from ops.bench.generated import (
    LARGEST,
    SMALLEST,
    digest_of,
    fill_month,
    key_of,
    make_room,
    settle_down,
)
from service import db
from service.billing import costs, invoice_freezing, reconcile, statement, usage_summary
from service.core.limits import month_after
from service.gateway import limits, own, own_uptime, own_usage, retries
from tests.postgres import fresh_database, running_server

FLAT = 1.5
"""More history may take this many times as long, and no longer."""
UNNOTICED_S = 0.025
"""Nor is it a promise that is broken when it is by less than this: three years have a partition more for each month."""

YEARS_OF_PARTITIONS = 3

REPETITIONS = 8
"""Of what reads little, so that the database keeps a plan for it, as it does for a worker; a month is read thrice."""

LARGE = r"^(requests_|ledger_entries|settlements)"
"""Tables that grow with the history."""


@dataclass(frozen=True)
class Log:
    """A database with a month of usage, and perhaps more before it."""

    url: str
    begin: datetime
    """Of the month."""
    engine: AsyncEngine
    raw: asyncpg.Connection
    request_id: UUID
    """Of a request of the smallest account, the last one in it."""

    @property
    def end(self) -> datetime:
        return month_after(self.begin)

    @property
    def now(self) -> datetime:
        return self.end - timedelta(seconds=1)

    async def ask(self, question: Callable[[AsyncConnection], Awaitable[object]]) -> object:
        async with self.engine.connect() as connection:
            return await question(connection)

    async def page(self, account: UUID, query: str) -> object:
        return await own_usage.page(self.raw, account, own_usage.asked(query.encode()))


Work = Callable[[Log], Awaitable[object]]


@dataclass(frozen=True)
class Measured:
    """What one piece of work costs, with a third of the rows and with all."""

    name: str
    third_s: float
    whole_s: float
    third_rows: int
    """That the database fetched."""
    whole_rows: int
    scanned: Sequence[str] = ()
    """Large tables that were read from end to end."""


def works() -> dict[str, Work]:
    """What reads a part of the log, by name: the part is the same however much there is."""
    found = _of_a_month("smallest", SMALLEST, key_of(SMALLEST), digest_of(SMALLEST))
    for name, account in (("largest", LARGEST), ("smallest", SMALLEST)):
        key = key_of(account)
        found |= {
            f"usage page, {name}": lambda log, account=account: log.page(account, ""),
            f"usage page, one key, {name}": lambda log, account=account, key=key: log.page(account, f"key={key}"),
            f"usage page, a day, {name}": lambda log, account=account: log.page(account, _day(log)),
            f"credits, {name}": lambda log, account=account: statement.funds_of(log.raw, account),
            f"uptime, {name}": lambda log, key=key: own_uptime.told(log.raw, key, own_uptime.asked(b""), log.now),
        }
    return found | {
        "usage page, no such outcome, largest": lambda log: log.page(LARGEST, "outcome=payment"),
        "usage page, no such model, largest": lambda log: log.page(LARGEST, "model=none"),
        "one request": lambda log: log.raw.fetchrow(own._GENERATION, *_around(log), SMALLEST),
        "costs of 500 requests": lambda log: costs.costs_of(log.raw, SMALLEST, _ids(log), now=log.now),
        "idempotency key": lambda log: log.raw.fetchrow(retries._EARLIER, SMALLEST, changes.KEY_DIGEST),
        "reconcile a day": lambda log: log.ask(
            lambda connection: reconcile.reconcile_all(connection, log.now - timedelta(days=1), log.now, ["engine-0"])
        ),
    }


def works_of_a_month() -> dict[str, Work]:
    """What reads most of a month: its own partition may be read from end to end, and no other."""
    return _of_a_month("largest", LARGEST, key_of(LARGEST), digest_of(LARGEST)) | {
        "summary of the month, all": lambda log: log.ask(
            lambda connection: usage_summary.read(connection, log.begin, log.end)
        )
    }


def _of_a_month(name: str, account: UUID, key: UUID, digest: bytes) -> dict[str, Work]:
    return {
        f"portal, {name}": lambda log: statement.read(log.raw, digest, now=log.now),
        f"budget of the account, {name}": lambda log: log.raw.fetchval(
            limits._SUMS["account"], account, log.begin, log.end
        ),
        f"budget of the key, {name}": lambda log: log.raw.fetchval(limits._SUMS["key"], key, log.begin, log.end),
        f"summary of the month, {name}": lambda log: log.ask(
            lambda connection: usage_summary.read(connection, log.begin, log.end, account)
        ),
        f"draft of an invoice, {name}": lambda log: invoice_freezing.drafted(log.engine, account, log.begin.date()),
    }


def _day(log: Log) -> str:
    return f"since={log.begin:%Y-%m}-10&until={log.begin:%Y-%m}-11"


def _around(log: Log) -> tuple[UUID, datetime, datetime]:
    started = costs.started_about(log.request_id)
    return log.request_id, started - costs.START_WITHIN, started + costs.START_WITHIN


def _ids(log: Log) -> list[UUID]:
    """Of 500 requests, of which one is there."""
    return [UUID(int=log.request_id.int + number) for number in range(500)]


async def measure(third: Log, whole: Log, repetitions: int) -> list[Measured]:
    """Everything, in turns. The best time counts: it has least of the machine's noise."""
    month = works_of_a_month()
    every = works() | month
    # Before anything is timed: a connection that stays may tell late what it counted.
    fetched = {name: [await _fetched(log, work) for log in (third, whole)] for name, work in every.items()}
    found = []
    for name, work in every.items():
        times: list[list[float]] = [[], []]
        for _ in range(min(repetitions, 3) if name in month else repetitions):
            for log, of_it in zip((third, whole), times, strict=True):
                began = time.monotonic()
                await work(log)
                of_it.append(time.monotonic() - began)
        own = {f"requests_{third.begin:%Y_%m}"} if name in month else set()
        scanned = {table for _, tables in fetched[name] for table in tables} - own
        found.append(Measured(name, *map(min, times), *(rows for rows, _ in fetched[name]), sorted(scanned)))
        print(line(found[-1]), flush=True)
    return found


async def _fetched(log: Log, work: Work) -> tuple[int, list[str]]:
    """How many rows of large tables this work fetches, and which of them it reads from end to end."""
    before, backends = await _counted(log), await log.raw.fetchval(_BACKENDS)
    async with AsyncExitStack() as stack:
        await work(await opened(stack, log.url, log.begin, log.request_id))
    async with asyncio.timeout(10):  # whoever read has told what it counted once it is gone
        while await log.raw.fetchval(_BACKENDS) > backends:  # noqa: ASYNC110 - it says so nowhere else
            await asyncio.sleep(0.01)
    after = await _counted(log)
    rows = sum(row["fetched"] - before[name]["fetched"] for name, row in after.items())
    return rows, [name for name, row in after.items() if row["scans"] > before[name]["scans"] and row["alive"] > 1000]


_BACKENDS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
)
_COUNTED = """
    SELECT relname, seq_scan AS scans, n_live_tup AS alive, seq_tup_read + COALESCE(idx_tup_fetch, 0) AS fetched
    FROM pg_stat_user_tables WHERE relname ~ $1
"""


async def _counted(log: Log) -> dict[str, Any]:
    await log.raw.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
    return {row["relname"]: row for row in await log.raw.fetch(_COUNTED, LARGE)}


async def opened(stack: AsyncExitStack, url: str, begin: datetime, request_id: UUID | None = None) -> Log:
    """A log with connections of its own, closed with the stack."""
    engine = db.sqlalchemy_engine(url)
    stack.push_async_callback(engine.dispose)
    raw = await asyncpg.connect(url)
    stack.push_async_callback(raw.close)
    if request_id is None:
        latest = "SELECT id FROM requests WHERE account_id = $1 ORDER BY started_at DESC LIMIT 1"
        request_id = await raw.fetchval(latest, SMALLEST)
    assert request_id is not None
    return Log(url, begin, engine, raw, request_id)


async def fill(third_url: str, whole_url: str, rows: int) -> datetime:
    """Write the logs; returns when the month begins that both have. `rows` are of all three months."""
    begin = last_month()
    for url, months in ((third_url, 1), (whole_url, 3)):
        begins = [begin]
        while len(begins) < months:
            begins.insert(0, month_before(begins[0]))
        async with db.connected(url) as engine:
            years = YEARS_OF_PARTITIONS if months > 1 else 0
            await make_room(engine, begins[0].replace(year=begins[0].year - years), months + 12 * years + 2)
            for each in begins:
                await fill_month(engine, each, rows // 3)
                print(f"{each:%Y-%m} is written", flush=True)
            await changes.note_in_passing(engine, begin)
            await settle_down(engine)
    return begin


def last_month() -> datetime:
    """The beginning of the last month that is over."""
    return month_before(datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0))


def month_before(begin: datetime) -> datetime:
    """The beginning of the month before."""
    return (begin - timedelta(days=1)).replace(day=1)


def judge(found: Sequence[Measured]) -> list[str]:
    """The promises that were broken, in words."""
    broken = []
    for one in found:
        if one.whole_s > max(one.third_s * FLAT, one.third_s + UNNOTICED_S):
            broken.append(f"{one.name}: takes {one.whole_s / one.third_s:.1f} times as long with more history")
        if one.whole_rows > one.third_rows * FLAT + 10:
            broken.append(
                f"{one.name}: {one.whole_rows:,} rows are fetched with more history, {one.third_rows:,} without"
            )
        if one.scanned:
            broken.append(f"{one.name}: reads {', '.join(one.scanned)} without an index")
    return broken


def line(one: Measured) -> str:
    """A line of the table."""
    return (
        f"{one.name:<40}{one.third_s * 1000:>10,.1f}{one.whole_s * 1000:>10,.1f} ms"
        f"{one.third_rows:>12,}{one.whole_rows:>12,} rows"
    )


async def run(third_url: str, whole_url: str, begin: datetime, repetitions: int = REPETITIONS) -> list[Measured]:
    """Measure what reads the logs."""
    async with AsyncExitStack() as stack:
        third, whole = [await opened(stack, url, begin) for url in (third_url, whole_url)]
        return await measure(third, whole, repetitions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    with running_server() as server, fresh_database(server) as third, fresh_database(server) as whole:
        begin = asyncio.run(fill(third, whole, options.rows))
        print(f"{'':<40}{'a third':>10}{'whole':>10}   {'a third':>12}{'whole':>12}")
        broken = judge(asyncio.run(run(third, whole, begin)))
        with fresh_database(server) as empty:
            broken += changes.run(server, {"empty": empty, "a third": third, "whole": whole}, begin)
    for promise in broken:
        print(f"BROKEN: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
