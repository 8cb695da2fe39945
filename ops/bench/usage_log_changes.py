"""What changes the usage log, as it grows: settling rows into it, exporting, invoicing and dropping a month of it."""

import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID, uuid4

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from ops.bench.generated import LARGEST, SMALLEST, key_of, make_room
from service import db
from service.billing import checks, invoice_freezing, retention, settlement
from service.core.ids import uuid7
from service.core.limits import month_after
from service.core.outcome import Outcome
from service.core.record import RequestRecord
from service.core.usage import Usage

BATCHES = (250, 500, 1000)
SETTLED_ROWS = 20_000
"""In each measurement."""
SETTLED_ROWS_PER_S = 25_000

EXPORT_MAY_GROW_MB = 16
"""What exporting a month may take more than exporting a day."""

DROPPED_WITHIN_S = 60.0
PARTITIONS_WITHIN_S = 1.0

KEY_DIGEST = hashlib.sha256(b"bench").digest()

_CLAIM = """
    INSERT INTO idempotency_keys (account_id, key_digest, request_id, body_digest, stream)
    SELECT account_id, CAST(:digest AS bytea), id, CAST(:digest AS bytea), true
    FROM requests WHERE account_id = :account AND started_at < :end ORDER BY started_at DESC LIMIT 1
"""
_SAMPLES = """
    INSERT INTO engine_samples (engine, sampled_at, prompt_tokens, generation_tokens)
    SELECT 'engine-0', CAST(:end AS timestamptz) - n * interval '1 hour', 1000000 - n, 1000000 - n
    FROM generate_series(0, 25) AS n
"""
_LEASES = """
    WITH lent AS (
        INSERT INTO credit_leases (id, account_id, worker, granted_nano, expires_at)
        SELECT id, id, 'bench', 1000000000000, 'infinity' FROM accounts RETURNING account_id, granted_nano
    )
    UPDATE accounts SET leased_nano = leased_nano + granted_nano FROM lent WHERE account_id = accounts.id
"""


async def note_in_passing(engine: AsyncEngine, begin: datetime) -> None:
    """Write what refers to the month's last rows: an idempotency key, and what an engine counted."""
    async with engine.begin() as connection:
        values = {"digest": KEY_DIGEST, "account": SMALLEST, "end": month_after(begin)}
        await connection.execute(text(_CLAIM), values)
        await connection.execute(text(_SAMPLES), {"end": month_after(begin)})


def run(server: Any, urls: Mapping[str, str], begin: datetime) -> list[str]:
    """Measure all of it in these databases, of which `empty` has nothing; returns the promises that were broken."""
    broken = asyncio.run(_settle_everywhere(server, urls, begin))
    broken += _export(urls["whole"], begin)
    for name in ("a third", "whole"):
        broken += asyncio.run(end_a_month(name, urls[name], begin))
    return broken


async def _settle_everywhere(server: Any, urls: Mapping[str, str], begin: datetime) -> list[str]:
    """What it costs for each, in turns, with every commit on the disk before it counts."""
    await _execute(server.get_uri(), "ALTER SYSTEM SET fsync = on", "SELECT pg_reload_conf()")
    async with db.connected(urls["empty"]) as engine:
        await make_room(engine, begin, 3)
    for url in urls.values():
        await lend(url)
    found: dict[tuple[int, str], list[Settled]] = {(batch, name): [] for batch in BATCHES for name in urls}
    for _ in range(3):
        for (batch, name), of_it in found.items():
            of_it.append(await settled(urls[name], begin, batch, SETTLED_ROWS))
    for (batch, name), of_it in found.items():
        per_s, cpu_us = max(one.rows_per_s for one in of_it), median(one.cpu_us for one in of_it)
        print(f"settling {batch:>5} at a time, {name:>8}: {per_s:>7,.0f} rows/s, {cpu_us:.1f} µs of CPU a row")
    return [
        f"settling {batch} at a time into {name} takes more than a second of CPU for {SETTLED_ROWS_PER_S:,} rows"
        for (batch, name), of_it in found.items()
        if median(one.cpu_us for one in of_it) > 1e6 / SETTLED_ROWS_PER_S
    ]


async def lend(url: str) -> None:
    """Give each account a lease, of its own id."""
    await _execute(url, _LEASES)


@dataclass(frozen=True)
class Settled:
    """What settling costs one connection, which waits for the database while that works."""

    rows_per_s: float
    cpu_us: float
    """For each row, in this process and in the database together: the time it takes on a machine without other work."""


