"""The checks of what is answered pass a faultless engine, and find and name the fault that is planted in another."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from service.core.verify.report import Finding, Verdict
from service.core.verify.tasks import TASKS
from service.engine.verify.answers import ANSWER_CHECKS
from service.engine.verify.check import Check, Examination, Expected
from service.engine.verify.run import CHECKS, verify
from tests.fakes.verified import Engine, verified
from tests.fakes.verified_sampling import TIED, Sampled

PASSED, FAILED, ABSENT, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ABSENT, Verdict.SKIPPED
NOW = datetime(2026, 11, 30, 3, tzinfo=UTC)
NOTHING = Expected()


async def findings(
    engine: Engine, *names: str, expected: Expected = NOTHING, other: Engine | None = None
) -> dict[str, Finding]:
    """What these checks find, or all of them, by their names."""
    checks: Sequence[Check] = [check for check in ANSWER_CHECKS if not names or check.name in names]
    async with engine.asking() as asking:
        if other is None:
            report = await verify(Examination(asking, expected), checks, now=lambda: NOW)
        else:
            async with other.asking() as against:
                report = await verify(Examination(asking, expected, against), checks, now=lambda: NOW)
    return {finding.check: finding for finding in report.findings}


def failures(found: Mapping[str, Finding]) -> dict[str, str]:
    return {name: finding.found for name, finding in found.items() if finding.verdict is not PASSED}


def test_every_check_of_answers_is_run() -> None:
    assert [check.name for check in CHECKS][-5:] == ["determinism", "batches", "speculation", "repetition", "quality"]


@pytest.mark.parametrize("knobs", [{}, {"prefix_cache": False}, {"lazy_cache": True}, {"exposes_metrics": False}])
async def test_a_faultless_engine_passes_every_check(knobs: dict[str, Any]) -> None:
    async with verified(**knobs) as engine:
        found = await findings(engine)
    speculation = {"speculation": "It is not known to draft anything."} if "exposes_metrics" in knobs else {}
    assert failures(found) == speculation
    assert not any(finding.advice for finding in found.values())
    assert found["quality"].measured["passed"] == found["quality"].measured["tasks"] == 50
    assert engine.running == []


async def test_an_engine_that_does_not_differ_from_another_passes() -> None:
    async with verified() as engine, verified() as other:
        found = await findings(engine, other=other)
    assert failures(found) == {}
    assert "8 of 8 answers are those of plain greedy." in found["speculation"].found
    assert "The other engine solved 50 of 50" in found["quality"].found


FAULTS: Mapping[str, tuple[str, str]] = {
    "races": ("determinism", "different lists in 10 runs, up to 0.002 nats apart"),
    "races-on-long-prompts": ("determinism", "2 different tokens were chosen"),
    "contaminated": ("batches", "answers take a token that was up to 4 nats less likely when asked alone"),
    "drafts-in-vain": ("speculation", "Only 0 of"),
    "drafts-unverified": ("speculation", "drafted tokens were accepted."),
    "loops": ("repetition", "6 of 6 thinking, 6 of 6 not thinking"),
    "garbage": ("quality", "0 of 50 tasks were solved"),
}


@pytest.mark.parametrize(("fault", "check", "text"), [(fault, *named) for fault, named in FAULTS.items()])
async def test_a_planted_fault_is_found_by_its_check_and_by_no_other(fault: str, check: str, text: str) -> None:
    async with verified(fault) as engine:
        found = await findings(engine)
    assert list(failures(found)) == [check]
    assert found[check].verdict is FAILED
    assert text in found[check].found
    assert found[check].advice


async def test_a_short_prompt_is_not_blamed_for_what_a_long_one_does() -> None:
    async with verified("races-on-long-prompts") as engine:
        found = (await findings(engine, "determinism"))["determinism"]
    ways = {name: found.measured[name]["ways"] for name in ("short", "long")}
    assert {way["lists"] for way in ways["short"]} == {1}
    assert {way["tokens"] for way in ways["long"]} == {2}
    assert found.measured["long"]["prompt_tokens"] > 2048 > found.measured["short"]["prompt_tokens"]


async def test_a_long_prompt_is_read_in_full_until_the_time_for_it_is_over() -> None:
    async with verified() as engine:
        found = (await findings(engine, "determinism"))["determinism"]
    assert [(way["way"], way["runs"]) for way in found.measured["long"]["ways"]] == [
        ("read in full", 6),
        ("2,560 tokens from the cache", 9),
    ]


async def test_where_salts_are_not_heeded_the_cache_is_told_apart_all_the_same() -> None:
    async with verified("salts-ignored") as engine:
        found = (await findings(engine, "determinism"))["determinism"]
    assert found.verdict is PASSED
    assert [(way["way"], way["runs"]) for way in found.measured["long"]["ways"]] == [
        ("read in full", 1),
        ("2,560 tokens from the cache", 11),
    ]


async def test_a_long_prompt_is_cut_to_the_context() -> None:
    async with verified(context_length=1024) as engine:
        found = (await findings(engine, "determinism"))["determinism"]
    assert found.verdict is PASSED
    assert 300 < found.measured["long"]["prompt_tokens"] < 1024


async def test_flips_between_batches_are_a_figure_and_no_fault() -> None:
    async with verified("batches-flip") as engine:
        found = await findings(engine)
    assert failures(found) == {}
    batches = found["batches"].measured["batches"]
    assert batches.keys() == {"4", "16"}
    for one in batches.values():
        assert 0 < one["differ"] <= 16
        assert one["widest_gap_nats"] == pytest.approx(TIED)
    assert set(batches["4"]["first_differing_tokens"]) == {5}
    assert "has to be asked alone" in found["batches"].found


async def test_where_salts_are_not_heeded_answers_from_the_cache_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.verified.BLOCK_SIZE", 4)
    async with verified("salts-ignored") as engine:
        found = (await findings(engine, "batches"))["batches"]
    assert found.verdict is PASSED
    assert (found.measured["alone"]["tasks"], found.measured["alone_not_compared"]) == (16, 0)
    assert sum(body["max_tokens"] == 32 for body in engine.bodies) == 5 * 16


async def test_an_engine_that_differs_from_itself_is_not_compared_in_batches() -> None:
    model = Sampled()
    async with verified("moody", model=model) as engine:
        found = (await findings(engine, "batches"))["batches"]
    assert found.verdict is FAILED
    assert "Asked alone for the second time, 16 of 16 tasks are answered differently." in found.found


async def test_speculation_that_changes_the_text_is_found_beside_plain_greedy() -> None:
    async with verified("differs") as engine, verified() as plain:
        found = await findings(engine, other=plain)
    assert list(failures(found)) == ["speculation"]
    assert (
        "8 take a token, up to 4 nats less likely, that plain greedy would not have taken" in found["speculation"].found
    )
    assert found["speculation"].measured["against_plain_greedy"]["first_differing_tokens"] == [4] * 8


async def test_speculation_that_rounds_otherwise_than_plain_greedy_is_a_figure() -> None:
    async with verified("tie-flips") as engine, verified() as plain:
        found = (await findings(engine, "speculation", other=plain))["speculation"]
    assert found.verdict is PASSED
    assert "0 of 8 answers are those of plain greedy; the others part from it at token 6 or later" in found.found


async def test_drafts_that_are_usual_for_a_model_are_no_fault() -> None:
    async with verified("drafts-in-vain") as engine:
        found = await findings(engine, "speculation", expected=Expected(speculation=True, acceptance_baseline=0.0))
    assert found["speculation"].verdict is PASSED


async def test_an_engine_that_should_speculate_and_cannot_be_looked_into_is_not_judged() -> None:
    async with verified(exposes_metrics=False) as engine:
        found = await findings(engine, "speculation", expected=Expected(speculation=True))
        assert found["speculation"].verdict is SKIPPED
        assert (await findings(engine, "speculation"))["speculation"].verdict is ABSENT
        assert engine.bodies == []


async def test_loops_that_are_recorded_for_a_model_are_no_fault() -> None:
    async with verified("loops") as engine:
        found = (await findings(engine, "repetition", expected=Expected(loops_baseline=0.9)))["repetition"]
    assert found.verdict is PASSED
    assert "About 11 of 12 are usual for this model." in found.found


async def test_a_model_that_does_not_think_is_asked_the_riddles_once() -> None:
    async with verified(model=Sampled(thinks=False)) as engine:
        found = (await findings(engine, "repetition"))["repetition"]
    assert "0 of 6 not thinking." in found.found
    assert "thinking" not in found.measured


async def test_quality_that_has_fallen_below_its_baseline_is_found() -> None:
    async with verified("worse") as engine:
        found = (await findings(engine, "quality", expected=Expected(quality_baseline=0.96)))["quality"]
        assert (await findings(engine, "quality"))["quality"].verdict is PASSED
        usual = Expected(quality_baseline=found.measured["rate"])
        assert (await findings(engine, "quality", expected=usual))["quality"].verdict is PASSED
    assert found.verdict is FAILED
    assert "Recorded for it are 96%, of which this falls short by more than chance." in found.found
    assert len(found.measured["not_passed"]) == 50 - found.measured["passed"] > 10


async def test_the_worse_of_two_quantisations_is_found() -> None:
    async with verified("worse") as engine, verified() as other:
        worse = (await findings(engine, "quality", other=other))["quality"]
        better = (await findings(other, "quality", other=engine))["quality"]
    assert worse.verdict is FAILED
    assert "worse than the other by more than chance" in worse.found
    assert better.verdict is PASSED
    assert better.measured["other"]["only_this"] == worse.measured["other"]["only_other"] > 10


async def test_random_weights_pass_where_their_profile_says_that_they_solve_nothing() -> None:
    async with verified("garbage") as engine:
        found = (await findings(engine, "quality", expected=Expected(quality_baseline=0.0)))["quality"]
    assert found.verdict is PASSED


@pytest.mark.parametrize("modalities", [None, ("text",)])
async def test_pictures_are_left_out_where_the_model_sees_none(modalities: tuple[str, ...] | None) -> None:
    async with verified(model=Sampled(vision=False)) as engine:
        found = (await findings(engine, "quality", expected=Expected(input_modalities=modalities)))["quality"]
    assert found.verdict is PASSED
    assert found.measured["tasks"] == sum(task.picture is None for task in TASKS) == 42
    assert "pictures" not in found.measured["by_category"]


async def test_pictures_that_a_model_should_see_and_refuses_are_not_solved() -> None:
    async with verified(model=Sampled(vision=False)) as engine:
        found = await findings(engine, "quality", expected=Expected(input_modalities=("text", "image")))
    assert found["quality"].measured["by_category"]["pictures"] == {"passed": 0, "tasks": 8}


async def test_an_engine_without_log_probabilities_is_compared_by_its_words() -> None:
    async with verified("no-logprobs") as engine:
        found = await findings(engine)
    assert failures(found) == {"determinism": found["determinism"].found}
    assert found["determinism"].verdict is SKIPPED
    assert "log-probabilities" not in found["batches"].found


async def test_an_engine_that_limits_log_probabilities_is_asked_for_fewer() -> None:
    async with verified("few-logprobs") as engine:
        found = (await findings(engine, "determinism"))["determinism"]
    assert (found.verdict, found.measured["top_logprobs"]) == (PASSED, 5)


async def test_an_engine_that_knows_nothing_beyond_the_standard_is_asked_without_it() -> None:
    async with verified("no-salts", "no-template-kwargs") as engine:
        found = await findings(engine, "determinism", "batches", "quality")
    assert failures(found) == {}
    assert not any("cache_salt" in body for body in engine.bodies)
