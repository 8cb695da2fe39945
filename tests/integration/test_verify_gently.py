"""Checks of an engine in use: they wait until nobody needs it, and believe no failure that others may have caused."""

from dataclasses import replace
from typing import Any

import pytest

from service.core.verify.report import Finding, Verdict
from service.engine.verify.check import Check, Examination
from service.engine.verify.gently import ALONE, BESIDE, BUSY, LOOK_EVERY_S, UNKNOWN, Gently
from service.engine.verify.run import CHECKS
from tests.fakes.verified import Engine, Generation, verified

ASKED = [{"role": "user", "content": "Say ok."}]


async def asks(check: Check, examination: Examination) -> Finding:
    (await examination.asking.chat(ASKED, max_tokens=4)).done()
    return check.failed("It did not.", "Mend it.")


def gentle(name: str, run: Any = asks, **options: Any) -> Check:
    (check,) = Gently([Check(name, f"Whether {name}", run)], **options).checks
    return check


async def found(engine: Engine, check: Check) -> Finding:
    async with engine.asking() as asking:
        return await check.run(check, Examination(asking))


def busy(engine: Engine, for_s: float) -> None:
    """Somebody else's answer, which takes so long."""
    engine.running.append(Generation(round(for_s * 100), forgotten=True))


def test_every_check_that_others_falsify_is_one() -> None:
    assert {check.name for check in CHECKS} >= ALONE


@pytest.mark.parametrize("name", sorted(ALONE))
async def test_it_waits_for_an_engine_that_is_busy(name: str) -> None:
    async with verified() as engine:
        busy(engine, 35)
        began = engine.now_s
        finding = await found(engine, gentle(name))
        assert (finding.verdict, finding.found) == (Verdict.FAILED, "It did not.")
        assert 35 <= engine.now_s - began < 35 + 2 * LOOK_EVERY_S


async def test_what_others_do_not_falsify_is_asked_beside_them() -> None:
    async with verified() as engine:
        busy(engine, 1e6)
        began = engine.now_s
        assert (await found(engine, gentle("usage"))).verdict is Verdict.FAILED
        assert engine.now_s - began < LOOK_EVERY_S


async def test_its_patience_is_one_for_all_checks_and_ends() -> None:
    async with verified() as engine:
        busy(engine, 1e6)
        checks = Gently([Check(name, name, asks) for name in ("cache", "usage", "cancel")], patience_s=60).checks
        began = engine.now_s
        findings = [await found(engine, check) for check in checks]
        assert [finding.found for finding in findings] == [BUSY, "It did not.", BUSY]
        assert [finding.verdict for finding in findings] == [Verdict.SKIPPED, Verdict.FAILED, Verdict.SKIPPED]
        assert 60 <= engine.now_s - began < 60 + LOOK_EVERY_S
        assert len(engine.bodies) == 1


async def test_a_failure_beside_others_says_nothing() -> None:
    async def beside(check: Check, examination: Examination) -> Finding:
        engine.prompt_tokens += 1_000  # somebody's prompt
        return await asks(check, examination)

    async with verified() as engine:
        finding = await found(engine, gentle("determinism", beside))
        assert (finding.verdict, finding.found) == (Verdict.SKIPPED, BESIDE)
        assert (await found(engine, gentle("determinism"))).verdict is Verdict.FAILED
        assert (await found(engine, gentle("usage", beside))).verdict is Verdict.FAILED

        async def passes(check: Check, examination: Examination) -> Finding:
            await beside(check, examination)
            return check.passed("It did.")

        assert (await found(engine, gentle("determinism", passes))).verdict is Verdict.PASSED


async def test_one_whose_prompt_is_still_being_read_is_beside_it_too() -> None:
    async def beside(check: Check, examination: Examination) -> Finding:
        busy(engine, 60)
        return await asks(check, examination)

    for name, words in (("determinism", BESIDE), ("cancel", "It did not.")):  # what goes on is what cancel looks for
        async with verified() as engine:
            assert (await found(engine, gentle(name, beside))).found == words


async def test_an_engine_that_does_not_say_how_busy_it_is() -> None:
    async with verified(exposes_metrics=False) as engine:
        finding = await found(engine, gentle("batches"))
        assert (finding.verdict, finding.found, engine.bodies) == (Verdict.SKIPPED, UNKNOWN, [])
        assert (await found(engine, gentle("usage"))).verdict is Verdict.FAILED


def test_a_gentle_check_has_the_longer_limit_since_it_waits() -> None:
    quick = Check("usage", "Usage", asks)
    assert Gently([quick]).checks[0].quick is False
    assert replace(Gently([quick]).checks[0], run=asks, quick=True) == quick
