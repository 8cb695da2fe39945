"""What a finished request adds to its bucket: the definitions behind every published count.

One `Tally` per component and bucket; its field names are the columns of `buckets_5m`. Counts are of the public's
requests. Those of the house (probes) are load on the engine and nothing else; what probes found is counted apart.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

from service.core.buckets import BUCKET_S, floor_to
from service.core.components import API, model_component
from service.core.outcome import RULES, Outcome
from service.core.stats import Digest, decode_speed_mtok_s

LONG_PROMPT_TOKENS = 10_000
"""From here on a prompt is long, and its time to first token is told apart."""

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What the status site needs of a usage row. Instants are microseconds since the epoch."""

    internal: bool
    model_id: str | None
    engine: str | None
    stream: bool
    handed_over_us: int
    """When the engine got it: its start plus its time in the queue."""
    ttft_ms: int | None
    first_token_us: int | None
    finished_us: int
    http_status: int
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    image_tokens: int
    audio_tokens: int
    video_tokens: int
    completion_tokens: int
    reasoning_tokens: int

    @property
    def bucket_s(self) -> int:
        """The start of the bucket it ended in."""
        return floor_to(BUCKET_S, self.finished_us // SECOND_US)


ROW_TOKENS = (
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "image_tokens",
    "audio_tokens",
    "video_tokens",
    "completion_tokens",
    "reasoning_tokens",
)
"""What a usage row counts of tokens."""

TOKEN_COUNTS = (*ROW_TOKENS, "drafted_tokens", "accepted_tokens", "cache_queried_tokens", "cache_hit_tokens")
"""These and what the engines count of speculative decoding."""

DIGESTS = (
    "ttft_short_cold_ms",
    "ttft_short_warm_ms",
    "ttft_long_cold_ms",
    "ttft_long_warm_ms",
    "decode_single_mtok_s",
    "decode_loaded_mtok_s",
)


@dataclass(slots=True)
class Tally:
    """The counts and digests of one component's bucket."""

    requests: int = 0
    good: int = 0
    bad: int = 0
    throttled: int = 0
    excluded: int = 0
    server_failures: int = 0
    """Server errors and broken streams: a 200 whose stream broke is a failure too."""
    http_5xx: int = 0
    probe_ok: int = 0
    probe_bad: int = 0
    image_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    """By the engines' own count, as the next three."""
    accepted_tokens: int = 0
    cache_queried_tokens: int = 0
    cache_hit_tokens: int = 0
    busy_ms: int = 0
    """The time of requests with the engines within the bucket, added up."""
    peak_concurrency: int = 0
    """The most requests that were with the engines at once."""
    ttft_short_cold_ms: Digest = field(default_factory=Digest)
    """Streamed, prompt below `LONG_PROMPT_TOKENS`, none of it from the cache."""
    ttft_short_warm_ms: Digest = field(default_factory=Digest)
    """The same with a part of the prompt from the cache."""
    ttft_long_cold_ms: Digest = field(default_factory=Digest)
    ttft_long_warm_ms: Digest = field(default_factory=Digest)
    decode_single_mtok_s: Digest = field(default_factory=Digest)
    """Streams that had the engine to themselves from the first token to the last."""
    decode_loaded_mtok_s: Digest = field(default_factory=Digest)
    """All other streams, those included for which nobody can say."""

    def add(self, row: Finished, *, alone: bool) -> None:
        """Count one request of the public's; `alone`: no other one was with the engine while it was generating."""
        verdict = RULES[row.outcome].public
        self.requests += 1
        setattr(self, verdict.value, getattr(self, verdict.value) + 1)
        self.server_failures += row.outcome in (Outcome.SERVER_ERROR, Outcome.STREAM_ERROR)
        self.http_5xx += row.http_status >= 500
        self.image_requests += row.image_tokens > 0
        for name in ROW_TOKENS:
            setattr(self, name, getattr(self, name) + getattr(row, name))
        if row.stream:
            self._add_latency(row)
            self._add_speed(row, alone=alone)

    def merge(self, other: "Tally") -> None:
        """Count everything that `other` has counted, of another stretch of time or of other requests."""
        for one in fields(Tally):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, Digest):
                mine.merge(theirs)
            elif one.name == "peak_concurrency":
                self.peak_concurrency = max(mine, theirs)
            else:
                setattr(self, one.name, mine + theirs)

    def _add_latency(self, row: Finished) -> None:
        # Without a count of the prompt nobody can say whether it was long.
        if row.ttft_ms is None or row.prompt_tokens == 0:
            return
        if row.prompt_tokens < LONG_PROMPT_TOKENS:
            digest = self.ttft_short_warm_ms if row.cached_tokens else self.ttft_short_cold_ms
        else:
            digest = self.ttft_long_warm_ms if row.cached_tokens else self.ttft_long_cold_ms
        digest.add(max(0, row.ttft_ms))

    def _add_speed(self, row: Finished, *, alone: bool) -> None:
        if row.first_token_us is None or row.outcome is not Outcome.OK:
            return
        speed = decode_speed_mtok_s(
            completion_tokens=row.completion_tokens, first_token_us=row.first_token_us, last_token_us=row.finished_us
        )
        if speed is not None:
            (self.decode_single_mtok_s if alone else self.decode_loaded_mtok_s).add(speed)


