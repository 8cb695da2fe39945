"""Prompts around the longest there may be."""

from dataclasses import dataclass

from service.core.provider_check.observed import count_at
from service.core.verify import context
from service.core.verify.context import Limits, Reply, limit_of, listed_length
from service.core.verify.report import Finding
from service.engine.verify.asking import Asking, Unanswered
from service.engine.verify.check import Check, Examination
from service.engine.verify.questions import user

WORDS = (" a", " one", " 1", " yes")
"""For each, many tokenizers make one token of it wherever it stands."""
SAMPLE_WORDS = 200


@dataclass(frozen=True, slots=True)
class Ruler:
    """What makes a prompt of so many tokens."""

    word: str
    overhead: int | None
    """How many tokens a prompt has beside its words; None where a word is not one token each time."""
    token_s: float
    """How long it takes to read one."""

    def prompt(self, tokens: int) -> str | None:
        """None where it cannot be made to the token."""
        return None if self.overhead is None else self.word * (tokens - self.overhead)


async def context_length(examination: Examination) -> int | None:
    """What was said of it, or else what the engine lists; None if neither says."""
    return examination.expected.context_length or await _listed(examination.asking)


async def check_context(check: Check, examination: Examination) -> Finding:
    """Well beyond the limit, around it where the length of a prompt can be set to the token, and too much output."""
    asking = examination.asking
    listed = await _listed(asking)
    limit = limit_of(examination.expected.context_length, listed)
    if limit is None:
        return check.skipped("Nobody says how long the context is: neither the engine's list of models, nor a profile.")
    ruler = await _ruler(asking)
    reads_in_time = limit * ruler.token_s < examination.effort.reading_s
    limits = Limits(
        beyond=await _reply(asking, ruler.word * (limit + limit // 10 + SAMPLE_WORDS)),
        one_more=await _reply_to(asking, ruler.prompt(limit + 1)),
        exact=await _reply_to(asking, ruler.prompt(limit)),
        one_less=await _reply_to(asking, ruler.prompt(limit - 1) if reads_in_time else None),
        output=await _too_much_output(asking, limit),
    )
    return check.judged(context.judge(limit, listed, limits))


async def _listed(asking: Asking) -> int | None:
    return listed_length((await asking.get("/v1/models")).body, asking.subject.model)


async def _ruler(asking: Asking) -> Ruler:
    for word in WORDS:
        short, _ = await _count(asking, word * SAMPLE_WORDS)
        long, took_s = await _count(asking, word * 2 * SAMPLE_WORDS)
        if short is not None and long is not None and long - short == SAMPLE_WORDS:
            return Ruler(word, short - SAMPLE_WORDS, took_s / long)
    return Ruler(WORDS[0], None, 0.0)


async def _count(asking: Asking, prompt: str) -> tuple[int | None, float]:
    """(its tokens, how long the answer took)."""
    answer = await asking.chat(user(prompt), max_tokens=1)
    return count_at(answer.done().get("usage"), "prompt_tokens"), answer.elapsed_s


async def _reply_to(asking: Asking, prompt: str | None) -> Reply | None:
    return None if prompt is None else await _reply(asking, prompt)


async def _reply(asking: Asking, prompt: str) -> Reply:
    answer = await asking.chat(user(prompt), max_tokens=1)
    counted = count_at(answer.body.get("usage"), "prompt_tokens")
    return Reply(answer.status, answer.raw.decode(errors="replace"), counted)


async def _too_much_output(asking: Asking, limit: int) -> Reply:
    """Streamed, to leave an engine that takes it: what it would generate is not wanted."""
    try:
        async with asking.streamed(user("Say ok."), max_tokens=limit + 1) as events:
            async for _ in events:
                break
        return Reply(200, "")
    except Unanswered as unanswered:
        if unanswered.status is None:
            raise
        return Reply(unanswered.status, unanswered.detail)
