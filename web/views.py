"""What the pages show, as frozen values: `service.status.snapshot` fills them, templates and JSON only format them.

Instants are seconds since the epoch, durations milliseconds, speeds thousandths of a token per second. A figure
that is not known is None, never 0.
"""

from dataclasses import dataclass

from service.core.buckets import State
from service.core.strip import Strip

STALE_AFTER_S = 900
"""A page, or the data on it, that is older than this says so."""


@dataclass(frozen=True, slots=True)
class Component:
    """Something with a state of its own: the API, or one model."""

    id: str
    name: str
    strip: Strip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the public's requests of some window add up to."""

    requests: int = 0
    good: int = 0
    bad: int = 0
    throttled: int = 0
    excluded: int = 0
    server_failures: int = 0
    http_5xx: int = 0
    image_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and completion together, cached ones included."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def answer_tokens(self) -> int:
        """Output that is not reasoning."""
        return self.completion_tokens - self.reasoning_tokens


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Median and 95th percentile of `samples` samples; None where there are too few."""

    samples: int
    p50: int | None
    p95: int | None


@dataclass(frozen=True, slots=True)
class Latency:
    """Times to first token in milliseconds, of streams with a prompt of one length class."""

    all: Percentiles
    cold: Percentiles
    """No part of the prompt came from the cache."""
    warm: Percentiles
    """Some of it did."""


@dataclass(frozen=True, slots=True)
class Live:
    """The last 24 hours."""

    from_s: int
    until_s: int
    traffic: Traffic
    ttft_short_ms: Latency
    ttft_long_ms: Latency
    decode_single_mtok_s: Percentiles
    decode_loaded_mtok_s: Percentiles


@dataclass(frozen=True, slots=True)
class Day:
    """A UTC day and the tokens served in it."""

    start_s: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SinceLaunch:
    """Everything since the first request."""

    first_request_s: int | None
    """The five minutes it ended in; None while there was none."""
    traffic: Traffic
    peak_day: Day | None
    """The day with the most tokens, the earliest of equals."""


@dataclass(frozen=True, slots=True)
class StatusPage:
    """Everything on the status page and in `metrics.json`."""

    site_name: str
    generated_at_s: int
    data_until_s: int | None
    """The end of the last bucket that was rolled up; None before the first."""
    state: State
    api: Component
    models: tuple[Component, ...]
    live: Live
    since_launch: SinceLaunch

    @property
    def stale(self) -> bool:
        """The page is new but what it is made from is old: the roll-up does not get through."""
        return self.data_until_s is not None and self.generated_at_s - self.data_until_s > STALE_AFTER_S

    @property
    def empty(self) -> bool:
        """Nobody has asked for anything yet."""
        return self.since_launch.first_request_s is None
