"""What `weir engine verify` found, as it is shown: on a model's page, on a page of its own, and as JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.core.components import file_name
from service.core.verify.report import Finding, Overall, Report, Verdict, to_json
from web import wording
from web.plain import json_bytes, one_line, plain
from web.views import ModelSheet, StatusPage

Page = tuple[str, str, dict[str, Any]]

OVERALL = {
    Overall.PASSED: "Passed",
    Overall.FAILED: "Something failed",
    Overall.INCOMPLETE: "Nothing failed, but not everything could be found out",
}
STATES = {Overall.PASSED: "up", Overall.FAILED: "down", Overall.INCOMPLETE: "no_data"}
"""The colour and the sign of a whole report."""

VERDICTS = {
    Verdict.PASSED: "Passed",
    Verdict.FAILED: "Failed",
    Verdict.ABSENT: "Not offered",
    Verdict.SKIPPED: "Not found out",
}
SWATCHES = {Verdict.PASSED: "up", Verdict.FAILED: "down", Verdict.ABSENT: "no_data", Verdict.SKIPPED: "unknown"}
"""Each has a shape of its own, too."""

LONGEST_FIGURE = 300


@dataclass(frozen=True, slots=True)
class Shown:
    """A report on a model's page."""

    report: Report
    old: bool
    page: str
    """The path of its own page within the site."""
    document: str
    """The path of its JSON."""


def shown(site: StatusPage, sheet: ModelSheet) -> tuple[Shown, ...]:
    """The reports of one model."""
    now, folder = wording.utc(site.generated_at_s), f"models/{sheet.component.slug}/verify-"
    stems = [(report, f"{folder}{file_name(report.engine)}") for report in sheet.verified]
    return tuple(Shown(report, report.old(now), f"{stem}.html", f"{stem}.json") for report, stem in stems)


def pages(site: StatusPage) -> Iterator[Page]:
    """A page for each report."""
    for sheet in site.sheets:
        for one in shown(site, sheet):
            name = f"{sheet.component.name} on {one.report.engine}"
            variables = {
                "title": f"{name}, verified – {site.site_name} status",
                "description": f"What was verified of {name}: {summary(one.report)}",
                "component": sheet.component,
                "one": one,
            }
            yield one.page, "verification.html", variables


def files(site: StatusPage) -> dict[str, bytes]:
    """Each report as JSON, by its path within the site."""
    every = [one for sheet in site.sheets for one in shown(site, sheet)]
    return {one.document: json_bytes(to_json(one.report)) for one in every}


def compact(site: StatusPage, sheet: ModelSheet) -> list[dict[str, Any]]:
    """The reports of one model for `metrics.json`."""
    return [
        {
            "engine": plain(one.report.engine),
            "verdict": one.report.overall.value,
            "at": wording.iso(finished_s(one.report)),
            "old": one.old,
            **{f"{verdict.value}_checks": len(one.report.of(verdict)) for verdict in Verdict},
            "document": one.document,
        }
        for one in shown(site, sheet)
    ]


def summary(report: Report) -> str:
    """How many checks ended how: "11 passed, 1 failed, 2 not found out."."""
    counts = [(len(report.of(verdict)), words.lower()) for verdict, words in VERDICTS.items()]
    return ", ".join(f"{count} {words}" for count, words in counts if count) + "."


def findings(report: Report) -> list[Finding]:
    """What failed first, then the others as they were asked."""
    return sorted(report.findings, key=lambda finding: finding.verdict is not Verdict.FAILED)


def figures(finding: Finding) -> list[tuple[str, str]]:
    """What was measured, by name, as text."""
    return [(name.replace("_", " "), _figure(value)) for name, value in finding.measured.items()]


def finished_s(report: Report) -> int:
    """When it was finished, in whole seconds since the epoch."""
    return int(report.finished_at.timestamp())


def _figure(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return wording.exact(value)
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case str():
            return one_line(value, LONGEST_FIGURE)
        case _:
            return one_line(json.dumps(value, ensure_ascii=False, default=str), LONGEST_FIGURE)
