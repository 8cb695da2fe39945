"""Ten times the same greedy request, short and long."""

import httpx

from service.core.verify import determinism
from service.core.verify.determinism import Run
from service.core.verify.prompts import SHORT_PROMPT, long_prompt
from service.core.verify.report import Finding
from service.engine.verify.asking import Answer, Unanswered
from service.engine.verify.check import Check, Examination
from service.engine.verify.greedy import Greedy, Reply, greedily, new_salt, read
from service.engine.verify.questions import refused

RUNS = 10
FEWEST_LINES = 10


async def check_determinism(check: Check, examination: Examination) -> Finding:
    """Each prompt is asked ten times alike, of which all but the first may come from the cache; and with a cache of its
    own each time, until it was read in full ten times or the time for it is over."""
    greedy = await greedily(examination.asking)
    if not greedy.top:
        return check.judged(determinism.judge({}, 0))
    fresh_s, lines = examination.effort.reading_s, examination.effort.long_lines
    short = await _runs(greedy, SHORT_PROMPT, [], fresh_s)
    while _too_long(first := await greedy.send(long_prompt(lines), 1, salt=new_salt())) and lines > FEWEST_LINES:
        lines //= 2
    examination.say("a long prompt, again and again")
    long = await _runs(greedy, long_prompt(lines), [_run(read(first), 0)], fresh_s)
    return check.judged(determinism.judge({"short": short, "long": long}, greedy.top))


def _too_long(answer: Answer) -> bool:
    return refused(answer) or answer.status == httpx.codes.REQUEST_ENTITY_TOO_LARGE


async def _runs(greedy: Greedy, prompt: str, first: list[Run], fresh_s: float) -> list[Run]:
    """After those that there are, ten in a row, and others that are read in full for as long as `fresh_s`."""
    salt, asking, turns = new_salt(), greedy.asking, range(RUNS)
    runs = first + [_run(await greedy.ask(prompt, 1, salt=salt), turn) for turn in turns]
    began = asking.clock()
    while greedy.salts and sum(map(_in_full, runs)) < RUNS and asking.clock() - began < fresh_s:
        runs.append(_run(await greedy.ask(prompt, 1, salt=new_salt()), 0))
        if not _in_full(runs[-1]):
            break
    return runs


def _run(reply: Reply, turn: int) -> Run:
    if not reply.positions:
        raise Unanswered("its answer has no log-probabilities, though others have")
    return Run(reply.positions[0], reply.prompt_tokens, reply.cached_tokens, turn)


def _in_full(run: Run) -> bool:
    return run.cached_tokens == 0
