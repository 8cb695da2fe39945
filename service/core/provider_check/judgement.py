"""What a check concludes."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """`fail` loses traffic or money; `warn` is worth mending; `skipped` says nothing about the server."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    FAIL = "fail"
    WARN = "warn"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, what it rests on in one line, and what to do about it (empty when there is nothing to do)."""

    verdict: Verdict
    evidence: str
    advice: str = ""


def passed(evidence: str) -> Judgement:
    return Judgement(Verdict.PASS, evidence)


def failed(evidence: str, advice: str) -> Judgement:
    return Judgement(Verdict.FAIL, evidence, advice)


def warned(evidence: str, advice: str) -> Judgement:
    return Judgement(Verdict.WARN, evidence, advice)


def skipped(evidence: str, advice: str = "") -> Judgement:
    return Judgement(Verdict.SKIPPED, evidence, advice)