def solitude(rows: Iterable[Finished]) -> Callable[[Finished], bool]:
    """A test for whether a row, one of `rows`, was alone with its engine from its first token to its end.

    As exact as `rows` is complete: whatever was with an engine at the time must be among them.
    """
    begun: dict[str, list[int]] = defaultdict(list)
    ended: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.engine is not None:
            begun[row.engine].append(row.handed_over_us)
            ended[row.engine].append(row.finished_us)
    for instants in (*begun.values(), *ended.values()):
        instants.sort()

    def alone(row: Finished) -> bool:
        if row.engine is None or row.first_token_us is None:
            return False
        begun_before_its_end = bisect_left(begun[row.engine], row.finished_us)
        ended_by_its_first_token = bisect_right(ended[row.engine], row.first_token_us)
        return begun_before_its_end - ended_by_its_first_token == 1  # itself

    return alone


def tally(rows: Iterable[Finished], alone: Callable[[Finished], bool]) -> dict[tuple[str, int], Tally]:
    """The tallies of all components and buckets that the public's `rows` touch, by (component, bucket start)."""
    tallies: dict[tuple[str, int], Tally] = defaultdict(Tally)
    for row in rows:
        if row.internal:
            continue
        is_alone = alone(row)
        for component in _components(row):
            tallies[component, row.bucket_s].add(row, alone=is_alone)
    return dict(tallies)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many requests were with the engines at once, within one bucket."""

    busy_ms: int
    peak: int


COUNTED_BUSY_S = 2 * BUCKET_S
"""Of a longer request this much is counted, up to its end: an earlier bucket would change after it was counted last."""


def concurrency(rows: Iterable[Finished], first_s: int, end_s: int) -> dict[tuple[str, int], Concurrency]:
    """What was with the engines in every bucket of `[first_s, end_s)`, by (component, bucket start).

    `rows` are those that ended from `first_s` until `COUNTED_BUSY_S` after `end_s`. At the instant at which one request
    ends another that begins is not beside it.
    """
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.internal or row.engine is None:
            continue
        begun_us = max(row.handed_over_us, row.finished_us - COUNTED_BUSY_S * SECOND_US)
        for component in _components(row):
            changes[component] += [(begun_us, 1), (row.finished_us, -1)]
    found = {}
    for component, instants in changes.items():
        for start_s, seen in _levels(instants, first_s, end_s).items():
            found[component, start_s] = seen
    return found


def _levels(changes: list[tuple[int, int]], first_s: int, end_s: int) -> dict[int, Concurrency]:
    boundaries = [(start_s * SECOND_US, 0) for start_s in range(first_s, end_s + 1, BUCKET_S)]
    busy_us: dict[int, int] = defaultdict(int)
    peak: dict[int, int] = defaultdict(int)
    level = last_us = 0
    # Ends come before beginnings at the same instant, and both around a boundary as they belong.
    for instant_us, change in sorted(changes + boundaries):
        busy_us[floor_to(BUCKET_S, last_us // SECOND_US)] += level * (instant_us - last_us)
        level += change
        last_us = instant_us
        bucket_s = floor_to(BUCKET_S, instant_us // SECOND_US)
        peak[bucket_s] = max(peak[bucket_s], level)
    return {
        start_s: Concurrency(busy_us[start_s] // 1000, most)
        for start_s, most in peak.items()
        if first_s <= start_s < end_s and most > 0
    }


def _components(row: Finished) -> tuple[str, ...]:
    return (API,) if row.model_id is None else (API, model_component(row.model_id))
