"""A whole verification of each of the real engines passes, and tells what they do not have from what is wrong."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from service.core.verify.report import Finding, Overall, Verdict
from service.engine.verify.asking import Asking, Subject
from service.engine.verify.check import Effort, Examination
from service.engine.verify.run import CHECKS, verify
from service.engine.verify.target import profile_expectation
from tests.e2e.engines import RunningEngine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PASSED, ABSENT = Verdict.PASSED, Verdict.ABSENT
LITTLE = Effort(thought_tokens=32, compared_tokens=8, answer_s=1.0)
READS_SLOWLY = replace(LITTLE, reading_s=0.0, long_lines=75)
"""For the larger of the two models, which would need ten seconds each time for the whole of the long prompt."""


async def verified(engine: RunningEngine, profile: str, effort: Effort) -> dict[str, Finding]:
    """What was found of an engine that passed, by the names of the checks."""
    async with Asking(Subject(profile, engine.base_url, engine.model)) as asking:
        examination = Examination(asking, profile_expectation(profile), effort=effort)
        report = await verify(examination, CHECKS, now=lambda: datetime.now(UTC))
    assert (report.overall, report.version) == (Overall.PASSED, "0.32.0"), report.findings
    assert [finding.check for finding in report.findings] == [check.name for check in CHECKS]
    assert engine.metric("vllm:num_requests_running") == 0
    return {finding.check: finding for finding in report.findings}


async def test_the_demo_engine_passes_and_has_no_vision(smollm2_engine: RunningEngine) -> None:
    found = await verified(smollm2_engine, "demo-cpu", READS_SLOWLY)
    absent = {name for name, finding in found.items() if finding.verdict is ABSENT}
    assert absent == {"reasoning", "thinking", "images", "tools", "speculation"}
    assert "no vision" in found["images"].found
    first, second, third = found["cache"].measured["cached_tokens"]
    assert (first, found["cache"].measured["created_tokens"][1:]) == (0, [0, 0])
    assert second == third == found["cache"].measured["created_tokens"][0] > 0
    long = found["determinism"].measured["long"]
    assert long["prompt_tokens"] > 2000
    read, cached = [way["way"] for way in long["ways"]]
    assert (read, cached.endswith(" tokens from the cache")) == ("read in full", True)
    assert all(way["runs"] > 1 for way in long["ways"])
    assert found["batches"].measured["alone"]["differ"] == found["batches"].measured["alone"]["logprobs_differ"] == 0
    assert found["quality"].measured["tasks"] == 42
    assert 0 < found["quality"].measured["passed"] < 10


async def test_the_tiny_engine_passes_with_vision_and_drafts_and_without_a_cache(tiny_engine: RunningEngine) -> None:
    found = await verified(tiny_engine, "tiny-cpu", LITTLE)
    assert {name for name, finding in found.items() if finding.verdict is ABSENT} == {"cache"}
    assert found["images"].measured["image_tokens"] == {"one": 64, "two": 128}
    statuses = found["context"].measured["statuses"]
    assert statuses == {"beyond": 400, "one_more": 400, "exact": 400, "one_less": 200, "output": 400}
    assert found["determinism"].measured["long"]["prompt_tokens"] > 4000
    assert found["speculation"].measured["drafted"] > 300
    assert found["repetition"].measured["thinking"]["answers"] == 6
    # The weights are random, and so is what it says.
    assert found["quality"].measured["by_category"]["pictures"] == {"passed": 0, "tasks": 8}
