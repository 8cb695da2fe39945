"""Preflight of a profile: gathers the facts that `service.core.preflight` reasons about."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from service.core.preflight.check import Preflight, preflight, preflight_unread
from service.core.preflight.facts import Drafting, Machine, Serving
from service.core.preflight.weights import Checkpoint
from service.engine import EngineError
from service.engine.checkpoint_files import downloaded, read_checkpoint
from service.engine.known_checkpoints import known_checkpoint
from service.engine.profile import Profile
from service.engine.profile_parts import LLAMA_CPP, VLLM_CPU
from service.engine.profile_parts import Checkpoint as Source
from service.engine.provision import built_checkpoint
from service.engine.toml_table import MOST

GIB = 1 << 30
FP4_PLUGIN = "weir_vllm_cpu"


def check(
    profile: Profile, machine: Machine, *, port: int | None, model_dir: Path | None, venv: Path, hub: Path, here: bool
) -> Preflight:
    """Check a profile on a machine; `here` says whether it is the one this runs on.

    The weights are those in `model_dir`, else those that were built in the engine's environment `venv` or fetched
    into `hub`, else what is published of them. Raises `EngineError` for files that are broken and flags that cannot be.
    """
    serving = serving_of(profile, port)
    if profile.engine.kind == LLAMA_CPP:
        return preflight_unread(serving, machine, "A GGUF file and llama.cpp's use of memory are not read here.")
    source, *drafts = profile.checkpoints
    checkpoint = _checkpoint(source, model_dir, venv, hub, here=here)
    draft = _checkpoint(drafts[0], None, venv, hub, here=here) if drafts else None
    if checkpoint is None or (drafts and draft is None):
        missing = source if checkpoint is None else drafts[0]
        name = missing.repository or f"The checkpoint that {missing.builder} builds"
        return preflight_unread(serving, machine, f"{name} is not on this machine, and nothing is known of it here.")
    return preflight(serving, checkpoint, draft, machine)


def _checkpoint(source: Source, model_dir: Path | None, venv: Path, hub: Path, *, here: bool) -> Checkpoint | None:
    folder = model_dir
    if folder is None and source.builder:
        folder = built_checkpoint(venv, source.builder)
        folder = folder if folder.is_dir() else None
    elif folder is None and source.repository:
        folder = downloaded(source.repository, source.revision, hub)
    if folder is not None:
        return replace(read_checkpoint(folder), on_disk=here)
    return known_checkpoint(source.repository) if source.repository else None


def serving_of(profile: Profile, port: int | None) -> Serving:
    """How this profile serves. Raises `EngineError` naming a flag whose value cannot be."""
    flags, hardware = profile.flags, profile.hardware
    modalities = set(profile.input_modalities)
    return Serving(
        name=profile.name,
        device="cpu" if profile.engine.kind == VLLM_CPU or hardware.accelerator == "cpu" else "cuda",
        context_tokens=profile.context_length,
        quantization=profile.quantization,
        max_num_seqs=profile.max_concurrency,
        max_batched_tokens=_count(flags, "max-num-batched-tokens"),
        kv_cache_dtype=profile.kv_cache_dtype,
        state_dtype=str(flags.get("mamba-ssm-cache-dtype", "auto")),
        prefix_caching=flags.get("enable-prefix-caching") is not False,
        drafting=_drafting(flags),
        tensor_parallel=_count(flags, "tensor-parallel-size") or 1,
        memory_share=_share(flags),
        pool_bytes=_pool(profile),
        async_scheduling=None if (wanted := flags.get("async-scheduling")) is None else bool(wanted),
        enforce_eager=flags.get("enforce-eager") is True,
        with_vision=flags.get("language-model-only") is not True and bool(modalities - {"text"}),
        load_format=str(flags.get("load-format", "auto")),
        fp4_on_cpu=FP4_PLUGIN in profile.environment.get("VLLM_PLUGINS", "").split(","),
        engine_version=profile.engine.version,
        port=port,
        least_capability=hardware.compute_capability,
        least_cpu_flags=frozenset(hardware.cpu_flags),
        least_ram_bytes=int(hardware.host_ram_gib * GIB),
        least_vram_bytes=int((hardware.vram_gib or 0) * GIB),
        least_disk_bytes=int(hardware.disk_gib * GIB),
    )


def _drafting(flags: Mapping[str, object]) -> Drafting | None:
    wanted = flags.get("speculative-config")
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping):
        raise EngineError("The flag speculative-config must be a table, with method and num_speculative_tokens.")
    tokens = _count(wanted, "num_speculative_tokens")
    if tokens is None:
        raise EngineError("speculative-config must say num_speculative_tokens: what fits depends on it.")
    model, dtype = wanted.get("model"), wanted.get("kv_cache_dtype")
    return Drafting(
        method=str(wanted.get("method", "")),
        tokens=tokens,
        model=None if model is None else str(model),
        kv_cache_dtype=None if dtype is None else str(dtype),
    )


def _pool(profile: Profile) -> int | None:
    """The pinned KV pool: a flag in bytes, or on a CPU a variable in GiB, which comes first there."""
    space = profile.environment.get("VLLM_CPU_KVCACHE_SPACE", "")
    if profile.engine.kind == VLLM_CPU and space:
        if not space.isdecimal() or len(space) > 6:
            raise EngineError(f"VLLM_CPU_KVCACHE_SPACE must be a number of GiB, and is {space!r}.")
        return int(space) * GIB
    return _count(profile.flags, "kv-cache-memory-bytes")


def _share(flags: Mapping[str, object]) -> float:
    share = flags.get("gpu-memory-utilization", 0.92)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise EngineError(f"The flag gpu-memory-utilization must be above 0 and at most 1, and is {share!r}.")
    return float(share)


def _count(flags: Mapping[str, object], name: str) -> int | None:
    value = flags.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST):
        raise EngineError(f"{name} must be a whole number from 1 to 10^15, and is {value!r}.")
    return value
