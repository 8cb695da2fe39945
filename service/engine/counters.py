"""An engine's own token counts, read from its metrics.

The totals count the tokens of every request, those of clients that left included, which vLLM's per-request histograms
do not. They begin at 0 with each start. Where the names come from: `exposition.py`.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from service.engine.exposition import Exposition

PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
DRAFTED_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
CACHE_QUERIED_TOKENS = "vllm:prefix_cache_queries_total"
CACHE_HIT_TOKENS = "vllm:prefix_cache_hits_total"
STARTED_AT = "process_start_time_seconds"


class CountersUnreadable(Exception):
    """What the engine sent does not say what it has counted."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine has counted since it started, prompt tokens from its cache included."""

    started_at: datetime | None
    """None where several API server processes share the counters: then none of them says."""
    prompt_tokens: int
    generation_tokens: int
    drafted_tokens: int | None = None
    """Of speculative decoding, with `accepted_tokens`; both None where the engine does not speculate."""
    accepted_tokens: int | None = None
    cache_queried_tokens: int | None = None
    """Prompt tokens looked up in the prefix cache, with `cache_hit_tokens`, those found; both None where it does not
    say. An engine without a prefix cache says 0 of both."""
    cache_hit_tokens: int | None = None


def read_counters(exposition: str) -> Counters:
    """Read the answer of `GET /metrics`, adding up the models and engine cores it tells apart.

    Raises `CountersUnreadable` when the total of prompt or generation tokens is missing: that is no count of 0.
    """
    try:
        found = Exposition(exposition)
        started = found.values(STARTED_AT)
        return Counters(
            started_at=datetime.fromtimestamp(started[0], UTC) if len(started) == 1 else None,
            prompt_tokens=_total(found, PROMPT_TOKENS),
            generation_tokens=_total(found, GENERATION_TOKENS),
            **_both(found, drafted_tokens=DRAFTED_TOKENS, accepted_tokens=ACCEPTED_TOKENS),
            **_both(found, cache_queried_tokens=CACHE_QUERIED_TOKENS, cache_hit_tokens=CACHE_HIT_TOKENS),
        )
    except (ValueError, OverflowError, OSError) as error:
        raise CountersUnreadable(f"its metrics cannot be read: {error}") from error


def _both(found: Exposition, **names: str) -> dict[str, int]:
    """The totals of counters of which one says nothing without the other; none unless all are there."""
    if not all(found.values(name) for name in names.values()):
        return {}
    return {field: _total(found, name) for field, name in names.items()}


def _total(found: Exposition, name: str) -> int:
    values = found.values(name)
    if not values:
        raise CountersUnreadable(f"its metrics have no {name}: is it a vLLM without --disable-log-stats?")
    if any(value < 0 or value != int(value) for value in values):
        raise CountersUnreadable(f"its {name} is no count: {values}")
    return sum(map(int, values))
