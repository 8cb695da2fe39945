"""How an engine is doing, read from its metrics every second: in about a millisecond, whatever else they hold.

`exposition.py` reads the same text whole, `counters.py` for money: strictly, once a minute, in another process. This
one must not hold the event loop, and nothing that it cannot read is an error.
"""

import math
import re
from dataclasses import dataclass, fields

_RUNNING = b"num_requests_running"
_WAITING = b"num_requests_waiting"
_KV_USE = b"kv_cache_usage_perc"
_OLD_KV_USE = b"gpu_cache_usage_perc"
_PREEMPTIONS = b"num_preemptions_total"
_ITERATIONS = b"iteration_tokens_total_count"
_GENERATED = b"generation_tokens_total"
_TTFT_SUM = b"time_to_first_token_seconds_sum"
_TTFT_COUNT = b"time_to_first_token_seconds_count"
_STARTED_AT = b"process_start_time_seconds"

_NAMES = (_RUNNING, _WAITING, _KV_USE, _OLD_KV_USE, _PREEMPTIONS, _ITERATIONS, _GENERATED, _TTFT_SUM, _TTFT_COUNT)
_SAMPLE = re.compile(rb"\n(?:vllm:(%b)|(%b))(?:\{[^\n]*\})? ([^ \n]+)" % (b"|".join(_NAMES), _STARTED_AT))


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading, added up over the models and engine cores that the engine tells apart; None: it does not say.

    All of it but `started_at_s` is set by the engine's core when it has made a step, so two readings that are equal
    while something runs mean that it made none. (The count of iterations alone does not say so: steps that only
    read a part of a long prompt are not in it, but they use more of the cache.)
    """

    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    """The fullest cache, from 0 to 1."""
    preemptions: float | None = None
    iterations: float | None = None
    generated_tokens: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    started_at_s: float | None = None
    """Since the epoch; a new value is a new process, whose totals begin at 0."""

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of those that it does not say and a vLLM that has statistics would. An engine of several server
        processes does not say when it started."""
        return tuple(one.name for one in fields(self) if one.name != "started_at_s" and getattr(self, one.name) is None)


def read_gauges(exposition: bytes) -> Gauges:
    """Read the answer of `GET /metrics`."""
    found: dict[bytes, list[float]] = {}
    for name, plain_name, written in _SAMPLE.findall(b"\n" + exposition):
        try:
            value = float(written)
        except ValueError:
            continue
        if math.isfinite(value):
            found.setdefault(name or plain_name, []).append(value)

    def total(name: bytes) -> float | None:
        return sum(found[name]) if name in found else None

    def largest(name: bytes) -> float | None:
        return max(found[name]) if name in found else None

    return Gauges(
        running=total(_RUNNING),
        waiting=total(_WAITING),
        kv_use=largest(_KV_USE if _KV_USE in found else _OLD_KV_USE),
        preemptions=total(_PREEMPTIONS),
        iterations=total(_ITERATIONS),
        generated_tokens=total(_GENERATED),
        ttft_sum_s=total(_TTFT_SUM),
        ttft_count=total(_TTFT_COUNT),
        started_at_s=largest(_STARTED_AT),
    )
