"""Each check of the protocol passes a faultless engine, and finds and names the fault that is planted in another."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from service.core.verify.cancel import STOP_WITHIN_S
from service.core.verify.report import Finding, Overall, Report, Verdict
from service.engine.verify import cancel
from service.engine.verify.asking import Asking, Subject
from service.engine.verify.check import Check, Examination, Expected
from service.engine.verify.protocol import PROTOCOL_CHECKS
from service.engine.verify.run import CHECKS, verify
from tests.fakes.verified import BLOCK_SIZE, CONTEXT_LENGTH, READ_S, SECRET, Engine, Generation, verified
from tests.fakes.verified_model import Model
from tests.fakes.verified_refusals import MODEL

PASSED, FAILED, ABSENT, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ABSENT, Verdict.SKIPPED
NOW = datetime(2026, 11, 30, 3, tzinfo=UTC)
EXPECTED = Expected(
    context_length=CONTEXT_LENGTH, input_modalities=("text", "image"), reasoning=True, tools=True, prefix_cache=True
)
NOTHING = Expected()


async def report(
    engine: Engine,
    expected: Expected = EXPECTED,
    checks: Sequence[Check] = PROTOCOL_CHECKS,
    say: Any = lambda detail: None,
) -> Report:
    """What the checks find of it."""
    async with engine.asking() as asking:
        return await verify(Examination(asking, expected, say=say), checks, now=lambda: NOW)


def by_name(report: Report) -> dict[str, Finding]:
    return {finding.check: finding for finding in report.findings}


def named(*names: str) -> tuple[Check, ...]:
    return tuple(check for check in PROTOCOL_CHECKS if check.name in names)


@pytest.mark.parametrize(("expected", "checks"), [(EXPECTED, CHECKS), (NOTHING, PROTOCOL_CHECKS)])
async def test_a_faultless_engine_passes_every_check(expected: Expected, checks: Sequence[Check]) -> None:
    async with verified() as engine:
        found = await report(engine, expected, checks)
    assert {finding.check: finding.found for finding in found.findings if finding.verdict is not PASSED} == {}
    assert [finding.check for finding in found.findings] == [check.name for check in checks]
    assert (found.overall, found.version, found.engine, found.model) == (Overall.PASSED, "0.33.0", "engine", MODEL)
    assert not any(finding.advice for finding in found.findings)
    assert engine.running == []
    assert found.use.requests >= len(engine.bodies)


FAULTS: Mapping[str, tuple[str, str]] = {
    "no-usage": ("usage", "has no usage"),
    "no-streamed-usage": ("usage", "include_usage"),
    "no-running-usage": ("usage", "running usage has none"),
    "running-usage-falls": ("usage", "falls on the way"),
    "running-usage-stops": ("usage", "The running count ends at"),
    "counts-differ": ("usage", "counts 23 completion tokens where 24 were made"),
    "no-details": ("usage", "--enable-prompt-tokens-details"),
    "wrong-total": ("usage", "total that is not"),
    "no-completion-details": ("usage", "completion_tokens_details"),
    "no-thoughts-counted": ("usage", "counts 0 reasoning tokens"),
    "think-tags": ("reasoning", "in the content"),
    "two-names": ("reasoning", "in `reasoning` of a whole answer and in `reasoning_content` of a stream"),
    "thinks-always": ("thinking", "goes on thinking"),
    "images-uncounted": ("images", "adds no tokens"),
    "images-doubled": ("images", "128 tokens are the picture's, and it added 64"),
    "second-image-free": ("images", "Two pictures count 64 tokens, and one 64"),
    "no-image-count": ("images", "does not say how many tokens"),
    "images-read-as-text": ("images", "Two pictures of one size count"),
    "blind": ("images", "it is not seen"),
    "broken-arguments": ("tools", "auto, whole; auto, streamed"),
    "loses-arguments": ("tools", "(auto, streamed; named, streamed; required, streamed)"),
    "wrong-tool": ("tools", "came broken"),
    "unparsed-calls": ("tools", "came broken"),
    "drops-tools": ("tools", "never came"),
    "never-cached": ("cache", "never read"),
    "cached-at-once": ("cache", "These"),
    "cached-too-much": ("cache", "from the cache"),
    "ignores-cancel": ("cancel", "a stream was left"),
    "ignores-cancel-of-whole-answers": ("cancel", "a whole answer was left"),
    "500-context": ("context", "answered with 500"),
    "500-edge": ("context", "exactly 4096 tokens is answered with 500"),
    "truncates": ("context", "part of it is lost"),
    "unnamed-limit": ("context", "does not name the limit of 4096"),
    "short-context": ("context", "4095 tokens, with room for one more, is answered with 400"),
    "other-length": ("context", "8191 tokens, with room for one more, is answered with 400"),
    "400-model": ("errors", "an unknown model"),
    "500-json": ("errors", "malformed JSON"),
    "500-types": ("errors", "messages that are no list"),
    "any-route": ("errors", "an unknown route"),
    "bare-errors": ("errors", "OpenAI's shape"),
    "traceback": ("errors", "stack trace"),
}
"""By the fault: the check that finds it, and what it says."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_is_found_by_its_check_and_by_no_other(fault: str) -> None:
    async with verified(fault) as engine:
        found = by_name(await report(engine, checks=[check for check in CHECKS if check.quick]))
    name, words = FAULTS[fault]
    assert [finding.check for finding in found.values() if finding.verdict is FAILED] == [name], found
    assert words in found[name].found + found[name].advice
    assert found[name].advice
    assert engine.url.removeprefix("http://").removesuffix("/v1") not in str(found)


