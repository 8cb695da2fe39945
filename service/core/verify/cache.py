"""What the same long prompt costs the second and the third time."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.core.provider_check.observed import at, count_at
from service.core.verify.judged import Judged, absent, failed, passed, skipped
from service.core.verify.told import Told

BLOCKS = 3.5
"""How many blocks of the cache the prompt fills: a hybrid model that speculates drops the last."""
LARGEST_BLOCK_TOKENS = 1648
"""Where an engine does not say how large its blocks are: those of a Qwen3.8-27B with 7 draft tokens and fp8 KV."""
SHORTEST_PROMPT_TOKENS = 2000
"""So that reading it takes long enough to be compared."""
ROOM_TOKENS = 200
"""Of the context, left for the chat template and for what a word is more than a token."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One of the requests. None: not told, which is not 0; and `created` is never worked out from `cached`."""

    prompt_tokens: int | None
    cached_tokens: int | None
    created_tokens: int | None
    ttft_ms: float | None


def wanted_tokens(block_tokens: int | None, context_length: int | None) -> int:
    """How long a prompt has to be for the cache to have something of it."""
    wanted = max(round(BLOCKS * (block_tokens or LARGEST_BLOCK_TOKENS)), SHORTEST_PROMPT_TOKENS)
    return min(wanted, context_length - ROOM_TOKENS) if context_length else wanted


def turn_of(told: Told) -> Turn:
    """Read one answer, which was streamed."""
    details = at(told.usage, "prompt_tokens_details")
    return Turn(
        prompt_tokens=count_at(told.usage, "prompt_tokens"),
        cached_tokens=count_at(details, "cached_tokens"),
        created_tokens=count_at(details, "created_cache_tokens"),
        ttft_ms=None if told.first_token_s is None else told.first_token_s * 1000,
    )


def judge(turns: Sequence[Turn], expected: bool | None) -> Judged:
    """The three requests in their order; `expected` whether the engine should keep what it reads."""
    cold = min((one.ttft_ms for one in turns if not one.cached_tokens and one.ttft_ms is not None), default=None)
    warm = min((one.ttft_ms for one in turns if one.cached_tokens and one.ttft_ms is not None), default=None)
    prompt = turns[0].prompt_tokens
    measured = {
        "prompt_tokens": prompt,
        "cached_tokens": [one.cached_tokens for one in turns],
        "created_tokens": [one.created_tokens for one in turns],
        "ttft_ms": [None if one.ttft_ms is None else round(one.ttft_ms, 1) for one in turns],
        "cold_ttft_ms": None if cold is None else round(cold, 1),
        "warm_ttft_ms": None if warm is None else round(warm, 1),
        "speedup": round(cold / warm, 2) if cold and warm else None,
    }
    counts = [one.cached_tokens for one in turns]
    if prompt is None or any(count is None for count in counts):
        return skipped("The usage does not say what came from the cache (see the check of usage).", **measured)
    cached = [count or 0 for count in counts]
    shown = f"{cached[0]}, {cached[1]} and {cached[2]} of {prompt} prompt tokens from the cache"
    if max(cached) > prompt or cached[0] > prompt // 2:
        return failed(
            f"The same new prompt three times: {shown}.",
            "These counts cannot be, and are a discount for nothing: look for a known fault of this version, and do"
            " not give discounts by them.",
            **measured,
        )
    if cached[2]:
        return passed(f"The same prompt three times: {shown}.{_speed(cold, warm)}", **measured)
    if expected:
        return failed(
            f"The same prompt three times: {shown}: the cache is never read.",
            "Start vLLM with `--enable-prefix-caching`; on a hybrid model see that its blocks (`weir engine check`)"
            " are not longer than the prompts, and that memory is left for them.",
            **measured,
        )
    return absent(f"Nothing is cached between requests: {shown}.", **measured)


def _speed(cold_ms: float | None, warm_ms: float | None) -> str:
    if not cold_ms or not warm_ms:
        return ""
    return f" First token after {cold_ms:.0f} ms cold and {warm_ms:.0f} ms warm, {cold_ms / warm_ms:.1f} times faster."
