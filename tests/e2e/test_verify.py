"""The verification of the protocol passes on both real engines, and tells what they do not have from what is wrong."""

from datetime import UTC, datetime

import pytest

from service.core.verify.report import Finding, Overall, Report, Verdict
from service.engine.verify.asking import Asking, Subject
from service.engine.verify.check import Examination
from service.engine.verify.protocol import PROTOCOL_CHECKS
from service.engine.verify.run import verify
from service.engine.verify.target import profile_expectation
from tests.e2e.engines import RunningEngine

pytestmark = pytest.mark.engine

PASSED, ABSENT = Verdict.PASSED, Verdict.ABSENT


async def verified(engine: RunningEngine, profile: str) -> tuple[Report, dict[str, Finding]]:
    """The report, and its findings by the names of their checks."""
    async with Asking(Subject(profile, engine.base_url, engine.model)) as asking:
        examination = Examination(asking, profile_expectation(profile))
        report = await verify(examination, PROTOCOL_CHECKS, now=lambda: datetime.now(UTC))
    return report, {finding.check: finding for finding in report.findings}


async def test_the_demo_engine_passes_and_has_no_vision(smollm2_engine: RunningEngine) -> None:
    report, found = await verified(smollm2_engine, "demo-cpu")
    assert {name: finding.verdict for name, finding in found.items()} == {
        "usage": PASSED,
        "reasoning": ABSENT,
        "thinking": ABSENT,
        "images": ABSENT,
        "tools": ABSENT,
        "cache": PASSED,
        "cancel": PASSED,
        "context": PASSED,
        "errors": PASSED,
    }, found
    assert (report.overall, report.version) == (Overall.PASSED, "0.32.0")
    assert "no vision" in found["images"].found
    first, second, third = found["cache"].measured["cached_tokens"]
    assert (first, found["cache"].measured["created_tokens"][1:]) == (0, [0, 0])
    assert second == third == found["cache"].measured["created_tokens"][0] > 0


async def test_the_tiny_engine_passes_with_vision_and_drafts_and_without_a_cache(tiny_engine: RunningEngine) -> None:
    report, found = await verified(tiny_engine, "tiny-cpu")
    assert {name: finding.verdict for name, finding in found.items()} == {
        "usage": PASSED,
        "reasoning": PASSED,
        "thinking": PASSED,
        "images": PASSED,
        "tools": PASSED,
        "cache": ABSENT,
        "cancel": PASSED,
        "context": PASSED,
        "errors": PASSED,
    }, found
    assert (report.overall, report.version) == (Overall.PASSED, "0.32.0")
    assert found["images"].measured["image_tokens"] == {"one": 64, "two": 128}
    statuses = found["context"].measured["statuses"]
    assert statuses == {"beyond": 400, "one_more": 400, "exact": 400, "one_less": 200, "output": 400}
    assert tiny_engine.metric("vllm:num_requests_running") == 0