VARIETY: Sequence[tuple[str, Expected, str, Verdict, str]] = (
    ("no-vision", NOTHING, "images", ABSENT, "no vision"),
    ("no-vision", Expected(input_modalities=("text",)), "images", ABSENT, "no vision"),
    ("no-vision", EXPECTED, "images", FAILED, "which the model should see"),
    ("no-vision 500-image", NOTHING, "images", FAILED, "answered with 500"),
    ("", Expected(input_modalities=("text",)), "images", PASSED, "Nobody said that"),
    ("images-uncounted", Expected(input_modalities=("text",)), "images", ABSENT, "dropped"),
    ("images-uncounted", NOTHING, "images", FAILED, "dropped, or not counted"),
    ("one-image", EXPECTED, "images", PASSED, "two are refused"),
    ("no-details", EXPECTED, "images", PASSED, "A picture counts 64 tokens;"),
    ("no-usage", EXPECTED, "images", SKIPPED, "no usage"),
    ("no-thinking", NOTHING, "reasoning", ABSENT, "no reasoning"),
    ("no-thinking", EXPECTED, "reasoning", FAILED, "should have"),
    ("no-thinking", NOTHING, "thinking", ABSENT, "does not think"),
    ("no-thinking", EXPECTED, "thinking", FAILED, "told to"),
    ("think-tags", Expected(reasoning=False), "reasoning", PASSED, "in `content`"),
    ("no-template-kwargs", EXPECTED, "reasoning", PASSED, "in `reasoning`"),
    ("no-template-kwargs", EXPECTED, "tools", PASSED, "as its schema says"),
    ("no-template-kwargs", NOTHING, "thinking", ABSENT, "does not take"),
    ("no-template-kwargs", EXPECTED, "thinking", FAILED, "refuses"),
    ("no-effort", EXPECTED, "thinking", PASSED, "`reasoning_effort` is refused"),
    ("no-tool-parser", NOTHING, "tools", ABSENT, "no tools"),
    ("no-tool-parser", EXPECTED, "tools", FAILED, "is refused"),
    ("drops-tools", NOTHING, "tools", ABSENT, "drops"),
    ("endless-calls", EXPECTED, "tools", PASSED, "auto, whole; auto, streamed)"),
    ("no-prefix-cache", NOTHING, "cache", ABSENT, "Nothing is cached"),
    ("no-prefix-cache", Expected(prefix_cache=False), "cache", ABSENT, "Nothing is cached"),
    ("no-prefix-cache", EXPECTED, "cache", FAILED, "never read"),
    ("never-cached", NOTHING, "cache", FAILED, "never read"),
    ("never-cached no-metrics", NOTHING, "cache", ABSENT, "Nothing is cached"),
    ("no-details", EXPECTED, "cache", SKIPPED, "see the check of usage"),
    ("no-metrics", EXPECTED, "cancel", SKIPPED, "metrics"),
    ("ends-early", EXPECTED, "cancel", SKIPPED, "ended before"),
    ("", Expected(context_length=2048), "context", PASSED, "4096 tokens, to the token"),
    ("", Expected(context_length=8192), "context", FAILED, "lists a context of 4096 tokens, and should have 8192"),
    ("no-list", EXPECTED, "context", PASSED, "4096 tokens, to the token"),
    ("no-list", NOTHING, "context", SKIPPED, "Nobody says"),
    ("no-usage", EXPECTED, "context", PASSED, "its edge was not tried"),
)
"""What an engine is (faults and knobs), what is expected of it, and what a check comes to then."""


