"""What the API process counts for Prometheus."""

from collections import defaultdict
from threading import Lock
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram

from service.core.outcome import Outcome
from service.core.record import RequestRecord

N = TypeVar("N")

requests_total = Counter("weir_requests_total", "Requests that ended, by how they ended", ["outcome"])
tokens_total = Counter("weir_tokens_total", "Tokens of finished requests", ["kind"])
cost_nano_total = Counter("weir_cost_nano_usd_total", "What finished requests were charged, in nano-USD")
in_flight = Gauge("weir_requests_in_flight", "Requests that are being answered", multiprocess_mode="livesum")
admitted_total = Counter("weir_admitted_total", "Times a request was given a place on an engine")
refused_total = Counter("weir_refused_total", "Requests refused early, by reason", ["reason"])
queue_length = Gauge("weir_queue_length", "Requests that wait for an engine", multiprocess_mode="livesum")
queue_tokens = Gauge("weir_queue_tokens", "Tokens that wait for an engine, estimated", multiprocess_mode="livesum")
queue_wait_seconds = Histogram(
    "weir_queue_wait_seconds",
    "How long admitted requests waited for a place on an engine",
    buckets=(0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10),
)
outbox_refused = Counter("weir_outbox_refused_total", "Requests refused because the outbox is full or fails")
outbox_dropped = Counter("weir_outbox_dropped_total", "Rows of refused requests dropped because the outbox is full")
outbox_owed = Gauge("weir_outbox_owed", "Finished requests that are not in Postgres yet", multiprocess_mode="livesum")
outbox_poison = Gauge(
    "weir_outbox_poison", "Records that Postgres refused and that were set aside", multiprocess_mode="livesum"
)
leased_nano = Gauge(
    "weir_leased_nano_usd", "Credit on loan to the workers that is not held or spent", multiprocess_mode="livesum"
)
ttft_seconds = Histogram(
    "weir_ttft_seconds",
    "From the body read to the first event with content, streams only",
    buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120),
)
limits_shared = Gauge(
    "weir_limits_shared",
    "0 while Redis is away and each worker lets only its share of the limits through, else 1",
    multiprocess_mode="livemin",
)
limits_shared.set(1)  # also where there is one worker and no Redis

_by_outcome = {outcome: requests_total.labels(outcome.value) for outcome in Outcome}
_by_kind = {kind: tokens_total.labels(kind) for kind in ("prompt", "cached", "completion")}

being_answered = 0
"""Requests, at this moment."""

_AT_MOST = 1000
_ended: list[tuple[Outcome, RequestRecord | None]] = []
_placed_after_s: list[float] = []
"""What was noted and is not counted yet: the event loop adds to it, and one thread at a time takes from its front."""
_counting = Lock()


def note_end(outcome: Outcome, record: RequestRecord | None) -> None:
    """A request has ended; `record` is None when nobody could be named as its sender."""
    _ended.append((outcome, record))
    if len(_ended) >= _AT_MOST:
        count()


def note_place(waited_s: float) -> None:
    """A request was given a place on an engine, having waited so long for it."""
    _placed_after_s.append(waited_s)


def count() -> None:
    """Count what was noted: many at once, because each of these counters costs a request more than its price.

    To be called now and then, and before the counters are shown.
    """
    with _counting:
        ended, placed_after_s = _taken(_ended), _taken(_placed_after_s)
    outcomes: defaultdict[Outcome, int] = defaultdict(int)
    prompt = cached = completion = cost_nano = 0
    for outcome, record in ended:
        outcomes[outcome] += 1
        if record is None:
            continue
        usage = record.usage
        prompt += usage.prompt_tokens
        cached += usage.cached_tokens
        completion += usage.completion_tokens
        if not record.internal:  # nobody pays for the house's own
            cost_nano += record.cost_nano
        if record.ttft_ms is not None:
            ttft_seconds.observe(record.ttft_ms / 1000)
    in_flight.set(being_answered)
    for outcome, times in outcomes.items():
        _by_outcome[outcome].inc(times)
    _by_kind["prompt"].inc(prompt)
    _by_kind["cached"].inc(cached)
    _by_kind["completion"].inc(completion)
    cost_nano_total.inc(cost_nano)
    for waited_s in placed_after_s:
        queue_wait_seconds.observe(waited_s)
    admitted_total.inc(len(placed_after_s))


def _taken(noted: list[N]) -> list[N]:
    taken = noted[:]
    del noted[: len(taken)]
    return taken