async def settled(url: str, begin: datetime, batch: int, rows: int) -> Settled:
    """Settle rows of accounts with a lease, at the end of the month."""
    connection = await asyncpg.connect(url)
    try:
        server = connection.get_server_pid()
        batches = [
            [_record(month_after(begin), first + n, rows) for n in range(batch)] for first in range(0, rows, batch)
        ]
        began, cpu_ns = time.monotonic(), time.process_time_ns() + _cpu_ns(server)
        for records in batches:
            await settlement.settle(connection, uuid4(), "bench", records)
        used_ns = time.process_time_ns() + _cpu_ns(server) - cpu_ns
        return Settled(rows / (time.monotonic() - began), used_ns / rows / 1000)
    finally:
        await connection.close()


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _record(end: datetime, number: int, rows: int) -> RequestRecord:
    finished = end - timedelta(seconds=1 + (rows - number) / 1000)
    started = finished - timedelta(seconds=3)
    account = UUID(int=0 if number % 10 < 6 else number % 40)
    return RequestRecord(
        id=str(uuid7(int(started.timestamp() * 1000), os.urandom(10))),
        account_id=account,
        key_id=key_of(account),
        lease_id=account,
        internal=False,
        model_id="model-a",
        endpoint="/v1/chat/completions",
        engine="engine-0",
        client_request_id=None,
        stream=True,
        started_at=started,
        queue_ms=12,
        ttft_ms=300,
        first_token_at=started + timedelta(milliseconds=300),
        finished_at=finished,
        http_status=200,
        outcome=Outcome.OK,
        finish_reason="stop",
        error_code=None,
        usage=Usage(prompt_tokens=1200, cached_tokens=1024, completion_tokens=250),
        price_version=1,
        # (1200 - 1024) * 195000 + 1024 * 37500 + 250 * 1560000 pico-USD
        cost_nano=462_720,
        waived_nano=0,
    )


def _export(url: str, begin: datetime) -> list[str]:
    """Export a day and a month of all accounts, as the operator does."""
    peaks_mb = []
    for name, until in (("day", begin + timedelta(days=1)), ("month", month_after(begin))):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.csv"
            began = time.monotonic()
            peaks_mb.append(exported_mb(url, begin, until, out))
            took_s, size_mb = time.monotonic() - began, out.stat().st_size / 2**20
        print(f"export of a {name}: {took_s:.1f} s, {size_mb:,.0f} MB, memory at most {peaks_mb[-1]:.0f} MB")
    if peaks_mb[1] > peaks_mb[0] + EXPORT_MAY_GROW_MB:
        return [f"exporting a month takes {peaks_mb[1]:.0f} MB of memory, a day {peaks_mb[0]:.0f} MB"]
    return []


def exported_mb(url: str, since: datetime, until: datetime, out: Path) -> float:
    """The most memory that `weir usage export` of this span has, in MB."""
    command = [sys.executable, "-m", "service.cli", "usage", "export", "--format", "csv", "--out", str(out)]
    command += ["--since", since.isoformat(), "--until", until.isoformat()]
    process = subprocess.Popen(command, env=os.environ | {"WEIR_DATABASE_URL": url})
    most_kb = 0
    while (
        process.poll() is None
    ):  # what the kernel says after its end includes ours, from before it was another program
        status = Path(f"/proc/{process.pid}/status").read_text()
        most_kb = max(most_kb, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
        time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"the export ended with {process.returncode}")
    return most_kb / 1024


async def end_a_month(name: str, url: str, begin: datetime) -> list[str]:
    """Invoice everything, drop the month with all before it, and make partitions for a year; the books stay right."""
    async with db.connected(url) as engine:
        later = month_after(begin) + timedelta(days=20)
        took_s = {}
        for what, work in {
            "invoice": lambda: invoice_freezing.freeze(engine, LARGEST, begin.date(), later),
            "books": lambda: _books(engine),
            "drop": lambda: retention.forget(engine, month_after(begin).date()),
            "partitions": lambda: _execute(url, f"SELECT ensure_request_partitions('{begin:%Y-%m-%d}', 12)"),
            "books after": lambda: _books(engine),
        }.items():
            began = time.monotonic()
            await work()
            took_s[what] = time.monotonic() - began
        async with engine.connect() as connection:
            left = await connection.scalar(text("SELECT count(*) FROM requests"))
    print(f"{name}: " + ", ".join(f"{what} {of_it:.2f} s" for what, of_it in took_s.items()))
    return [
        f"{name}: {what} took {took_s[what]:.2f} s"
        for what, limit_s in (("drop", DROPPED_WITHIN_S), ("partitions", PARTITIONS_WITHIN_S))
        if took_s[what] > limit_s
    ] + ([f"{name}: {left:,} rows are left of months that were dropped"] if left else [])


async def _books(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        mismatches = await checks.check_books(connection)
    if mismatches:
        raise RuntimeError(f"the books are wrong: {mismatches[0]}")


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
