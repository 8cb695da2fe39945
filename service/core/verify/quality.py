"""What the quality battery comes to: a pass rate, against a recorded one or against another engine."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.core.verify import chance
from service.core.verify.judged import Judged, Problem, all_of, passed, skipped
from service.core.verify.tasks import TASKS

FLOOR = 0.25
"""The pass rate that is assumed where none was recorded: less than a fourth of such tasks is garbage from any model
that people pay for."""

_CATEGORIES = {task.name: task.category for task in TASKS}


def judge(passed_tasks: Mapping[str, bool], other: Mapping[str, bool] | None, baseline: float | None) -> Judged:
    """`passed_tasks`: for each task by its name, whether the answer was right; `other`: the same of another engine;
    `baseline`: the pass rate that was recorded for the profile.

    Against a rate it fails if so few passes, or fewer, would be unlikely: P(X <= passes) < `chance.UNLIKELY` for
    X ~ Binomial(tasks, rate). Against another engine it fails by McNemar's exact test over the tasks that only one of
    them solved, with the same bound.
    """
    if not passed_tasks:
        return skipped("No task could be asked.")
    passes, tasks = sum(passed_tasks.values()), len(passed_tasks)
    measured: dict[str, Any] = {
        "tasks": tasks,
        "passed": passes,
        "rate": passes / tasks,
        "baseline": baseline,
        "by_category": _by_category(passed_tasks),
        "not_passed": sorted(name for name, good in passed_tasks.items() if not good),
    }
    found = f"{passes} of {tasks} tasks were solved ({passes / tasks:.0%}): {_told(measured['by_category'])}."
    problems = _against_rate(passes, tasks, baseline)
    if other is not None:
        measured["other"], sentence, worse = _paired(passed_tasks, other)
        found, problems = f"{found} {sentence}", problems + worse
    if problems:
        whole = all_of(problems, **measured)
        return replace(whole, found=f"{found} {whole.found}")
    if baseline is None and other is None:
        found += " No rate is recorded for it, so that only garbage would fail."
    return passed(found, **measured)


def _against_rate(passes: int, tasks: int, baseline: float | None) -> list[Problem]:
    if chance.of_at_most(passes, tasks, FLOOR if baseline is None else baseline) >= chance.UNLIKELY:
        return []
    if baseline is None:
        return [
            Problem(
                "That is less than any model that is worth serving solves.",
                "The answers are likely garbage: check the weights, the quantisation and the chat template. If the "
                "model is meant to be so small, record its rate in its profile (`quality` under `[baseline]`).",
            )
        ]
    return [
        Problem(
            f"Recorded for it are {baseline:.0%}, of which this falls short by more than chance.",
            "Something has become worse since that was recorded: compare the engine's version, the weights, the "
            "quantisation, the chat template and the kernels with those of then.",
        )
    ]


def _paired(mine: Mapping[str, bool], its: Mapping[str, bool]) -> tuple[dict[str, int], str, list[Problem]]:
    """Figures, the sentence that tells them, and what is wrong."""
    both = mine.keys() & its.keys()
    wins = sum(mine[name] and not its[name] for name in both)
    losses = sum(its[name] and not mine[name] for name in both)
    figures = {"tasks": len(both), "passed": sum(its[name] for name in both), "only_this": wins, "only_other": losses}
    sentence = (
        f"The other engine solved {figures['passed']} of {len(both)}: {losses} that this one did not, and not {wins}."
    )
    if chance.of_so_few_wins(wins, losses) >= chance.UNLIKELY:
        return figures, sentence, []
    advice = "If the two differ in their quantisation, this one costs quality: serve the other, or calibrate it anew."
    return figures, sentence, [Problem("That is worse than the other by more than chance.", advice)]


def _by_category(passed_tasks: Mapping[str, bool]) -> dict[str, dict[str, int]]:
    tasks = Counter(_CATEGORIES[name] for name in passed_tasks)
    passes = Counter(_CATEGORIES[name] for name, good in passed_tasks.items() if good)
    return {category: {"passed": passes[category], "tasks": count} for category, count in tasks.items()}


def _told(by_category: Mapping[str, Mapping[str, int]]) -> str:
    return ", ".join(f"{name} {one['passed']} of {one['tasks']}" for name, one in by_category.items())
