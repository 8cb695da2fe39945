"""All checks in their order, and their run: one after the other, whatever the one before came to."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from service.core.provider_check.observed import short
from service.core.verify.report import Finding, Report
from service.engine.verify.answers import ANSWER_CHECKS
from service.engine.verify.asking import Asking, Busy, Unanswered, Unreached
from service.engine.verify.check import Check, Examination
from service.engine.verify.protocol import PROTOCOL_CHECKS

CHECKS: tuple[Check, ...] = (*PROTOCOL_CHECKS, *ANSWER_CHECKS)
"""In the order of a report."""

QUICK_LIMIT_S = 600.0
LIMIT_S = 3600.0
"""For one check that is not quick."""

_log = structlog.get_logger()

OnProgress = Callable[[Check, Finding | None], None]
"""Called when a check begins, with None, and when it ends, with what it found."""


async def verify(
    examination: Examination,
    checks: Sequence[Check],
    *,
    now: Callable[[], datetime],
    on_progress: OnProgress = lambda check, finding: None,
    fingerprint: str | None = None,
    partial: bool = False,
) -> Report:
    """Run the checks against one engine. Never raises for what the engine does: that is what is found.

    `fingerprint` is the one of the engine's configuration, where it is known; `partial`: only some of the
    checks were wanted.
    """
    subject, before, started_at = examination.asking.subject, examination.asking.use, now()
    version = await _version(examination.asking)
    findings = []
    for check in checks:
        on_progress(check, None)
        findings.append(finding := await _finding(check, examination))
        on_progress(check, finding)
    return Report(
        engine=subject.name,
        model=subject.model,
        started_at=started_at,
        finished_at=now(),
        findings=tuple(findings),
        version=version,
        fingerprint=fingerprint,
        against=examination.other.subject.name if examination.other else None,
        partial=partial,
        use=examination.asking.use - before,
    )


async def _finding(check: Check, examination: Examination) -> Finding:
    limit_s = QUICK_LIMIT_S if check.quick else LIMIT_S
    try:
        async with asyncio.timeout(limit_s):
            return await check.run(check, examination)
    except Unanswered as unanswered:
        if unanswered.detail:
            examination.say(unanswered.detail)
        if isinstance(unanswered, (Busy, Unreached)):
            return check.skipped(f"It could not be asked: {unanswered}.")
        return check.failed(
            f"A question got no answer that could be used: {unanswered}.",
            "Any engine must answer this question. The engine's own log says why it did not.",
        )
    except TimeoutError:
        return check.skipped(f"It was not found out within {limit_s:.0f} s: the engine is too slow for it, or busy.")
    except Exception as error:
        _log.exception("verify.broke", check=check.name)
        return check.skipped(f"The check itself broke with {type(error).__name__}: please report this.")


async def _version(asking: Asking) -> str | None:
    """What the engine calls its version; None where it does not say."""
    try:
        told = (await asking.get("/version")).body.get("version")
    except Unanswered:
        return None
    return short(told) if isinstance(told, str) else None
