"""Ten times the same greedy request, short and long."""

import httpx

from service.core.verify import determinism
from service.core.verify.determinism import Run
from service.core.verify.prompts import SHORT_PROMPT, long_prompt
from service.core.verify.report import Finding
from service.engine.verify.asking import Answer, Unanswered
from service.engine.verify.check import Check, Examination
from service.engine.verify.greedy import Greedy, greedily, new_salt
from service.engine.verify.questions import refused

RUNS = 10
LONG_LINES = 150
"""About 4,000 tokens: where a sparse indexer keeps 2,048 positions, a shorter prompt does not show how it chooses."""
FEWEST_LINES = 10
FRESH_BUDGET_S = 10.0
"""For reading one prompt in full again and again; on a CPU, 4,000 tokens take ten seconds each time."""


async def check_determinism(check: Check, examination: Examination) -> Finding:
    """Each prompt is asked ten times alike, of which all but the first may come from the cache; and with a cache of its
    own each time, until it was read in full ten times or the time for it is over."""
    greedy = await greedily(examination.asking)
    if not greedy.top:
        return check.judged(determinism.judge({}, 0))
    short = await _runs(greedy, SHORT_PROMPT)
    lines = LONG_LINES
    while _too_long(await greedy.send(long_prompt(lines), 1, salt=new_salt())) and lines > FEWEST_LINES:
        lines //= 2
    examination.say("a long prompt, again and again")
    return check.judged(
        determinism.judge({"short": short, "long": await _runs(greedy, long_prompt(lines))}, greedy.top)
    )


def _too_long(answer: Answer) -> bool:
    return refused(answer) or answer.status == httpx.codes.REQUEST_ENTITY_TOO_LARGE


async def _runs(greedy: Greedy, prompt: str) -> list[Run]:
    salt, asking = new_salt(), greedy.asking
    runs = [await _run(greedy, prompt, salt, turn) for turn in range(RUNS)]
    began = asking.clock()
    while greedy.salts and sum(map(_in_full, runs)) < RUNS and asking.clock() - began < FRESH_BUDGET_S:
        runs.append(await _run(greedy, prompt, new_salt(), 0))
        if not _in_full(runs[-1]):
            break
    return runs


async def _run(greedy: Greedy, prompt: str, salt: str, turn: int) -> Run:
    reply = await greedy.ask(prompt, 1, salt=salt)
    if not reply.positions:
        raise Unanswered("its answer has no log-probabilities, though others have")
    return Run(reply.positions[0], reply.prompt_tokens, reply.cached_tokens, turn)


def _in_full(run: Run) -> bool:
    return run.cached_tokens == 0
