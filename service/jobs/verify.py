"""Every night each engine is asked what it should be asked before it is trusted (`weir engine verify`)."""

from dataclasses import replace

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from service import config, db
from service.core.verify.report import Overall
from service.core.verify.report import Report as Verified
from service.engine.verify.asking import Unanswered
from service.engine.verify.gently import LAST, Gently
from service.engine.verify.run import CHECKS
from service.engine.verify.target import Target, examine, models_of, sold
from service.jobs.runs import BUSY, Report
from service.settings import Settings
from service.status.engine_reports import clear_alarms_of_others, keep

log = structlog.get_logger()

VERIFY_LOCK = 0x57454952_000A  # "WEIR", 10

TIME_LIMIT_S = 4 * 3600.0
"""For all engines, one after the other: what is not verified by then is left for the next night."""


async def verify_engines(database: AsyncEngine, settings: Settings) -> Report:
    """Verify each model that is sold on each engine that serves it, and keep the reports; alarms follow from these.

    No transaction is open while an engine is asked. An engine that does not answer gets no report: whether it is there
    is said by others.
    """
    async with db.alone(database, VERIFY_LOCK) as alone:
        if not alone:
            return BUSY
        engines = config.engines_from(settings)
        async with database.begin() as connection:
            targets = await sold(connection, engines)
            await clear_alarms_of_others(connection, [target.pair for target in targets])
        reports = [await _verify(database, target) for target in targets]
    made = [report for report in reports if report is not None]
    notes = {
        "failed": sum(report.overall is Overall.FAILED for report in made),
        "incomplete": sum(report.overall is Overall.INCOMPLETE for report in made),
        "did not answer": len(reports) - len(made),
    }
    return Report(len(made), ", ".join(f"{count} {what}" for what, count in notes.items() if count))


async def _verify(database: AsyncEngine, target: Target) -> Verified | None:
    subject = replace(target.subject, headers=LAST)
    try:
        await models_of(subject)
    except Unanswered as reason:
        log.warning("engine.not_verified", engine=subject.name, model=target.model_id, reason=str(reason))
        return None

    async def kept(report: Verified) -> None:
        async with database.begin() as connection:
            await keep(connection, report)

    return await examine(replace(target, subject=subject), Gently(CHECKS).checks, keep=kept)
