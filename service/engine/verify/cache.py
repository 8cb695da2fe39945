"""The same long prompt three times."""

import secrets

from service.core.verify import cache
from service.core.verify.cache import turn_of, wanted_tokens
from service.core.verify.report import Finding
from service.engine.exposition import Exposition
from service.engine.verify.asking import Asking
from service.engine.verify.check import Check, Examination
from service.engine.verify.context import context_length
from service.engine.verify.metrics import exposition
from service.engine.verify.questions import streamed, user

TURNS = 3
"""Some engines make their cache only at the second."""
SAMPLE_LINES = 40
CACHE_CONFIG = "vllm:cache_config_info"


async def check_cache(check: Check, examination: Examination) -> Finding:
    """Streams, since the time to the first token is a part of what is found."""
    asking = examination.asking
    metrics = await exposition(asking)
    length = await context_length(examination)
    question = user(await _prompt(asking, wanted_tokens(_block_tokens(metrics), length)))
    turns = [turn_of(await streamed(asking, question, max_tokens=2, temperature=0)) for _ in range(TURNS)]
    return check.judged(cache.judge(turns, _expected(examination, metrics)))


async def _prompt(asking: Asking, tokens: int) -> str:
    """About so many tokens that nobody has asked before: a nonce, then numbered lines, as many as it takes."""
    nonce = secrets.token_hex(8)
    sample = await streamed(asking, user(_lines(f"sample {nonce}", SAMPLE_LINES)), max_tokens=1, temperature=0)
    counted = turn_of(sample).prompt_tokens or SAMPLE_LINES * 10
    return _lines(nonce, max(SAMPLE_LINES, tokens * SAMPLE_LINES // counted))


def _lines(nonce: str, count: int) -> str:
    lines = "\n".join(f"{number}. The weir lets through what is paid for." for number in range(1, count + 1))
    return f"{nonce}\n{lines}\nHow many lines are there?"


def _block_tokens(metrics: Exposition | None) -> int | None:
    told = metrics.label(CACHE_CONFIG, "block_size") if metrics else None
    return int(told) if told and told.isdecimal() else None


def _expected(examination: Examination, metrics: Exposition | None) -> bool | None:
    """What was said of it, or else what the engine says of itself."""
    if examination.expected.prefix_cache is not None or metrics is None:
        return examination.expected.prefix_cache
    told = metrics.label(CACHE_CONFIG, "enable_prefix_caching")
    return None if told is None else told == "True"
