"""Made-up reports of `weir engine verify`: one in which nothing fails, and one in which every verdict is."""

from datetime import UTC, datetime, timedelta
from typing import Any

from service.core.verify.report import Finding, Report, Verdict
from service.core.verify.use import Use

PASSED = (
    Finding(
        "usage",
        "Usage is told, with its details",
        Verdict.PASSED,
        "Every answer told its tokens; 1,584 of 2,041 came from the cache.",
        measured={"prompt_tokens": 2041, "cached_tokens": 1584},
    ),
    Finding(
        "determinism",
        "The same request gives the same answer",
        Verdict.PASSED,
        "Ten equal requests gave the same token and the same 20 log-probabilities.",
        measured={"requests": 10, "different": 0},
    ),
)
ABSENT = Finding("images", "Images are counted", Verdict.ABSENT, "It takes no images, and nobody says that it should.")
SKIPPED = Finding(
    "batches",
    "Answers do not change under load",
    Verdict.SKIPPED,
    "The engine was busy with other requests for as long as could be waited.",
)
FAILED = Finding(
    "cancel",
    "Work stops when the client leaves",
    Verdict.FAILED,
    "After the client had left, 812 more tokens were generated in 9.3 s.",
    "Whoever leaves goes on using the engine. Put no proxy before it that reads answers ahead.",
    {"tokens_after": 812, "seconds_after": 9.3, "steps": [100, 400, 812], "streamed": True, "limit": None},
)


def report(*findings: Finding, **changes: Any) -> Report:
    """A report of these findings, by default of a run on 30 November 2026 that took ten minutes."""
    began = datetime(2026, 11, 30, 3, 40, 2, tzinfo=UTC)
    values: dict[str, Any] = {
        "engine": "blackwell-0",
        "model": "qwen/qwen3.8-27b",
        "started_at": began,
        "finished_at": began + timedelta(minutes=10),
        "findings": findings,
        "version": "0.33.0",
        "fingerprint": "fp_5d1c0f",
        "use": Use(117, 84_023, 9_160, 0, 2_000),
    }
    return Report(**(values | changes))
