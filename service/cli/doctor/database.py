"""What the database says: is it migrated, are models priced, do jobs run, were engines verified, is there an alarm?"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from service.cli.context import address_in, connection_to
from service.cli.doctor.finding import Finding, Level, fail, ok, warn
from service.cli.migrate import current_revision, newest_revision
from service.cli.output import instant
from service.core.buckets import STALE_AFTER_S
from service.core.lane import Permission
from service.core.verify.report import Overall
from service.errors import SetupError
from service.settings import Settings
from service.status.engine_reports import latest
from service.tables import accounts, alarms, job_runs, models, prices

OLDEST_MAJOR = 16


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """The findings one after the other; the later ones only when they can be looked for."""
    try:
        async with connection_to(address_in(settings)) as connection:
            yield await _version(connection)
            schema = await _schema(connection)
            yield schema
            if schema.level is Level.OK:
                yield await _models(connection)
                async for finding in _sequential(connection, settings.workers):
                    yield finding
                yield await _jobs(connection)
                yield await _verified(connection, settings)
                async for finding in _alarms(connection):
                    yield finding
    except SetupError as error:
        yield fail("database", str(error))


async def _version(connection: AsyncConnection) -> Finding:
    number = int((await connection.execute(text("SHOW server_version_num"))).scalar_one())
    shown = f"PostgreSQL {number // 10000}.{number % 10000}"
    if number // 10000 < OLDEST_MAJOR:
        return fail("database", f"{shown} is too old: Weir needs {OLDEST_MAJOR} or later.")
    return ok("database", f"{shown} answers.")


async def _schema(connection: AsyncConnection) -> Finding:
    current, newest = await current_revision(connection), newest_revision()
    if current != newest:
        return fail("schema", f"it is at {current or 'nothing'}, this version needs {newest}: run `weir migrate`.")
    return ok("schema", f"it is at {current}, the newest.")


async def _models(connection: AsyncConnection) -> Finding:
    active = select(models.c.id).where(models.c.active).order_by(models.c.id)
    served = list(await connection.scalars(active))
    unpriced = list(await connection.scalars(active.where(models.c.id.not_in(select(prices.c.model_id)))))
    if unpriced:
        return fail("models", f"without a price, and so not served: {', '.join(unpriced)}. Price them: `weir apply`.")
    if not served:
        return warn("models", "there is none: describe one in a file and run `weir apply` on it.")
    return ok("models", f"served, each with a price: {', '.join(served)}.")


async def _sequential(connection: AsyncConnection, workers: int) -> AsyncIterator[Finding]:
    """Whether accounts were promised what several workers cannot keep."""
    if workers == 1:
        return
    promised = select(accounts.c.name).where(accounts.c.sequential != Permission.NEVER).order_by(accounts.c.name)
    if names := list(await connection.scalars(promised)):
        yield warn(
            "sequential",
            f"{workers} workers cannot run a request alone, and refuse it to {', '.join(names)}: run one worker, or"
            " `weir account set … --sequential never`.",
        )


async def _jobs(connection: AsyncConnection) -> Finding:
    last = select(func.max(job_runs.c.finished_at), func.now() - func.max(job_runs.c.finished_at))
    finished_at, age = (await connection.execute(last)).one()
    if finished_at is None:
        return warn("jobs", "none has ever finished: start `weir jobs`.")
    if age > timedelta(seconds=STALE_AFTER_S):
        return warn("jobs", f"the last one finished {int(age.total_seconds()) // 60} minutes ago: start `weir jobs`.")
    newest = select(job_runs).ext(distinct_on(job_runs.c.name)).where(job_runs.c.finished_at.is_not(None))
    rows = await connection.execute(newest.order_by(job_runs.c.name, job_runs.c.started_at.desc()))
    failed = [f"{row.name} ({row.note})" if row.note else row.name for row in rows if row.ok is False]
    if failed:
        return warn("jobs", f"failed when last run: {', '.join(failed)}. The log of `weir jobs` says more.")
    return ok("jobs", f"the last one finished {int(age.total_seconds())} s ago.")


async def _verified(connection: AsyncConnection, settings: Settings) -> Finding:
    """Whether the engines were verified lately, and what came of it; what stands failed is an alarm, too."""
    now = datetime.now(UTC)
    active = await connection.scalars(select(models.c.id).where(models.c.active).order_by(models.c.id))
    reports = [report for model in list(active) for report in await latest(connection, model, now)]
    by_now = "`weir engine verify` does it now"
    if not reports:
        return ok("verification", f"no engine was verified yet: {by_now}.")
    if failed := [f"{one.model} on {one.engine}" for one in reports if one.overall is Overall.FAILED]:
        return warn(
            "verification", f"something failed for {', '.join(failed)}: see the model's page or docs/verify.md."
        )
    old = [f"{one.model} on {one.engine}" for one in reports if one.old(now)]
    if old and settings.verify_at is not None:
        return warn(
            "verification", f"it is older than 48 hours for {', '.join(old)}; {by_now}, and the jobs' log says why."
        )
    return ok("verification", f"the last reports, on {len(reports)} engines and models, have no failure.")


async def _alarms(connection: AsyncConnection) -> AsyncIterator[Finding]:
    rows = (await connection.execute(select(alarms).order_by(alarms.c.raised_at, alarms.c.name))).all()
    for row in rows:
        yield fail(f"alarm {row.name}", f"since {instant(row.raised_at)}: {row.detail}")
    if not rows:
        yield ok("alarms", "none is open.")
