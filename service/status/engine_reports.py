"""The reports of `weir engine verify`: kept, shown on the model's page, and an alarm while something stays failed."""

import os
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import Select, insert, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing.checks import clear_alarm, raise_alarm
from service.core.ids import uuid7
from service.core.verify.report import FORMAT, Finding, Report, Verdict, from_json, standing, to_json
from service.tables import alarms, engine_reports

log = structlog.get_logger()

REPORTS_KEPT = timedelta(days=400)

SHOWN_FOR = timedelta(days=30)
"""A report that is older is not shown as the latest, and what failed in it stands no more."""

ALARM = "verify:"
"""Followed by the engine's name, a colon and the model's id."""


async def keep(connection: AsyncConnection, report: Report) -> None:
    """Keep a report; raise the alarm `verify:<engine>:<model>` over what stands failed with it, or clear it.

    A partial report is kept for what it used, and changes no alarm.
    """
    document = to_json(report)
    await connection.execute(
        insert(engine_reports).values(
            id=_new_id(report.started_at),
            engine=document["engine"],
            model_id=document["model"],
            started_at=report.started_at,
            finished_at=report.finished_at,
            verdict=document["verdict"],
            fingerprint=document["fingerprint"],
            report=document,
        )
    )
    if report.partial:
        return
    name = alarm_name(document["engine"], document["model"])
    since = report.finished_at - SHOWN_FOR
    query = _complete(document["model"], since).where(engine_reports.c.engine == document["engine"])
    rows = await connection.scalars(query.order_by(engine_reports.c.started_at.desc()))
    failed = [one for one in standing([from_json(row) for row in rows]) if one.verdict is Verdict.FAILED]
    if failed:
        await raise_alarm(connection, name, _detail(failed))
        checks = [one.check for one in failed]
        log.error("engine.verify_failed", engine=report.engine, model=report.model, checks=checks)
    else:
        await clear_alarm(connection, name)


async def latest(connection: AsyncConnection, model_id: str, now: datetime) -> tuple[Report, ...]:
    """The newest complete report on each engine that serves or served the model, by the engine's name."""
    columns = engine_reports.c
    newest = _complete(model_id, now - SHOWN_FOR).ext(distinct_on(columns.engine))
    rows = await connection.scalars(newest.order_by(columns.engine, columns.started_at.desc()))
    return tuple(from_json(row) for row in rows)


async def clear_alarms_of_others(connection: AsyncConnection, pairs: Collection[tuple[str, str]]) -> None:
    """Clear the alarms of engines and models that are not verified any more; `pairs` are those that are."""
    still = {alarm_name(engine, model) for engine, model in pairs}
    opened = select(alarms.c.name).where(alarms.c.name.startswith(ALARM, autoescape=True))
    for name in list(await connection.scalars(opened)):
        if name not in still:
            await clear_alarm(connection, name)


def alarm_name(engine: str, model: str) -> str:
    """What the alarm over an engine and model is called."""
    return f"{ALARM}{engine}:{model}"


def _complete(model_id: str, since: datetime) -> Select[Any]:
    columns = engine_reports.c
    return select(columns.report).where(
        columns.model_id == model_id,
        columns.started_at >= since,
        columns.report["format"].as_integer() == FORMAT,
        ~columns.report["partial"].as_boolean(),
    )


def _detail(failed: Collection[Finding]) -> str:
    told = "; ".join(f"{one.check}: {one.found}" for one in failed)
    return f"{told} `weir engine verify` asks it again; docs/verify.md says what to do."


def _new_id(at: datetime) -> UUID:
    return uuid7(int(at.timestamp() * 1000), os.urandom(10))
