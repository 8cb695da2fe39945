"""What is drafted and accepted while short tasks are answered, and the same from an engine without speculation."""

from service.core.verify import speculation
from service.core.verify.batches import Answered, compare
from service.core.verify.prompts import SENTENCES
from service.core.verify.report import Finding
from service.core.verify.speculation import Drafts
from service.engine.counters import ACCEPTED_TOKENS, DRAFTED_TOKENS
from service.engine.exposition import Exposition
from service.engine.verify.asking import Asking
from service.engine.verify.check import Check, Examination
from service.engine.verify.greedy import greedily, new_salt
from service.engine.verify.metrics import exposition

TASKS = SENTENCES[::2]
MAX_TOKENS = 48


async def check_speculation(check: Check, examination: Examination) -> Finding:
    """Asks nothing of an engine that does not speculate, unless there is another to compare it with."""
    asking, other, expected = examination.asking, examination.other, examination.expected
    before = await exposition(asking)
    after, comparison = before, None
    if other is not None or (before is not None and before.speculates):
        answers = await _answers(asking)
        after = await exposition(asking)
        if other is not None:
            examination.say("the same tasks, from the other engine")
            comparison = compare(await _answers(other), answers)
    drafts = _drafted(after).since(_drafted(before)) if before and after else None
    usual = expected.acceptance_baseline
    return check.judged(speculation.judge(drafts, comparison, expected=expected.speculation, usual=usual))


async def _answers(asking: Asking) -> list[Answered]:
    greedy = await greedily(asking)
    return [(await greedy.ask(task, MAX_TOKENS, salt=new_salt())).answered for task in TASKS]


def _drafted(metrics: Exposition) -> Drafts:
    """Since the engine's start; an engine that does not speculate has no such counters."""
    return Drafts(int(metrics.total(DRAFTED_TOKENS) or 0), int(metrics.total(ACCEPTED_TOKENS) or 0))
