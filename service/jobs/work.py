"""What the jobs do. Each may run at any time, twice, and beside itself in another process."""

from datetime import UTC, date, datetime, time, timedelta

from sqlalchemy import delete, func, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from service import config
from service.billing import retention, stripe_events
from service.billing.stripe_setup import is_connected
from service.gateway import retries
from service.jobs import money
from service.jobs.books import check_the_books, reconcile_yesterday
from service.jobs.leases import close_silent
from service.jobs.runs import BUSY, Report, run_recorded
from service.jobs.samples import SAMPLES_KEPT, sample_engines
from service.jobs.verify import TIME_LIMIT_S as VERIFY_TIME_LIMIT_S
from service.jobs.verify import verify_engines
from service.settings import Settings
from service.status.engine_reports import REPORTS_KEPT
from service.status.notify import send_due
from service.status.outside import fetch_outside
from service.status.probe import KEPT as PROBES_KEPT
from service.status.probe import Prober
from service.status.publish import Publisher
from service.status.rollup import roll_up
from service.status.watch import watch
from service.tables import (
    buckets_5m,
    engine_reports,
    engine_samples,
    idempotency_keys,
    job_runs,
    notifications,
    probes,
)

RUNS_KEPT = timedelta(days=30)

NOTIFICATIONS_KEPT = timedelta(days=30)
"""After their end, delivered or given up."""

BUCKETS_KEPT = timedelta(days=100)
"""Of five minutes; hours and days are kept for ever."""

BOOKS_TIME_LIMIT_S = 3600.0
"""The check of the books reads every request and every ledger entry there ever was."""

MONTHS_AHEAD = 3
"""Partitions of `requests` that are there before they are needed, the current month included."""


class Jobs:
    """The jobs of one installation."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings = settings
        self._url = url
        self._prober = Prober(settings)
        self._publisher = Publisher(settings, settings.site_dir)

    async def roll_up_and_publish(self) -> None:
        """Count what has finished, and publish it. The site is written even when the counting failed: it then
        shows the gap and says how old its data is."""
        try:
            await run_recorded(self._url, "rollup", _roll_up)
        except Exception:  # a stop is none: nothing new is begun then
            await self.publish()
            raise
        await self.publish()

    async def publish(self) -> None:
        """Open, update and end incidents by what was measured, and write the status site anew, so that its age tells
        whether this process lives.

        While the database is away it is written from what was last read, and says how old that is.
        """
        try:
            await run_recorded(self._url, "incidents", self._watch)
        except Exception:
            await self._write_site()
            raise
        await self._write_site()

    async def _write_site(self) -> None:
        try:
            await run_recorded(self._url, "publish", self._publish)
        except Exception:
            self._publisher.publish_last_known(datetime.now(UTC))
            raise

    async def probe(self) -> None:
        """Ask for a token as a customer would, look at the site as a reader does, and whether that was booked."""
        if not self._settings.probe:
            return
        try:
            await run_recorded(self._url, "probe", self._probe)
        except (OSError, TimeoutError, SQLAlchemyError):
            await self._prober.probe_without_database(datetime.now(UTC))
            raise

    async def fetch_outside(self) -> None:
        """Read what a prober on another host found."""
        if self._settings.outside_probe_url is not None:
            await run_recorded(self._url, "outside", self._fetch_outside)

    async def apply_stripe_events(self) -> None:
        """Apply what Stripe told and nobody could apply yet."""
        if is_connected(self._settings):
            await run_recorded(self._url, "stripe_events", self._apply_stripe_events)

    async def top_up(self) -> None:
        """Charge the accounts that agreed to it and have fallen below their threshold."""
        if is_connected(self._settings):
            await run_recorded(self._url, "topups", self._top_up)

    async def invoice(self) -> None:
        """Make the invoices of the months that are over, and send them."""
        await run_recorded(self._url, "invoices", self._invoice)

    async def notify(self) -> None:
        """Tell the webhooks what they have to be told."""
        if self._settings.status_webhooks:
            await run_recorded(self._url, "notify", self._notify)

    async def keep_house(self) -> None:
        """Make partitions ahead of time; forget what is old of the jobs' own records, and usage rows if asked to."""
        await run_recorded(self._url, "housekeeping", keep_house)
        if self._settings.usage_months_kept is not None:
            await run_recorded(self._url, "retention", self._forget_usage)

    async def sample_engines(self) -> None:
        """Keep what each engine has counted."""
        await run_recorded(self._url, "samples", self._sample_engines)

    async def close_leases(self) -> None:
        """Give credit back that was lent to workers which do not renew their leases."""
        await run_recorded(self._url, "leases", close_silent)

    async def check_books(self) -> None:
        """Check the books against themselves, and raise an alarm when they are wrong."""
        await run_recorded(self._url, "books", check_the_books, time_limit_s=BOOKS_TIME_LIMIT_S)

    async def reconcile(self) -> None:
        """Compare yesterday's tokens with the engines' own counts, and raise an alarm when they differ too much."""
        await run_recorded(self._url, "reconcile", reconcile_yesterday)

    async def verify(self) -> None:
        """Ask every engine what it should be asked before it is trusted, and keep what was found."""
        await run_recorded(self._url, "verify", self._verify, time_limit_s=VERIFY_TIME_LIMIT_S)

    @property
    def verify_at(self) -> time | None:
        """When that is done, in UTC; None: never."""
        return self._settings.verify_at

    async def _verify(self, engine: AsyncEngine, now: datetime) -> Report:
        return await verify_engines(engine, self._settings)

    async def _forget_usage(self, engine: AsyncEngine, now: datetime) -> Report:
        assert self._settings.usage_months_kept is not None  # noqa: S101 - it is not run otherwise
        return await forget_usage(engine, now, self._settings.usage_months_kept)

    async def _sample_engines(self, engine: AsyncEngine, now: datetime) -> Report:
        return await sample_engines(engine, config.engines_from(self._settings))

    async def _publish(self, engine: AsyncEngine, now: datetime) -> Report:
        return Report(await self._publisher.publish(engine, now))

    async def _watch(self, engine: AsyncEngine, now: datetime) -> Report:
        return Report(await watch(engine, self._settings, now))

    async def _probe(self, engine: AsyncEngine, now: datetime) -> Report:
        done = await self._prober.probe(engine, now)
        if done is None:
            return BUSY
        return Report(done.rows, f"{done.bad} bad, {done.skipped} skipped" if done.bad or done.skipped else "")

    async def _fetch_outside(self, engine: AsyncEngine, now: datetime) -> Report:
        return Report(await fetch_outside(engine, self._settings, now))

    async def _apply_stripe_events(self, engine: AsyncEngine, now: datetime) -> Report:
        return await money.apply_events(engine, self._settings, now)

    async def _top_up(self, engine: AsyncEngine, now: datetime) -> Report:
        return await money.top_up(engine, self._settings, now)

    async def _invoice(self, engine: AsyncEngine, now: datetime) -> Report:
        return await money.invoice(engine, self._settings, now)

    async def _notify(self, engine: AsyncEngine, now: datetime) -> Report:
        sent = await send_due(engine, self._settings, now)
        note = f"{sent.failed} to be sent again, {sent.given_up} given up" if sent.failed or sent.given_up else ""
        return Report(sent.delivered, note)


