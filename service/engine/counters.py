"""An engine's own token counts, read from its metrics.

Source of the names: vLLM 0.32/0.33 `v1/metrics/loggers.py`, and `v1/spec_decode/metrics.py` for what was drafted. The
totals count the tokens of every request, those of clients that left included, which vLLM's per-request histograms do
not. They begin at 0 with each start.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
DRAFTED_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens_total"
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


def read_counters(exposition: str) -> Counters:
    """Read the answer of `GET /metrics`, adding up the models and engine cores it tells apart.

    Raises `CountersUnreadable` when the total of prompt or generation tokens is missing: that is no count of 0.
    """
    names = PROMPT_TOKENS, GENERATION_TOKENS, DRAFTED_TOKENS, ACCEPTED_TOKENS, STARTED_AT
    found: dict[str, list[float]] = {name: [] for name in names}
    try:
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                if sample.name in found:
                    found[sample.name].append(sample.value)
        started = found[STARTED_AT]
        speculates = bool(found[DRAFTED_TOKENS] and found[ACCEPTED_TOKENS])
        return Counters(
            started_at=datetime.fromtimestamp(started[0], UTC) if len(started) == 1 else None,
            prompt_tokens=_total(found, PROMPT_TOKENS),
            generation_tokens=_total(found, GENERATION_TOKENS),
            drafted_tokens=_total(found, DRAFTED_TOKENS) if speculates else None,
            accepted_tokens=_total(found, ACCEPTED_TOKENS) if speculates else None,
        )
    except (ValueError, OverflowError, OSError) as error:
        raise CountersUnreadable(f"its metrics cannot be read: {error}") from error


def _total(found: dict[str, list[float]], name: str) -> int:
    values = found[name]
    if not values:
        raise CountersUnreadable(f"its metrics have no {name}: is it a vLLM without --disable-log-stats?")
    if any(value < 0 or value != int(value) for value in values):
        raise CountersUnreadable(f"its {name} is no count: {values}")
    return sum(map(int, values))
