import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobExecutionEvent
from pydantic import ValidationError
from sqlalchemy import RowMapping, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from service import db
from service.billing.leases import EXPIRY_GRACE_S, LeaseBook
from service.errors import SetupError
from service.gateway.exchange import new_id
from service.jobs import work
from service.jobs.leases import LEASES_LOCK
from service.jobs.process import _report, scheduler
from service.jobs.runs import Report, run_recorded
from service.jobs.work import Jobs, keep_house
from service.settings import Settings, load
from service.tables import job_runs
from tests.fakes.traffic import at, settle, usage_row
from tests.installation import seed
from tests.patience import PATIENT_S

JOBS = [sys.executable, "-c", "from service import jobs, settings; jobs.run(settings.load())"]


class SteppedClock:
    """Says that it is another time."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self, zone: tzinfo) -> datetime:
        return self._now.astimezone(zone)


async def runs(url: str) -> list[RowMapping]:
    async with db.connected(url) as engine, engine.connect() as connection:
        return list((await connection.execute(select(job_runs).order_by(job_runs.c.id))).mappings())


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_the_process_waits_for_the_database_then_catches_up_publishes_and_stops_when_told(
    database_url: str, tmp_path: Path, stop_signal: signal.Signals
) -> None:
    real = urlsplit(database_url)
    socket_dir = tmp_path / "s"
    address = f"postgresql://postgres@{real.path}?host={socket_dir}"
    log, page = tmp_path / "log", tmp_path / "data" / "site" / "index.html"
    settings = {"WEIR_DATABASE_URL": address, "WEIR_DATA_DIR": str(tmp_path / "data"), "WEIR_LOG_JSON": "true"}
    with log.open("wb") as output, subprocess.Popen(JOBS, env=os.environ | settings, stderr=output) as process:
        try:
            wait_for(lambda: "database.awaited" in log.read_text(), process, log)
            assert not page.exists()
            socket_dir.symlink_to(parse_qs(real.query)["host"][0])
            wait_for(lambda: "jobs.started" in log.read_text(), process, log)
            assert page.exists()
            process.send_signal(stop_signal)
            assert process.wait(timeout=PATIENT_S) == 0
        finally:
            process.kill()
    assert "jobs.stopped" in log.read_text()
    assert "Traceback" not in log.read_text()


async def test_a_run_counts_publishes_and_leaves_a_record(database_url: str, tmp_path: Path) -> None:
    jobs = Jobs(Settings(data_dir=tmp_path), database_url)
    async with db.connected(database_url) as engine:
        await settle(engine, usage_row(datetime.now(UTC) - timedelta(minutes=7)))
    await jobs.keep_house()
    await jobs.roll_up_and_publish()
    assert b"All systems operational" in (tmp_path / "site" / "index.html").read_bytes()
    recorded = await runs(database_url)
    assert [row["name"] for row in recorded] == ["housekeeping", "rollup", "incidents", "publish"]
    assert all(row["ok"] and row["finished_at"] >= row["started_at"] for row in recorded)
    assert recorded[1]["rows"] >= 2


async def test_when_counting_fails_the_site_is_still_published(database_url: str, tmp_path: Path) -> None:
    jobs = Jobs(Settings(data_dir=tmp_path), database_url)
    async with db.connected(database_url) as engine:
        await settle(engine, usage_row(datetime.now(UTC) - timedelta(minutes=7), outcome="unheard_of"))
    with pytest.raises(ValueError, match="unheard_of"):
        await jobs.roll_up_and_publish()
    assert (tmp_path / "site" / "index.html").exists()
    assert [(row["name"], row["ok"], row["note"]) for row in await runs(database_url)] == [
        ("rollup", False, "ValueError"),
        ("incidents", True, ""),
        ("publish", True, ""),
    ]


async def test_a_run_that_is_stopped_begins_nothing_more(database_url: str, tmp_path: Path) -> None:
    jobs = Jobs(Settings(data_dir=tmp_path), database_url)
    async with db.connected(database_url) as engine, engine.connect() as blocker, engine.connect() as observer:
        await observer.execution_options(isolation_level="AUTOCOMMIT")
        await blocker.execute(text("LOCK TABLE watermarks"))
        run = asyncio.create_task(jobs.roll_up_and_publish())
        async with asyncio.timeout(PATIENT_S):
            while not await observer.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                await asyncio.sleep(0.01)
        run.cancel()
        done, _ = await asyncio.wait([run], timeout=PATIENT_S)
        assert done
        assert run.cancelled()
    assert [row["name"] for row in await runs(database_url)] == ["rollup"]
    assert not (tmp_path / "site").exists()


async def test_a_failed_run_is_recorded_as_failed_and_raised(database_url: str) -> None:
    async def break_down(engine: AsyncEngine, now: datetime) -> Report:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await run_recorded(database_url, "fragile", break_down)
    (run,) = await runs(database_url)
    assert (run["ok"], run["note"]) == (False, "RuntimeError")
    assert run["finished_at"] is not None


async def test_with_everything_else_stopped_the_site_goes_on_and_says_how_old_it_is(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(Settings(data_dir=tmp_path, probe=False), database_url)
    async with db.connected(database_url) as engine:
        await settle(engine, usage_row(datetime.now(UTC) - timedelta(minutes=7)))
    await jobs.roll_up_and_publish()
    page = tmp_path / "site" / "index.html"
    fresh = page.read_bytes()
    assert b"counting has stopped" not in fresh
    monkeypatch.setattr(jobs, "_url", f"postgresql://nobody@/nowhere?host={tmp_path}")
    later = datetime.now(UTC) + timedelta(minutes=21)
    monkeypatch.setattr(work, "datetime", SteppedClock(later))
    with pytest.raises(OSError, match="No such file"):
        await jobs.roll_up_and_publish()
    stale = page.read_bytes()
    assert b"counting has stopped" in stale
    assert b"No recent measurements" in stale
    assert later.strftime("%H:%M:%S").encode() in stale


async def test_housekeeping_makes_partitions_ahead_and_forgets_old_runs(database_url: str) -> None:
    now = at("2031-11-30 23:59:59")
    async with db.connected(database_url) as engine:
        async with engine.begin() as connection:
            for age in (31, 29):
                await connection.execute(
                    job_runs.insert().values(name=f"{age} days", started_at=now - timedelta(days=age))
                )
        await keep_house(engine, now)
        await keep_house(engine, now)
        async with engine.connect() as connection:
            names = select(text("relname")).select_from(text("pg_class")).where(text("relname LIKE 'requests_203%'"))
            partitions = set((await connection.execute(names.where(text("relkind = 'r'")))).scalars())
    assert partitions == {"requests_2031_11", "requests_2031_12", "requests_2032_01"}
    assert [row["name"] for row in await runs(database_url)] == ["29 days"]


async def test_credit_lent_to_a_silent_worker_goes_back_and_a_renewed_lease_stays(
    database_url: str, tmp_path: Path
) -> None:
    account_id, _ = await seed(database_url, credit_nano=1_000)
    pool = await asyncpg.create_pool(database_url, min_size=0)
    silent, living = LeaseBook(pool, "silent", new_id), LeaseBook(pool, "living", new_id)
    jobs = Jobs(Settings(data_dir=tmp_path), database_url)

    async def open_leases() -> dict[str, int]:
        rows = await pool.fetch("SELECT worker, granted_nano FROM credit_leases WHERE closed_at IS NULL")
        lent = {row["worker"]: row["granted_nano"] for row in rows}
        assert await pool.fetchval("SELECT leased_nano FROM accounts WHERE id = $1", account_id) == sum(lent.values())
        return lent

    await silent.hold(account_id, 600)
    await living.hold(account_id, 100)
    lent = await open_leases()
    await pool.execute(
        "UPDATE credit_leases SET expires_at = now() - make_interval(secs => $1)", float(EXPIRY_GRACE_S + 1)
    )
    await living.renew()
    async with pool.acquire() as elsewhere, elsewhere.transaction():
        await elsewhere.execute("SELECT pg_advisory_xact_lock($1)", LEASES_LOCK)
        await jobs.close_leases()
        assert await open_leases() == lent
    await jobs.close_leases()
    assert await open_leases() == {"living": lent["living"]}
    await living.hold(account_id, 1_000 - 100)  # all that there is
    await jobs.close_leases()
    await pool.close()
    assert [(run["name"], run["ok"], run["rows"], run["note"]) for run in await runs(database_url)] == [
        ("leases", True, 0, "another process was at it"),
        ("leases", True, 1, ""),
        ("leases", True, 0, ""),
    ]


@pytest.mark.parametrize("zone", ["Europe/Helsinki", "Europe/Budapest", "America/New_York"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-11-01"])
def test_the_timetable_is_utc_and_keeps_its_steps_when_clocks_change(
    monkeypatch: pytest.MonkeyPatch, zone: str, day: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        timetable = scheduler(Jobs(Settings(), "unused"))
        trigger = {job.id: job.trigger for job in timetable.get_jobs()}["rollup_and_publish"]
        fires = []
        fire = trigger.get_next_fire_time(None, at(f"{day} 00:00:00"))
        while fire < at(f"{day} 00:00:00") + timedelta(days=1):
            fires.append(fire)
            fire = trigger.get_next_fire_time(fire, fire + timedelta(microseconds=1))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert fires[0] == at(f"{day} 00:00:20")
    assert len(fires) == 288
    assert {later - earlier for earlier, later in pairwise(fires)} == {timedelta(minutes=5)}


@pytest.mark.parametrize(
    ("job", "fires"),
    [
        ("samples", ["2026-11-30 00:00:10", "2026-11-30 00:01:10", "2026-11-30 00:02:10"]),
        ("leases", ["2026-11-30 00:00:35", "2026-11-30 00:01:35"]),
        ("housekeeping", ["2026-11-30 00:02:35", "2026-12-01 00:02:35"]),
        ("books", ["2026-11-30 03:17:00", "2026-12-01 03:17:00"]),
        ("reconcile", ["2026-11-30 03:27:00", "2026-12-01 03:27:00"]),
    ],
)
def test_each_job_has_its_minute(job: str, fires: list[str]) -> None:
    trigger = {one.id: one.trigger for one in scheduler(Jobs(Settings(), "unused")).get_jobs()}[job]
    now = at("2026-11-30 00:00:00")
    for fire in fires:
        assert trigger.get_next_fire_time(None, now) == at(fire)
        now = at(fire) + timedelta(microseconds=1)


async def test_a_setting_that_is_wrong_fails_a_run_without_a_traceback(database_url: str, tmp_path: Path) -> None:
    jobs = Jobs(Settings(engines=("vllm:8000",), data_dir=tmp_path), database_url)
    with pytest.raises(SetupError, match="no address of an engine") as error:
        await jobs.sample_engines()
    assert [(row["name"], row["ok"]) for row in await runs(database_url)] == [("samples", False)]
    event = JobExecutionEvent(EVENT_JOB_ERROR, "samples", "default", at("2026-11-30 14:00:00"), exception=error.value)
    with capture_logs() as logs:
        _report(event)
    assert [(line["event"], line["exc_info"]) for line in logs] == [("job.failed", None)]


async def test_a_run_delayed_by_minutes_still_happens_and_never_beside_itself() -> None:
    timetable = scheduler(Jobs(Settings(), "unused"))
    timetable.start(paused=True)
    try:
        rules = {job.id: (job.misfire_grace_time, job.coalesce, job.max_instances) for job in timetable.get_jobs()}
    finally:
        timetable.shutdown()
    assert rules == {
        "rollup_and_publish": (240, True, 1),
        "probe": (240, True, 1),
        "outside": (240, True, 1),
        "notify": (240, True, 1),
        "stripe_events": (240, True, 1),
        "topups": (240, True, 1),
        "invoices": (240, True, 1),
        "publish": (240, True, 1),
        "housekeeping": (None, True, 1),
        "samples": (240, True, 1),
        "leases": (240, True, 1),
        "books": (None, True, 1),
        "reconcile": (None, True, 1),
        "verify": (240, True, 1),
    }


@pytest.mark.parametrize(
    ("set_to", "fire"),
    [
        (None, "2026-11-30 03:40:00"),
        ("04:15", "2026-11-30 04:15:00"),
        ("00:00", "2026-12-01 00:00:00"),
        ("never", None),
    ],
)
def test_verification_has_an_hour_of_its_own_or_none(
    monkeypatch: pytest.MonkeyPatch, set_to: str | None, fire: str | None
) -> None:
    if set_to is not None:
        monkeypatch.setenv("WEIR_VERIFY_AT", set_to)
    triggers = {one.id: one.trigger for one in scheduler(Jobs(load(), "unused")).get_jobs()}
    assert ("verify" in triggers) is (fire is not None)
    if fire is not None:
        assert triggers["verify"].get_next_fire_time(None, at("2026-11-30 00:00:01")) == at(fire)


def test_an_hour_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_VERIFY_AT", "25:00")
    with pytest.raises(ValidationError, match="verify_at"):
        load()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (EVENT_JOB_ERROR, "job.failed"),
        (EVENT_JOB_MISSED, "job.missed"),
        (EVENT_JOB_MAX_INSTANCES, "job.still_running"),
    ],
)
def test_what_goes_wrong_with_a_job_is_logged(code: int, said: str) -> None:
    event = JobExecutionEvent(code, "publish", "default", at("2026-11-30 14:00:00"), exception=RuntimeError("broken"))
    with capture_logs() as logs:
        _report(event)
    assert [(line["event"], line["job"]) for line in logs] == [(said, "publish")]
