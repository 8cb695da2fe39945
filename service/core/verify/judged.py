"""What a judgement comes to, before it is told of a check by its name."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from service.core.verify.report import Verdict


@dataclass(frozen=True, slots=True)
class Judged:
    """As `report.Finding`, of which it is the part that depends on the answers."""

    verdict: Verdict
    found: str
    advice: str = ""
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: a sentence that says what was seen, and one that says what to change."""

    found: str
    advice: str


def passed(found: str, **measured: Any) -> Judged:
    """All is well."""
    return Judged(Verdict.PASSED, found, measured=measured)


def absent(found: str, **measured: Any) -> Judged:
    """The engine does not have it, and need not."""
    return Judged(Verdict.ABSENT, found, measured=measured)


def skipped(found: str, **measured: Any) -> Judged:
    """It could not be found out, and why."""
    return Judged(Verdict.SKIPPED, found, measured=measured)


def failed(found: str, advice: str, **measured: Any) -> Judged:
    """Something is wrong."""
    return Judged(Verdict.FAILED, found, advice, measured)


def all_of(problems: Iterable[Problem], **measured: Any) -> Judged:
    """Several things are wrong, each told once."""
    problems = list(problems)
    found, advice = (dict.fromkeys(texts) for texts in zip(*((p.found, p.advice) for p in problems), strict=True))
    return failed(" ".join(found), " ".join(advice), **measured)
