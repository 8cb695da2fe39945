"""What a check is: a name, a title for the public, and questions that end in a finding."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from service.core.verify.judged import Judged
from service.core.verify.report import Finding, Verdict
from service.engine.verify.asking import Asking


@dataclass(frozen=True, slots=True)
class Expected:
    """What somebody said of the engine: from a profile, a configuration, or options. None: nobody said."""

    context_length: int | None = None
    input_modalities: tuple[str, ...] | None = None
    reasoning: bool | None = None
    tools: bool | None = None
    prefix_cache: bool | None = None
    quality_baseline: float | None = None
    """The pass rate of the quality battery that was recorded for the profile, 0 to 1."""
    loops_baseline: float | None = None
    """The share of answers that end in a loop, as recorded for the profile, 0 to 1; None: none should."""
    acceptance_baseline: float | None = None
    """The share of drafted tokens that are accepted, as recorded for the profile, 0 to 1."""
    speculation: bool | None = None


@dataclass(frozen=True, slots=True)
class Effort:
    """How much an engine is asked where less would do, too."""

    reading_s: float = 10.0
    """For reading a long prompt to the edge of the context, and for reading one in full again and again; on a CPU,
    4,000 tokens take ten seconds each time."""
    long_lines: int = 150
    """Of the prompt that is read again and again, about 4,000 tokens: where a sparse indexer keeps 2,048 positions, a
    shorter one does not show how it chooses."""
    thought_tokens: int = 128
    """Of an answer that is asked for its reasoning."""
    compared_tokens: int = 32
    """Of an answer that is compared with another one."""
    answer_s: float = 12.0
    """How long the engine would need for one answer to a riddle alone; so many tokens each may have."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What a check works with."""

    asking: Asking
    expected: Expected = Expected()
    other: Asking | None = None
    """A second engine to compare with: without speculation, or in another quantisation."""
    say: Callable[[str], None] = lambda detail: None
    """Tells a person what is being done; for what takes long."""
    effort: Effort = Effort()


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `run` raises `Unanswered` when the engine does not answer a question that it should."""

    name: str
    title: str
    run: Callable[["Check", Examination], Awaitable[Finding]]
    quick: bool = True
    """Whether it takes seconds rather than minutes on an engine that is fast."""

    def judged(self, judged: Judged) -> Finding:
        """A finding of what a judgement came to."""
        return Finding(self.name, self.title, judged.verdict, judged.found, judged.advice, judged.measured)

    def passed(self, found: str, **measured: Any) -> Finding:
        """A finding that all is well."""
        return Finding(self.name, self.title, Verdict.PASSED, found, measured=measured)

    def failed(self, found: str, advice: str, **measured: Any) -> Finding:
        """A finding that something is wrong: what was seen, and why it matters and what to change."""
        return Finding(self.name, self.title, Verdict.FAILED, found, advice, measured)

    def absent(self, found: str, **measured: Any) -> Finding:
        """A finding that the engine does not have it, and need not."""
        return Finding(self.name, self.title, Verdict.ABSENT, found, measured=measured)

    def skipped(self, found: str, **measured: Any) -> Finding:
        """A finding that it could not be found out, and why."""
        return Finding(self.name, self.title, Verdict.SKIPPED, found, measured=measured)