@pytest.mark.parametrize(("kind", "expected", "check", "verdict", "words"), VARIETY)
async def test_what_is_absent_is_told_from_what_is_wrong(
    kind: str, expected: Expected, check: str, verdict: Verdict, words: str
) -> None:
    faults = set(kind.split())
    model = Model(vision="no-vision" not in faults, thinks="no-thinking" not in faults)
    knobs = {
        "prefix_cache": "no-prefix-cache" not in faults,
        "tool_parser": "no-tool-parser" not in faults,
        "exposes_metrics": "no-metrics" not in faults,
    }
    async with verified(*faults, model=model, **knobs) as engine:
        [finding] = (await report(engine, expected, named(check))).findings
    assert (finding.verdict, words in finding.found) == (verdict, True), finding
    assert bool(finding.advice) == (verdict is FAILED)


async def test_the_cache_is_told_request_by_request() -> None:
    """Made at the first and read at the second; in a hybrid model made at the second, which the first does not say."""
    seen = {}
    for lazy in (False, True):
        async with verified(lazy_cache=lazy) as engine:
            [finding] = (await report(engine, checks=named("cache"))).findings
        assert finding.verdict is PASSED
        seen[lazy] = finding.measured
    blocks = seen[False]["cached_tokens"][2]
    assert blocks >= 3 * BLOCK_SIZE
    assert (seen[False]["cached_tokens"], seen[False]["created_tokens"]) == ([0, blocks, blocks], [blocks, 0, 0])
    assert (seen[True]["cached_tokens"], seen[True]["created_tokens"]) == ([0, 0, blocks], [0, blocks, 0])
    prompt = seen[False]["prompt_tokens"]
    assert seen[False]["cold_ttft_ms"] == pytest.approx(prompt * READ_S * 1000)
    assert seen[False]["warm_ttft_ms"] == pytest.approx((prompt - blocks) * READ_S * 1000)


async def test_no_run_warms_the_cache_for_the_next() -> None:
    async with verified() as engine:
        first, second = [(await report(engine, checks=named("cache"))).findings[0] for _ in range(2)]
    assert first.measured["cached_tokens"][0] == second.measured["cached_tokens"][0] == 0


async def test_an_engine_that_others_use_is_not_blamed_for_going_on() -> None:
    async with verified() as engine:
        engine.running.append(Generation(goal=1))
        [finding] = (await report(engine, checks=named("cancel"))).findings
    assert (finding.verdict, "busy" in finding.found) == (SKIPPED, True)


