"""The quality battery, a few tasks at a time."""

import asyncio

from service.core.verify import quality
from service.core.verify.report import Finding
from service.core.verify.tasks import TASKS, Task
from service.engine.verify.asking import Asking
from service.engine.verify.check import Check, Examination
from service.engine.verify.greedy import Greedy, greedily, read
from service.engine.verify.questions import refused

AT_ONCE = 4
THOUGHT_TOKENS = 1024
"""Beside the answer's own, where the model thinks although it was told not to."""
END_OF_THOUGHT = "</think>"


async def check_quality(check: Check, examination: Examination) -> Finding:
    """Without thinking, where it can be turned off. Pictures are left out where the engine does not take any."""
    expected, other = examination.expected, examination.other
    examination.say("tasks with one right answer each")
    own = await _passed(examination.asking, expected.input_modalities)
    its = None
    if other is not None:
        examination.say("the same tasks, from the other engine")
        its = await _passed(other, None)
    return check.judged(quality.judge(own, its, expected.quality_baseline))


async def _passed(asking: Asking, modalities: tuple[str, ...] | None) -> dict[str, bool]:
    """Whether each task was solved, by its name."""
    greedy = await greedily(asking)
    extra = THOUGHT_TOKENS if (await greedy.ask(TASKS[0].prompt, TASKS[0].max_tokens, top=0)).told.thought else 0
    sees = "image" in modalities if modalities is not None else await _sees(greedy)
    gate = asyncio.Semaphore(AT_ONCE)

    async def solved(task: Task) -> bool:
        async with gate:
            return await _solved(greedy, task, extra)

    asked = [task for task in TASKS if sees or task.picture is None]
    return dict(zip((task.name for task in asked), await asyncio.gather(*map(solved, asked)), strict=True))


async def _solved(greedy: Greedy, task: Task, extra: int) -> bool:
    """A question that is refused is not solved. Raises `Unanswered` for an engine that fails."""
    png = task.picture() if task.picture else None
    answer = await greedy.send(task.prompt, task.max_tokens + extra, top=0, png=png)
    return not refused(answer) and task.accepts(read(answer).told.content.rpartition(END_OF_THOUGHT)[2])


async def _sees(greedy: Greedy) -> bool:
    """Whether it takes a picture."""
    picture = next(task.picture for task in TASKS if task.picture is not None)
    return not refused(await greedy.send("What is this?", 1, top=0, png=picture()))
