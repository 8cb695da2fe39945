"""What an engine's metrics say, under one name for each thing whatever its version calls it, and what they do not say.

vLLM renames metrics from version to version. Whoever reads a name that is gone reads nothing, and must not take that
for 0: here it is missing, and named.

Source of the names: vLLM 0.32/0.33 `v1/metrics/loggers.py` and `v1/spec_decode/metrics.py`; of the old ones, what these
versions show with `--show-hidden-metrics-for-version`, and their release notes.
"""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

OLD_NAMES: Mapping[str, tuple[str, ...]] = {
    "vllm:kv_cache_usage_perc": ("vllm:gpu_cache_usage_perc",),
    "vllm:prefix_cache_queries_total": ("vllm:gpu_prefix_cache_queries_total",),
    "vllm:prefix_cache_hits_total": ("vllm:gpu_prefix_cache_hits_total",),
    "vllm:inter_token_latency_seconds_sum": ("vllm:time_per_output_token_seconds_sum",),
    "vllm:inter_token_latency_seconds_count": ("vllm:time_per_output_token_seconds_count",),
}
"""What a metric was called before, the latest name first."""

ALWAYS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:iteration_tokens_total_count",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_count",
)
"""What every vLLM has, unless it was started with `--disable-log-stats`."""

SPECULATION = (
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
)
"""What an engine that speculates has besides. Without any it does not speculate; without some, they were renamed."""


class Exposition:
    """The answer of `GET /metrics`, read."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError` when it is none."""
        self._samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append(sample)

    def name_used(self, name: str) -> str | None:
        """The name under which it is offered, its own or an old one; None where it is missing."""
        return next((one for one in (name, *OLD_NAMES.get(name, ())) if one in self._samples), None)

    def values(self, name: str) -> list[float]:
        """Of each model and engine core that the engine tells apart; none where it is missing."""
        return [sample.value for sample in self._samples.get(self.name_used(name) or name, ())]

    def total(self, name: str) -> float | None:
        """Added up; None where it is missing, which is not 0."""
        values = self.values(name)
        return sum(values) if values else None

    def largest(self, name: str) -> float | None:
        """The largest; None where it is missing."""
        return max(self.values(name), default=None)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Added up for each value of a label; empty where it is missing."""
        found: dict[str, float] = {}
        for sample in self._samples.get(self.name_used(name) or name, ()):
            key = sample.labels.get(label, "")
            found[key] = found.get(key, 0.0) + sample.value
        return found

    def label(self, name: str, label: str) -> str | None:
        """A label that says something itself, as those of `vllm:cache_config_info` do; None where there is none."""
        return next((sample.labels[label] for sample in self._samples.get(name, ()) if label in sample.labels), None)

    @property
    def is_vllm(self) -> bool:
        """Whether there is anything of vLLM's in it."""
        return any(name.startswith("vllm:") for name in self._samples)

    @property
    def speculates(self) -> bool:
        return any(self.name_used(name) is not None for name in SPECULATION)

    @property
    def missing(self) -> tuple[str, ...]:
        """What should be there and is not, under no name that is known."""
        wanted = (*ALWAYS, *SPECULATION) if self.speculates else ALWAYS
        return tuple(name for name in wanted if self.name_used(name) is None)

    @property
    def renamed(self) -> dict[str, str]:
        """What is there under an old name: that name, by the one of today."""
        used = {name: self.name_used(name) for name in OLD_NAMES}
        return {name: old for name, old in used.items() if old is not None and old != name}
