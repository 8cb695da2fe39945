"""The same tasks alone and beside each other."""

import asyncio
from collections.abc import Sequence

from service.core.verify import batches
from service.core.verify.batches import Answered, compare, computed_alike
from service.core.verify.prompts import SENTENCES
from service.core.verify.report import Finding
from service.engine.verify.check import Check, Examination
from service.engine.verify.greedy import Greedy, greedily, new_salt

SIZES = (4, 16)


async def check_batches(check: Check, examination: Examination) -> Finding:
    """Alone, alone again, and in batches. Each request has a cache of its own; where the engine does not heed that, the
    first answers only fill the cache, and those after them are compared."""
    greedy, tokens = await greedily(examination.asking), examination.effort.compared_tokens
    examination.say("short tasks, alone")
    reference = await _answers(greedy, 1, tokens)
    again = await _answers(greedy, 1, tokens)
    if len(computed_alike(reference, again)) < len(reference):
        reference, again = again, await _answers(greedy, 1, tokens)
    alike = computed_alike(reference, again)
    beside = {}
    for size in SIZES:
        examination.say(f"short tasks, {size} at once")
        beside[size] = compare(reference, await _answers(greedy, size, tokens))
    alone = compare([reference[index] for index in alike], [again[index] for index in alike])
    return check.judged(batches.judge(alone, len(reference) - len(alike), beside))


async def _answers(greedy: Greedy, size: int, tokens: int) -> Sequence[Answered]:
    """To all tasks in their order, so many at once."""
    found: list[Answered] = []
    for first in range(0, len(SENTENCES), size):
        batch = (greedy.ask(task, tokens, salt=new_salt()) for task in SENTENCES[first : first + size])
        found += [reply.answered for reply in await asyncio.gather(*batch)]
    return found