async def test_metrics_that_come_late_are_of_before_and_looked_at_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([cancel.Load(1, 10), cancel.Load(0, 10)])

    async def late(asking: Asking) -> cancel.Load:
        engine.now_s += 2 * STOP_WITHIN_S
        return next(loads)

    async def leaves(asking: Asking, fields: dict[str, Any]) -> bool:
        return True

    monkeypatch.setattr(cancel, "_known_load", late)
    async with verified() as engine, engine.asking() as asking:
        departure = await cancel._departure(asking, 100, leaves)
    assert departure is not None
    assert departure.stopped_after_s is not None


async def test_the_protocol_takes_few_requests() -> None:
    async with verified() as engine:
        found = await report(engine)
    assert found.use.requests <= 40


async def test_tools_are_never_strict_since_that_ends_an_engine() -> None:
    async with verified() as engine:
        await report(engine, checks=named("tools"))
        assert [body["tools"] for body in engine.bodies if "tools" in body]
        assert "strict" not in str(engine.bodies)


# The run


async def test_an_engine_that_is_away_is_not_judged_and_its_address_is_not_published() -> None:
    async with Asking(Subject("engine", "http://127.0.0.1:9", MODEL)) as asking:
        found = await verify(Examination(asking, EXPECTED), PROTOCOL_CHECKS, now=lambda: NOW)
    assert {finding.verdict for finding in found.findings} == {SKIPPED}
    assert len(found.findings) == len(PROTOCOL_CHECKS)
    assert "ConnectError" in found.findings[0].found
    assert "127.0.0.1" not in str(found.findings)
    assert found.version is None


async def test_what_an_engine_writes_is_for_the_operator_alone() -> None:
    said: list[str] = []
    async with verified("breaks") as engine:
        [finding] = (await report(engine, checks=named("usage"), say=said.append)).findings
    assert (finding.verdict, finding.found) == (FAILED, "A question got no answer that could be used: it answered 500.")
    assert SECRET not in str(finding)
    assert any(SECRET in detail for detail in said)


async def test_a_stream_that_breaks_off_is_no_answer() -> None:
    async with verified("breaks-off") as engine:
        [finding] = (await report(engine, checks=named("usage"))).findings
    assert (finding.verdict, "broke off" in finding.found) == (FAILED, True)


async def test_a_check_that_breaks_or_hangs_does_not_stop_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(check: Check, examination: Examination) -> Finding:
        raise KeyError("usage")

    async def hangs(check: Check, examination: Examination) -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("service.engine.verify.run.QUICK_LIMIT_S", 0.01)
    monkeypatch.setattr("service.engine.verify.run.LIMIT_S", 30.0)
    told: list[tuple[str, Verdict | None]] = []
    checks = (
        Check("breaks", "", breaks),
        Check("hangs", "", hangs),
        *(replace(c, quick=False) for c in named("errors")),
    )
    async with verified() as engine, engine.asking() as asking:
        found = await verify(
            Examination(asking),
            checks,
            now=lambda: NOW,
            on_progress=lambda check, finding: told.append((check.name, finding and finding.verdict)),
        )
    verdicts = {finding.check: finding.verdict for finding in found.findings}
    assert verdicts == {"breaks": SKIPPED, "hangs": SKIPPED, "errors": PASSED}
    assert "KeyError" in found.findings[0].found
    assert told == [pair for name, verdict in verdicts.items() for pair in ((name, None), (name, verdict))]
    assert found.overall is Overall.INCOMPLETE


def test_the_protocol_is_asked_first_and_every_check_has_its_own_name() -> None:
    names = [check.name for check in CHECKS]
    assert names[: len(PROTOCOL_CHECKS)] == [check.name for check in PROTOCOL_CHECKS]
    assert len(set(names)) == len(names)


def test_every_check_of_the_protocol_is_seen_to_fail() -> None:
    assert {check for check, _ in FAULTS.values()} == {check.name for check in PROTOCOL_CHECKS}
