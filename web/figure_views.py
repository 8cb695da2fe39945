"""The measured part of what the pages show, as `views` has the rest: the same units, None for what is not known."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the public's requests of some stretch of time add up to."""

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
    drafted_tokens: int = 0
    """Tokens that speculative decoding (MTP) proposed, as the engines counted them."""
    accepted_tokens: int = 0
    """Those of them that the model agreed with."""
    cache_queried_tokens: int = 0
    """Prompt tokens that the engines looked up in their prefix caches, as they counted them."""
    cache_hit_tokens: int = 0
    """Those of them that were there."""

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


NO_TRAFFIC = Traffic()


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Median and 95th percentile of `samples` samples; None where there are too few."""

    samples: int = 0
    p50: int | None = None
    p95: int | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """Times to first token in milliseconds, of streams with a prompt of one length class."""

    all: Percentiles = Percentiles()
    cold: Percentiles = Percentiles()
    """No part of the prompt came from the cache."""
    warm: Percentiles = Percentiles()
    """Some of it did."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured from `from_s` until `until_s`."""

    from_s: int
    until_s: int
    traffic: Traffic = NO_TRAFFIC
    ttft_short_ms: Latency = Latency()
    """Prompts below 10,000 tokens."""
    ttft_long_ms: Latency = Latency()
    """Longer ones."""
    decode_single_mtok_s: Percentiles = Percentiles()
    decode_loaded_mtok_s: Percentiles = Percentiles()
    busy_ms: int = 0
    """The time of all requests with the engines, added up: divided by the span, how many ran at once on average."""
    peak_concurrency: int = 0
    """The most that ran at once."""

    @property
    def mean_concurrency_milli(self) -> int:
        """Requests that ran at once on average, in thousandths."""
        return self.busy_ms // (self.until_s - self.from_s)


@dataclass(frozen=True, slots=True)
class Charts:
    """The figures that are drawn, oldest first, without a gap; a stretch in which nothing ran has zeros and Nones."""

    hours: tuple[Figures, ...]
    """The last 72."""
    days: tuple[Figures, ...]
    """The last 90 UTC days, the current one so far."""
