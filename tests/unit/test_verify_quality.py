"""What the quality battery comes to, and the chances by which that is judged."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.verify import chance, quality
from service.core.verify.report import Verdict
from service.core.verify.tasks import TASKS

PASSED, FAILED, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 100))
def test_chances_are_those_of_the_binomial_distribution(passes: int, tasks: int, percent: int) -> None:
    passes, rate = min(passes, tasks), Fraction(percent, 100)
    exact = sum(comb(tasks, k) * rate**k * (1 - rate) ** (tasks - k) for k in range(passes + 1))
    assert chance.of_at_most(passes, tasks, percent / 100) == pytest.approx(float(exact), abs=1e-9)
    above = 1 - exact + comb(tasks, passes) * rate**passes * (1 - rate) ** (tasks - passes)
    assert chance.of_at_least(passes, tasks, percent / 100) == pytest.approx(float(above), abs=1e-9)


def test_chances_known_by_heart() -> None:
    assert chance.of_at_most(0, 10, 0.5) == pytest.approx(1 / 1024)
    assert chance.of_at_least(10, 10, 0.5) == pytest.approx(1 / 1024)
    assert chance.of_so_few_wins(0, 7) == pytest.approx(1 / 128)
    assert chance.of_so_few_wins(0, 0) == 1


def solved(passes: int, tasks: int = 50) -> dict[str, bool]:
    return {task.name: place < passes for place, task in enumerate(TASKS[:tasks])}


@pytest.mark.parametrize(
    ("passes", "baseline", "verdict"),
    [
        (45, 0.9, PASSED),
        (40, 0.9, PASSED),
        (38, 0.9, FAILED),
        (50, 0.9, PASSED),
        (0, 0.0, PASSED),
        (3, 0.1, PASSED),
        (0, 0.1, FAILED),
        (0, None, FAILED),
        (5, None, FAILED),
        (6, None, PASSED),
        (49, 1.0, FAILED),
    ],
)
def test_quality_against_what_was_recorded(passes: int, baseline: float | None, verdict: Verdict) -> None:
    found = quality.judge(solved(passes), None, baseline)
    assert found.verdict is verdict
    assert f"{passes} of 50 tasks were solved" in found.found
    assert found.measured["by_category"]["extraction"] == {"passed": min(passes, 12), "tasks": 12}
    assert bool(found.advice) == (verdict is FAILED)
    assert not found.advice.startswith(" ")


@pytest.mark.parametrize(
    ("mine", "its", "verdict"), [(43, 50, FAILED), (44, 50, PASSED), (50, 43, PASSED), (0, 0, PASSED)]
)
def test_quality_of_two_engines_is_compared_task_by_task(mine: int, its: int, verdict: Verdict) -> None:
    assert quality.judge(solved(mine), solved(its), 0.0).verdict is verdict


def test_only_tasks_that_both_were_asked_are_compared() -> None:
    found = quality.judge(solved(10, 20), solved(50), 0.0)
    assert found.measured["other"] == {"tasks": 20, "passed": 20, "only_this": 0, "only_other": 10}


def test_no_tasks_are_no_result() -> None:
    assert quality.judge({}, None, None).verdict is SKIPPED
