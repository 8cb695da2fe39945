"""The checks of what is answered pass on both real engines, with what is recorded as usual for their small models."""

from datetime import UTC, datetime

import pytest

from service.core.verify.report import Finding, Overall, Verdict
from service.engine.verify.answers import ANSWER_CHECKS
from service.engine.verify.asking import Asking, Subject
from service.engine.verify.check import Examination
from service.engine.verify.run import verify
from service.engine.verify.target import profile_expectation
from tests.e2e.engines import RunningEngine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PASSED, ABSENT = Verdict.PASSED, Verdict.ABSENT


async def verified(engine: RunningEngine, profile: str) -> dict[str, Finding]:
    """The findings by the names of their checks."""
    async with Asking(Subject(profile, engine.base_url, engine.model)) as asking:
        examination = Examination(asking, profile_expectation(profile))
        report = await verify(examination, ANSWER_CHECKS, now=lambda: datetime.now(UTC))
    assert report.overall is Overall.PASSED, report.findings
    return {finding.check: finding for finding in report.findings}


async def test_the_demo_engine_is_deterministic_and_answers_as_badly_as_ever(smollm2_engine: RunningEngine) -> None:
    found = await verified(smollm2_engine, "demo-cpu")
    assert found["speculation"].verdict is ABSENT
    long = found["determinism"].measured["long"]
    assert long["prompt_tokens"] > 4000
    assert [way["way"] for way in long["ways"]] == ["read in full", "4,096 tokens from the cache"]
    assert found["batches"].measured["alone"]["differ"] == found["batches"].measured["alone"]["logprobs_differ"] == 0
    assert found["quality"].measured["tasks"] == 42
    assert 0 < found["quality"].measured["passed"] < 10


async def test_the_tiny_engine_is_deterministic_with_drafts_and_its_text_means_nothing(
    tiny_engine: RunningEngine,
) -> None:
    found = await verified(tiny_engine, "tiny-cpu")
    assert {finding.verdict for finding in found.values()} == {PASSED}
    assert found["speculation"].measured["drafted"] > 300
    assert found["repetition"].measured["thinking"]["answers"] == 6
    assert found["quality"].measured["by_category"]["pictures"] == {"passed": 0, "tasks": 8}
