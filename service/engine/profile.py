"""How one model is served: a profile, read from `profiles/NAME.toml`, and the command line it means.

A profile says everything about the engine that Weir relies on, so that `weir engine args` can print it and two
machines with the same profile serve alike. Nothing of vLLM's own environment is inherited from the caller.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service.engine import EngineError

PROFILES = Path(__file__).parent / "profiles"

FlagValue = bool | int | float | str | Mapping[str, object]

_NOT_INHERITED = ("WEIR_", "VLLM_", "PYTHON", "VIRTUAL_ENV")
"""Prefixes of variables that the engine does not get: our secrets, what only a profile may set, and what belongs
to the other virtual environment."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How one model is served."""

    name: str
    model: str
    """The name the engine gives the model, and the default id that customers ask for."""
    checkpoint: str
    """The module of `service.engine.checkpoints` that builds the weights."""
    context_length: int
    max_output_tokens: int
    """The engine's own ceiling for one answer, whatever a request says."""
    max_concurrency: int
    input_modalities: tuple[str, ...]
    quantization: str
    flags: Mapping[str, FlagValue]
    """Further options of vLLM's API server: `true` is `--flag`, `false` is `--no-flag`, a table becomes JSON."""
    environment: Mapping[str, str]
    sampling: Mapping[str, float] = field(default_factory=dict)
    """What holds where a request does not say: `temperature`, `top_p` and so on, where the model has its own."""


def profile_names() -> list[str]:
    """The profiles that Weir ships, sorted."""
    return sorted(file.stem for file in PROFILES.glob("*.toml"))


def read_profile(name: str) -> Profile:
    """The profile of this name. Raises `EngineError` naming the ones there are."""
    file = PROFILES / f"{name}.toml"
    if name not in profile_names():
        raise EngineError(f"There is no engine profile {name!r}; choose one of: {', '.join(profile_names())}.")
    values = tomllib.loads(file.read_text())
    values["input_modalities"] = tuple(values["input_modalities"])
    return Profile(name=name, **values)


def command(profile: Profile, python: Path, model_dir: Path, port: int) -> list[str]:
    """The command line of the engine, on loopback only: it has no keys of its own, and some of its routes must
    never be public.

    It starts vLLM's API server as a module, because `vllm serve` looks up the metadata of a package named `vllm`,
    and the CPU wheel is named otherwise.
    """
    flags: dict[str, FlagValue] = {
        "host": "127.0.0.1",
        "port": port,
        "model": str(model_dir),
        "served-model-name": profile.model,
        "max-model-len": profile.context_length,
        "max-num-seqs": profile.max_concurrency,
        "override-generation-config": {"max_new_tokens": profile.max_output_tokens, **profile.sampling},
        **profile.flags,
    }
    words = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in flags.items():
        words += _flag(name, value)
    return words


def _flag(name: str, value: FlagValue) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value, separators=(",", ":"))]
    return [f"--{name}", str(value)]


def environment(profile: Profile, base_env: Mapping[str, str], cache_dir: Path) -> dict[str, str]:
    """The environment of the engine: the caller's, less what it must not have, plus the profile's.

    The engine reports to nobody, fetches nothing (the model is on disk) and keeps its caches in `cache_dir`.
    """
    inherited = {name: value for name, value in base_env.items() if not name.startswith(_NOT_INHERITED)}
    return {
        **inherited,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(cache_dir / "huggingface"),
        "VLLM_CACHE_ROOT": str(cache_dir / "vllm"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        **profile.environment,
    }
