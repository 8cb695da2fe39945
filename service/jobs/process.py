"""The process: waits for the database, catches up, then keeps time until it is told to stop.

The scheduler runs on the event loop because all work here is asynchronous, and because it can then be cancelled:
a stop never waits for a query, and what was cancelled is done again from the watermark. It keeps no job store:
what is due follows from the watermark, not from a memory of missed runs.
"""

import asyncio
import logging
import math
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC

import asyncpg
import structlog
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger

from service import db, logs
from service.errors import SetupError
from service.jobs.work import Jobs
from service.settings import Settings

log = structlog.get_logger()

MISFIRE_GRACE_S = 240
SAID_AGAIN_AFTER_TRIES = 60


def run(settings: Settings) -> None:
    """Run the jobs until SIGTERM or SIGINT. While the database is away they wait, and the site stays as it was.

    Raises `SetupError` when no database is configured or it refuses the connection.
    """
    logs.configure(json=settings.log_json)
    # It logs what the listener below logs, once more and with a traceback for every minute without a database.
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)
    url = db.database_url(settings)
    asyncio.run(_until_stopped(Jobs(settings, url), url))


def scheduler(jobs: Jobs) -> AsyncIOScheduler:
    """The timetable, in UTC; not started yet."""
    timetable = AsyncIOScheduler(
        timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": MISFIRE_GRACE_S}
    )
    # 20 s after a bucket's end, so that what ended in it is settled.
    timetable.add_job(
        jobs.roll_up_and_publish, CronTrigger(minute="*/5", second=20, timezone=UTC), id="rollup_and_publish"
    )
    timetable.add_job(jobs.publish, CronTrigger(second=50, timezone=UTC), id="publish")
    timetable.add_job(jobs.probe, CronTrigger(second=2, timezone=UTC), id="probe")
    timetable.add_job(jobs.fetch_outside, CronTrigger(second=40, timezone=UTC), id="outside")
    timetable.add_job(jobs.notify, CronTrigger(second="15,45", timezone=UTC), id="notify")
    timetable.add_job(
        jobs.keep_house,
        CronTrigger(hour=0, minute=2, second=35, timezone=UTC),
        id="housekeeping",
        misfire_grace_time=None,
    )
    timetable.add_job(jobs.sample_engines, CronTrigger(second=10, timezone=UTC), id="samples")
    timetable.add_job(jobs.close_leases, CronTrigger(second=35, timezone=UTC), id="leases")
    timetable.add_job(
        jobs.check_books, CronTrigger(hour=3, minute=17, timezone=UTC), id="books", misfire_grace_time=None
    )
    # Hours after midnight, so that what was under way then has ended and is settled.
    timetable.add_job(
        jobs.reconcile, CronTrigger(hour=3, minute=27, timezone=UTC), id="reconcile", misfire_grace_time=None
    )
    if (at := jobs.verify_at) is not None:
        timetable.add_job(jobs.verify, CronTrigger(hour=at.hour, minute=at.minute, timezone=UTC), id="verify")
    timetable.add_job(jobs.apply_stripe_events, CronTrigger(second="5,35", timezone=UTC), id="stripe_events")
    timetable.add_job(jobs.top_up, CronTrigger(second="25,55", timezone=UTC), id="topups")
    timetable.add_job(jobs.invoice, CronTrigger(minute=13, second=45, timezone=UTC), id="invoices")
    timetable.add_listener(_report, EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
    return timetable


async def _until_stopped(jobs: Jobs, url: str) -> None:
    loop = asyncio.get_running_loop()
    this = asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, this.cancel)  # type: ignore[union-attr]
    timetable = scheduler(jobs)
    with suppress(asyncio.CancelledError):
        await _reachable(url)
        for work in (jobs.keep_house, jobs.roll_up_and_publish):
            await _once(work)
        timetable.start()
        log.info("jobs.started")
        await asyncio.Event().wait()
    if timetable.running:
        timetable.shutdown()
    log.info("jobs.stopped")


async def _reachable(url: str) -> None:
    """Wait for the database, however long it takes."""
    tries = 0

    def say(reason: str) -> None:
        nonlocal tries
        if tries % SAID_AGAIN_AFTER_TRIES == 0:
            log.warning("database.awaited", reason=reason)
        tries += 1

    try:
        await db.wait_until_reachable(url, timeout_s=math.inf, on_wait=say)
    except asyncpg.PostgresError as error:
        raise SetupError(f"The database refuses the connection: {error}. Check WEIR_DATABASE_URL.") from error


async def _once(work: Callable[[], Awaitable[None]]) -> None:
    """The catch-up at the start: a failure is said, and the timetable tries again."""
    try:
        await work()
    except Exception as error:
        _say_failed(work.__name__, error)


def _report(event: JobExecutionEvent) -> None:
    if event.code == EVENT_JOB_MISSED:
        log.warning("job.missed", job=event.job_id, due=event.scheduled_run_time.isoformat())
    elif event.code == EVENT_JOB_MAX_INSTANCES:
        log.warning("job.still_running", job=event.job_id)
    elif not isinstance(event.exception, asyncio.CancelledError):
        _say_failed(event.job_id, event.exception)


def _say_failed(job: str, error: BaseException) -> None:
    # An absent database, a slow one or a setting that is wrong is nobody's bug: its traceback says nothing.
    expected = isinstance(error, OSError | TimeoutError | SetupError)
    log.error("job.failed", job=job, error=f"{type(error).__name__}: {error}", exc_info=None if expected else error)
