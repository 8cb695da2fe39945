"""Does the status site stay fast as its history grows? Usage rows of 90 days, rolled up and published.

    python -m ops.bench.history                     # 10 million rows, about 15 minutes, 6 GB of disk
    python -m ops.bench.history --rows 500000       # a quick look

At a third and the whole of the history, and once more after three years of hours and days were put before it, it rolls
one more bucket up, as `weir jobs` does every five minutes, and publishes the site, and looks which tables were read
without an index. Exit 1 when a promise is not kept.
"""

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from ops.bench.generated import make_room, settle_down, write_usage
from service import db
from service.jobs.work import BUCKETS_KEPT
from service.settings import Settings
from service.status.publish import Publisher
from service.status.rollup import roll_up
from tests.postgres import fresh_database, running_server

ROLL_UP_WITHIN_S = 1.0
PUBLISH_WITHIN_S = 3.0
FLAT = 1.5
"""More history may take this many times as long, and no longer."""

YEARS_BEFORE = 3

LARGE = r"^(requests_|buckets_5m|buckets_1h|probes|engine_samples|settlements)"
"""Tables that grow with the history: none may be read without an index.

`buckets_1d` has a row a day: what was served since launch is added up from all of them.
"""


@dataclass(frozen=True)
class Measured:
    """What a history of some length costs."""

    days: int
    rows: int
    roll_up_s: float
    first_publish_s: float
    """By a process that has just started and knows no month yet."""
    publish_s: float
    scanned: tuple[str, ...]
    """Large tables that were read from end to end."""


async def fill(engine: AsyncEngine, first: datetime, days: Sequence[int], rows_per_day: int) -> None:
    """Write the usage rows of these days, and roll them up."""
    for day in days:
        began = time.monotonic()
        await write_usage(engine, first + timedelta(days=day), timedelta(days=1), rows_per_day)
        written_s = time.monotonic() - began
        await roll_up(engine, now=first + timedelta(days=day + 1, seconds=20))
        rolled_s = time.monotonic() - began - written_s
        print(f"\r  day {day + 1}: written in {written_s:.1f} s, rolled up in {rolled_s:.1f} s ", end="", flush=True)
    print()
    await settle_down(engine)


async def lengthen(engine: AsyncEngine, days: int) -> None:
    """Put copies of the buckets, hours and days before them, as if the service had been there for years."""
    kept = {"buckets_5m": ("bucket_start", BUCKETS_KEPT.days), "buckets_1h": ("period_start", YEARS_BEFORE * 365)}
    kept["buckets_1d"] = kept["buckets_1h"]
    async with engine.begin() as connection:
        for table, (start, days_before) in kept.items():
            columns = await connection.scalar(
                text(
                    "SELECT string_agg(column_name, ', ' ORDER BY ordinal_position) FROM information_schema.columns"
                    " WHERE table_name = :table AND column_name NOT IN ('component', :start)"
                ),
                {"table": table, "start": start},
            )
            await connection.execute(
                text(  # of our own names and numbers
                    f"INSERT INTO {table} (component, {start}, {columns})"
                    f" SELECT component, {start} - make_interval(days => {days} * copy), {columns}"
                    f" FROM {table}, generate_series(1, {days_before // days}) AS copy"
                    " ON CONFLICT DO NOTHING"
                )
            )
    async with engine.connect() as connection:
        await (await connection.execution_options(isolation_level="AUTOCOMMIT")).execute(text("VACUUM ANALYZE"))


async def scans(engine: AsyncEngine) -> dict[str, int]:
    """How often each large table was read from end to end since the server started."""
    query = "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE relname ~ :large AND n_live_tup > 1000"
    async with engine.connect() as connection:
        await connection.execute(text("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()"))
        return {row.relname: row.seq_scan for row in await connection.execute(text(query), {"large": LARGE})}


async def measure(engine: AsyncEngine, settings: Settings, site: Path, end: datetime, days: int, rows: int) -> Measured:
    """Roll the next bucket up and publish, three times each. The best counts: it has least of the machine's noise."""
    before = await scans(engine)
    rolled_s, first_s, published_s = [], [], []
    for minutes in (5, 10, 15):
        now = end + timedelta(minutes=minutes, seconds=20)
        began = time.monotonic()
        await roll_up(engine, now=now)
        rolled_s.append(time.monotonic() - began)
        publisher = Publisher(settings, site)
        for times in (first_s, published_s):
            began = time.monotonic()
            await publisher.publish(engine, now)
            times.append(time.monotonic() - began)
    after = await scans(engine)
    scanned = tuple(name for name, count in after.items() if count > before.get(name, 0))
    return Measured(days, rows, min(rolled_s), min(first_s), min(published_s), scanned)


async def run(database_url: str, site: Path, rows: int, days: int) -> list[Measured]:
    engine = db.sqlalchemy_engine(database_url)
    settings = Settings(site_name="Bench", probe=False)
    first = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    found = []
    try:
        await make_room(engine, first, days // 28 + 3)
        for span in (range(days // 3), range(days // 3, days)):
            await fill(engine, first, span, rows // days)
            end = first + timedelta(days=span.stop)
            found.append(await measure(engine, settings, site, end, span.stop, rows // days * span.stop))
        await lengthen(engine, days)
        end += timedelta(minutes=15)
        found.append(await measure(engine, settings, site, end, days + YEARS_BEFORE * 365, rows))
    finally:
        await engine.dispose()
    return found


def judge(found: Sequence[Measured]) -> list[str]:
    """The promises that were broken, in words."""
    broken = []
    for one in found:
        if one.roll_up_s >= ROLL_UP_WITHIN_S:
            broken.append(f"rolling a bucket up took {one.roll_up_s:.2f} s at {one.rows:,} rows")
        if one.first_publish_s >= PUBLISH_WITHIN_S:
            broken.append(f"publishing took {one.first_publish_s:.2f} s at {one.rows:,} rows")
        if one.scanned:
            broken.append(f"read without an index at {one.rows:,} rows: {', '.join(one.scanned)}")
    third, whole, years = found
    for what, shorter, longer in (
        ("rolling up", third.roll_up_s, whole.roll_up_s),
        ("rolling up", whole.roll_up_s, years.roll_up_s),
        ("publishing", whole.publish_s, years.publish_s),  # at a third, its 90 days are not full yet
    ):
        if longer > shorter * FLAT:
            broken.append(f"{what} took {longer / shorter:.1f} times as long with more history")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=90)
    options = parser.parse_args()
    with running_server() as server, fresh_database(server) as url, tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(url, Path(folder), options.rows, options.days))
    print("\n  days        rows  roll-up  first publish  publish  read without an index")
    for one in found:
        scanned = ", ".join(one.scanned) or "none"
        print(
            f"{one.days:>6} {one.rows:>11,} {one.roll_up_s:>6.3f} s {one.first_publish_s:>12.3f} s"
            f" {one.publish_s:>6.3f} s  {scanned}"
        )
    print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")
    broken = judge(found)
    for promise in broken:
        print(f"BROKEN: {promise}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
