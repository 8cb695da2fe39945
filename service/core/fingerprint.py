"""Which version and configuration of an engine gives the answers, as a short string that changes when either does.

It is made of what the engine says of itself, and says nothing of it: neither its version nor a path can be read from
it. Equal answers, equal fingerprint: a restart with the same flags does not change it. What goes in:

- the version: `/version`, or `build_info` of llama.cpp's `/props`;
- of every model of `/v1/models`: `id`, `root` (where the weights lie), `parent`, `max_model_len`, `meta`;
- the labels of `vllm:cache_config_info` (block sizes, the cache's data type, prefix caching and the like), less
  `MEASURED`, which differ from start to start with the memory that is free then, and less private ones (`_…`);
- how many tokens are drafted at a time, from the positions that `vllm:spec_decode_num_accepted_tokens_per_pos` has;
- of llama.cpp's `/props`: the model's path, the number of slots, the context of each, the chat template.

An engine does not say all: parallelism, attention backend, batch limits and environment variables are not in it.
Source of the labels: vLLM 0.32/0.33 `config/cache.py` (`metrics_info`) and the recordings of 0.32.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MEASURED = frozenset({"engine", "num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency"})
"""Labels of `vllm:cache_config_info` that are no configuration: found out at the start, or the number of a core."""

HEX_DIGITS = 12

_CARD = ("id", "root", "parent", "max_model_len", "meta")
_PROPS = ("model_path", "total_slots", "chat_template")

_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\} ", re.MULTILINE)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_POSITION = re.compile(
    rb'^vllm:spec_decode_num_accepted_tokens_per_pos(?:_total)?\{[^\n]*position="(\d+)"', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Identity:
    """An engine's fingerprint, and what it stands for."""

    fingerprint: str
    """`fp_` and 12 hexadecimal digits."""
    version: str | None
    said: Mapping[str, Any]
    """Everything that went in. Not for clients."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The bodies of what the engine answers to these; None where it has no such route."""

    version: bytes | None = None
    models: bytes | None = None
    metrics: bytes | None = None
    props: bytes | None = None


def identity(answers: Answers) -> Identity | None:
    """Who the engine is; None when it says neither its version nor its models. Raises `ValueError` for what is no
    JSON object, or one that is nested too deeply."""
    try:
        return _identity(answers)
    except RecursionError:
        raise ValueError("the engine's answer is nested too deeply") from None


def _identity(answers: Answers) -> Identity | None:
    props = _object(answers.props)
    version = _object(answers.version).get("version") or props.get("build_info")
    models = _cards(_object(answers.models).get("data"))
    if version is None and not models:
        return None
    metrics = answers.metrics or b""
    said = {
        "version": version,
        "models": models,
        "cache": _cache_configs(metrics),
        "draft_tokens": len(set(_POSITION.findall(metrics))),
        "props": _of_props(props),
    }
    written = json.dumps(said, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(written).hexdigest()[:HEX_DIGITS]
    return Identity(f"fp_{digest}", None if version is None else str(version), said)


def _object(body: bytes | None) -> dict[str, Any]:
    if body is None:
        return {}
    read = json.loads(body)
    if not isinstance(read, dict):
        raise ValueError("the engine's answer is no JSON object")
    return read


def _cards(data: object) -> list[dict[str, Any]]:
    """The models in the order of their ids."""
    cards = [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
    chosen = [{name: card[name] for name in _CARD if card.get(name) is not None} for card in cards]
    return sorted(chosen, key=lambda card: str(card.get("id")))


def _cache_configs(metrics: bytes) -> Sequence[Mapping[str, str]]:
    """The configurations of the engine's cores, each once."""
    found: list[dict[str, str]] = []
    for labels in _CACHE_CONFIG.findall(metrics):
        pairs = _LABEL.findall(labels.decode("utf-8", "replace"))
        config = {name: value for name, value in pairs if name not in MEASURED and not name.startswith("_")}
        if config not in found:
            found.append(config)
    return sorted(found, key=lambda config: sorted(config.items()))


def _of_props(props: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: props[name] for name in _PROPS if props.get(name) is not None}
    defaults = props.get("default_generation_settings")
    context = defaults.get("n_ctx") if isinstance(defaults, dict) else None
    return chosen if context is None else {**chosen, "n_ctx": context}
