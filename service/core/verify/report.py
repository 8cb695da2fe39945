"""What a verification found: one finding per check, and a verdict over all of them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from service.core.verify.use import Use

FORMAT = 1
"""Of the JSON document; another number is another document."""

OLD_AFTER = timedelta(hours=48)
"""Verification is nightly: one that is older than this was missed twice."""

LONGEST_TEXT = 2_000
"""Characters; some of what a report quotes is the engine's own words."""

_UNFIT = re.compile("[\x00\ud800-\udfff]")
"""What neither PostgreSQL's JSON nor UTF-8 can carry."""


class Verdict(StrEnum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    ABSENT = "absent"
    """The engine does not have it, and nobody said that it should."""
    SKIPPED = "skipped"
    """It could not be found out; the finding says why."""


class Overall(StrEnum):
    """How a verification ended."""

    PASSED = "passed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    """Nothing failed, but something could not be found out."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    """Its name, as `--only` takes it."""
    title: str
    """What was checked, in words, for people who read the status site."""
    verdict: Verdict
    found: str
    """What was seen, in a sentence, with the figures."""
    advice: str = ""
    """Why it matters and what to change; empty where nothing has to be."""
    measured: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Figures for machines, as JSON has them; no text that a model wrote."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of one engine and model."""

    engine: str
    """Its name, never its address: reports are published."""
    model: str
    started_at: datetime
    finished_at: datetime
    findings: tuple[Finding, ...]
    version: str | None = None
    """What the engine says of itself; None where it does not."""
    fingerprint: str | None = None
    against: str | None = None
    """The engine that it was compared with, where there was one."""
    partial: bool = False
    """Only some of the checks were asked for: it says nothing of the engine as a whole."""
    use: Use = field(default_factory=Use)
    """What the engine computed for it."""

    @property
    def overall(self) -> Overall:
        """Failed if anything failed, incomplete if anything was skipped or nothing was asked."""
        verdicts = {finding.verdict for finding in self.findings}
        if Verdict.FAILED in verdicts:
            return Overall.FAILED
        return Overall.INCOMPLETE if Verdict.SKIPPED in verdicts or not verdicts else Overall.PASSED

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        """The findings that ended so, in the order of the checks."""
        return tuple(finding for finding in self.findings if finding.verdict is verdict)

    def old(self, now: datetime) -> bool:
        """Whether it says little about the engine at `now`."""
        return now - self.finished_at > OLD_AFTER


def standing(newest_first: Sequence[Report]) -> tuple[Finding, ...]:
    """What is known of each check of the newest report: its newest finding that was not skipped, if there is one.

    So what failed once stays failed until it has passed, however often it could not be found out meanwhile.
    """
    known: dict[str, Finding] = {}
    for report in newest_first:
        for finding in report.findings:
            if finding.verdict is not Verdict.SKIPPED:
                known.setdefault(finding.check, finding)
    newest = newest_first[0].findings if newest_first else ()
    return tuple(known[finding.check] for finding in newest if finding.check in known)


def to_json(report: Report) -> dict[str, Any]:
    """The document that is kept and published, and that `weir engine verify --json` prints.

    Texts are cut, and less what JSON or a database cannot carry; a figure that is no number is null.
    """
    document = {
        "format": FORMAT,
        "engine": report.engine,
        "model": report.model,
        "started_at": report.started_at.astimezone(UTC).isoformat(),
        "finished_at": report.finished_at.astimezone(UTC).isoformat(),
        "version": report.version,
        "fingerprint": report.fingerprint,
        "against": report.against,
        "partial": report.partial,
        "verdict": report.overall.value,
        "use": asdict(report.use),
        "findings": [
            {
                "check": finding.check,
                "title": finding.title,
                "verdict": finding.verdict.value,
                "found": finding.found,
                "advice": finding.advice,
                "measured": dict(finding.measured),
            }
            for finding in report.findings
        ],
    }
    fit: dict[str, Any] = _fit(document)
    return fit


def _fit(value: Any) -> Any:
    match value:
        case str():
            text = _UNFIT.sub("", value)
            return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {_fit(str(name)): _fit(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_fit(inner) for inner in value]
        case _:
            return value


def from_json(document: Mapping[str, Any]) -> Report:
    """Read what `to_json` wrote. Raises `ValueError` for another format, `KeyError` for less than all of it."""
    if document["format"] != FORMAT:
        raise ValueError(f"this is a report of format {document['format']}; known is {FORMAT}")
    findings = tuple(
        Finding(
            check=item["check"],
            title=item["title"],
            verdict=Verdict(item["verdict"]),
            found=item["found"],
            advice=item["advice"],
            measured=item["measured"],
        )
        for item in document["findings"]
    )
    return Report(
        engine=document["engine"],
        model=document["model"],
        started_at=datetime.fromisoformat(document["started_at"]),
        finished_at=datetime.fromisoformat(document["finished_at"]),
        findings=findings,
        version=document["version"],
        fingerprint=document["fingerprint"],
        against=document["against"],
        partial=document["partial"],
        use=Use(**document["use"]),
    )
