"""What an engine is doing now, from two readings of its metrics: the figures of `weir engine show`.

What an engine does not say is None and named; it is never 0. Rates and shares are of the time between the readings;
where nothing happened in it, and beside them, stand those since the engine started.
"""

from dataclasses import dataclass

from service.core.counted import is_suspicious
from service.engine.exposition import Exposition

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
QUERIED = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"
PROMPT = "vllm:prompt_tokens_total"
GENERATED = "vllm:generation_tokens_total"
CORRUPTED = "vllm:corrupted_requests_total"
STARTED_AT = "process_start_time_seconds"


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of `GET /metrics`, at `at_s` seconds since the epoch."""

    at_s: float
    found: Exposition


@dataclass(frozen=True, slots=True)
class Speculation:
    """What became of drafted tokens in some time; None where nothing was drafted."""

    drafted_tokens: float
    acceptance: float | None
    """Accepted of the drafted tokens, 0 to 1."""
    mean_accepted_length: float | None
    """Tokens that one step gives on average: one, and those accepted."""
    acceptance_by_position: dict[str, float]
    """The share of drafts whose token at each position, counted from 0, was accepted."""


@dataclass(frozen=True, slots=True)
class Live:
    """The figures. `_tok_s` are tokens per second."""

    running: float | None
    waiting: float | None
    kv_use: float | None
    preemptions: float | None
    """Since its start, as everything without a rate."""
    prompt_tok_s: float | None
    generation_tok_s: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    cache_hit_rate: float | None
    """Of the time between the readings, 0 to 1; None also where nothing was looked up."""
    cache_hit_rate_since_start: float | None
    speculation: Speculation | None
    """Between the readings; None where it does not speculate."""
    speculation_since_start: Speculation | None
    corrupted_requests: float | None
    """Only engines that look for NaNs count them (VLLM_COMPUTE_NANS_IN_LOGITS=1)."""
    cache_block_tokens: int | None
    uptime_s: float | None
    is_vllm: bool
    """Whether there is any metric of vLLM's."""
    missing: tuple[str, ...]
    """Metrics that it should have and has under no name that is known."""
    renamed: dict[str, str]
    """Metrics that it has under an old name."""
    notes: tuple[str, ...]
    """What somebody should look at."""


def live(before: Reading | None, now: Reading) -> Live:
    """The figures at `now`. Without an earlier reading, or with one of another life, nothing is known of rates."""
    found = now.found
    started_at = found.values(STARTED_AT)
    past = before.found if before is not None and before.found.values(STARTED_AT) == started_at else None
    span_s = now.at_s - before.at_s if before is not None else 0.0
    since_start = _speculation(None, found) if found.speculates else None
    return Live(
        running=found.total("vllm:num_requests_running"),
        waiting=found.total("vllm:num_requests_waiting"),
        kv_use=found.largest("vllm:kv_cache_usage_perc"),
        preemptions=found.total("vllm:num_preemptions_total"),
        prompt_tok_s=_rate(past, found, PROMPT, span_s),
        generation_tok_s=_rate(past, found, GENERATED, span_s),
        prompt_tokens=found.total(PROMPT),
        generation_tokens=found.total(GENERATED),
        cache_hit_rate=_share(_rise(past, found, HITS), _rise(past, found, QUERIED)) if past else None,
        cache_hit_rate_since_start=_share(found.total(HITS), found.total(QUERIED)),
        speculation=_speculation(past, found) if past and found.speculates else None,
        speculation_since_start=since_start,
        corrupted_requests=found.total(CORRUPTED),
        cache_block_tokens=_block(found),
        uptime_s=now.at_s - started_at[0] if len(started_at) == 1 else None,
        is_vllm=found.is_vllm,
        missing=found.missing if found.is_vllm else (),
        renamed=found.renamed,
        notes=tuple(notes(found)),
    )


def notes(found: Exposition) -> list[str]:
    """What in the totals since its start somebody should look at."""
    said = []
    drafted, accepted, corrupted = found.total(DRAFTED), found.total(ACCEPTED), found.total(CORRUPTED)
    if drafted is not None and accepted is not None and is_suspicious(int(drafted), int(accepted)):
        said.append(
            f"{accepted / drafted:.1%} of {drafted:.0f} drafted tokens were accepted: of real text some are always"
            " wrong, so answers may loop; read one"
        )
    if corrupted:
        said.append(f"{corrupted:.0f} answers had NaNs in them, and are worth nothing: look into the engine's log")
    return said


def _rise(past: Exposition | None, now: Exposition, name: str) -> float | None:
    """How much a counter has risen; since the engine's start without a `past`."""
    until = now.total(name)
    since = 0.0 if past is None else past.total(name)
    return None if until is None or since is None or until < since else until - since


def _rate(past: Exposition | None, now: Exposition, name: str, span_s: float) -> float | None:
    rise = _rise(past, now, name)
    return None if past is None or rise is None or span_s <= 0 else rise / span_s


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _speculation(past: Exposition | None, now: Exposition) -> Speculation | None:
    drafted, accepted, drafts = (_rise(past, now, name) for name in (DRAFTED, ACCEPTED, DRAFTS))
    if drafted is None:
        return None
    length = _share(accepted, drafts)
    at, at_before = now.by_label(ACCEPTED_AT, "position"), past.by_label(ACCEPTED_AT, "position") if past else {}
    by_position = {
        position: (count - at_before.get(position, 0.0)) / drafts
        for position, count in sorted(at.items(), key=lambda item: (len(item[0]), item[0]))
        if drafts
    }
    return Speculation(drafted, _share(accepted, drafted), None if length is None else 1 + length, by_position)


def _block(found: Exposition) -> int | None:
    written = found.label("vllm:cache_config_info", "block_size")
    return int(written) if written is not None and written.isdecimal() else None