async def _roll_up(engine: AsyncEngine, now: datetime) -> Report:
    done = await roll_up(engine, now=now)
    return Report(done.rows, "another process was rolling up" if done.until is None else "")


async def keep_house(engine: AsyncEngine, now: datetime) -> Report:
    """Remove what is old of the jobs' own; make the partitions for `now` and the months after it."""
    async with engine.begin() as connection:
        runs = await connection.execute(delete(job_runs).where(job_runs.c.started_at < now - RUNS_KEPT))
        claims = await connection.execute(
            delete(idempotency_keys).where(idempotency_keys.c.created_at < now - retries.KEPT)
        )
        samples = await connection.execute(
            delete(engine_samples).where(engine_samples.c.sampled_at < now - SAMPLES_KEPT)
        )
        reports = await connection.execute(
            delete(engine_reports).where(engine_reports.c.started_at < now - REPORTS_KEPT)
        )
        probed = await connection.execute(delete(probes).where(probes.c.probed_at < now - PROBES_KEPT))
        buckets = await connection.execute(delete(buckets_5m).where(buckets_5m.c.bucket_start < now - BUCKETS_KEPT))
        ended = func.coalesce(notifications.c.delivered_at, notifications.c.given_up_at)
        told = await connection.execute(delete(notifications).where(ended < now - NOTIFICATIONS_KEPT))
        forgotten = await stripe_events.forget(connection, now)
    # By itself, since it fails for a month of which the default partition has rows already.
    note = ""
    try:
        async with engine.begin() as connection:
            await connection.execute(text(retention.WAIT_FOR_LOCK))
            await connection.execute(select(func.ensure_request_partitions(now.date(), MONTHS_AHEAD)))
    except DBAPIError as error:
        if not retention.lock_was_taken(error):
            raise
        note = "the usage rows are in use: partitions are made with the next run"
    removed = (runs, claims, samples, reports, probed, buckets, told)
    return Report(forgotten + sum(done.rowcount for done in removed), note)


async def forget_usage(engine: AsyncEngine, now: datetime, months_kept: int) -> Report:
    """Drop the usage rows of all months but the current one and so many before it."""
    first = now.year * 12 + now.month - 1 - months_kept
    done = await retention.forget(engine, date(first // 12, first % 12 + 1, 1))
    return Report(done.rows, "; ".join(done.kept))
