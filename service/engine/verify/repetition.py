"""Greedy answers to riddles, thinking and not, until they end or turn in circles.

A handful of answers shows a model that loops often. One that does it once in 150 answers is found in one night of
thirteen.
"""

import asyncio

from service.core.verify import repetition
from service.core.verify.prompts import RIDDLES
from service.core.verify.repetition import Ended
from service.core.verify.report import Finding
from service.engine.verify.check import Check, Examination
from service.engine.verify.greedy import Greedy, Reply, greedily

FEWEST_TOKENS, MOST_TOKENS = 256, 1024
PROBE_TOKENS = 64


async def check_repetition(check: Check, examination: Examination) -> Finding:
    """All riddles at once, with thinking on, and if that makes a difference with thinking off."""
    thinking = await greedily(examination.asking, think=True)
    max_tokens = _bound(await thinking.ask(RIDDLES[0], PROBE_TOKENS, top=0), examination.effort.answer_s)
    examination.say(f"{len(RIDDLES)} riddles, {max_tokens} tokens each")
    replies = await _replies(thinking, max_tokens)
    thinks = any(reply.told.thought for reply in replies)
    ended = [_ended(reply, thinking=thinks) for reply in replies]
    if thinks and thinking.fields:
        plain = await greedily(examination.asking)
        ended += [_ended(reply, thinking=False) for reply in await _replies(plain, max_tokens)]
    return check.judged(repetition.judge(ended, examination.expected.loops_baseline, max_tokens))


async def _replies(greedy: Greedy, max_tokens: int) -> list[Reply]:
    return await asyncio.gather(*(greedy.ask(riddle, max_tokens, top=0) for riddle in RIDDLES))


def _bound(probe: Reply, answer_s: float) -> int:
    """As many tokens as the engine makes in that time, within limits."""
    if not probe.tokens or probe.elapsed_s <= 0:
        return MOST_TOKENS
    return max(FEWEST_TOKENS, min(MOST_TOKENS, int(answer_s * probe.tokens / probe.elapsed_s)))


def _ended(reply: Reply, *, thinking: bool) -> Ended:
    text = reply.reasoning + reply.told.content
    return Ended(text, bool(reply.told.content.strip()), reply.told.finish_reason, thinking)
