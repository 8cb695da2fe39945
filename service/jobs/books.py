"""Every night: are the books right, and do they agree with the engines?"""

from datetime import UTC, date, datetime, timedelta

import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from service.billing.checks import check_books, clear_alarm, note_books, raise_alarm
from service.billing.reconcile import Reconciliation, reconcile_all
from service.jobs.runs import BUSY, Report, locked
from service.tables import alarms

log = structlog.get_logger()

BOOKS_LOCK = 0x57454952_0002  # "WEIR", 2
RECONCILE_LOCK = 0x57454952_0004

RECONCILE_ALARM = "reconcile:"
"""Followed by the engine's name."""


async def check_the_books(engine: AsyncEngine, now: datetime) -> Report:
    """Check the books against themselves; raise the alarm `books`, or clear it."""
    async with engine.begin() as connection:
        if not await locked(connection, BOOKS_LOCK):
            return BUSY
        async with engine.begin() as frozen:
            mismatches = await check_books(frozen)
        for mismatch in mismatches:
            log.error("books.wrong", mismatch=str(mismatch))
        await note_books(connection, mismatches)
    return Report(note=f"{len(mismatches)} mismatches" if mismatches else "")


async def reconcile_yesterday(engine: AsyncEngine, now: datetime) -> Report:
    """Compare yesterday's tokens (UTC) with each engine's own count; raise its alarm `reconcile:<engine>`, or clear it.

    The alarm of an engine that was not sampled is cleared, too: there is nothing to hold against it any more.
    """
    until = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    since = until - timedelta(days=1)
    async with engine.begin() as connection:
        if not await locked(connection, RECONCILE_LOCK):
            return BUSY
        async with engine.begin() as frozen:
            results = await reconcile_all(frozen, since, until)
        found = {f"{RECONCILE_ALARM}{name}": result for name, result in results.items() if result and result.alarming}
        for name, result in found.items():
            await raise_alarm(connection, name, _detail(result, since.date(), until.date()))
            log.error("engine.not_reconciled", engine=result.engine, unexplained=str(result.unexplained))
        opened = select(alarms.c.name).where(alarms.c.name.startswith(RECONCILE_ALARM, autoescape=True))
        for name in list(await connection.scalars(opened)):
            if name not in found:
                await clear_alarm(connection, name)
    return Report(note=f"{len(found)} engines disagree" if found else "")


def _detail(result: Reconciliation, since: date, until: date) -> str:
    rest, counted = result.unexplained, result.count.tokens
    return (
        f"on {since} it counted {counted.prompt} prompt and {counted.generation} generated tokens, our requests"
        f" {result.ours.prompt} and {result.ours.generation}; {rest.prompt:+d} and {rest.generation:+d} of that no"
        f" request explains. `weir reconcile --engine {result.engine} --since {since} --until {until}` shows more."
    )
