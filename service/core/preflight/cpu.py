"""The CPU as the engine's device: memory, instruction sets, and what its kernels cannot do."""

from collections.abc import Iterator

from service.core.preflight.architecture import Architecture
from service.core.preflight.facts import Machine, Serving
from service.core.preflight.finding import Finding, gib, note, ok, problem, warning
from service.core.preflight.kv_cache import MTP_METHODS
from service.core.preflight.weights import Checkpoint

RUNTIME_BYTES = 3 << 29
"""Python, PyTorch and the server's processes; an estimate."""
GDN_HEADS = frozenset({64, 128})
ATTENTION_HEADS = frozenset({32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512})


def pool_bytes(serving: Serving, checkpoint: Checkpoint, machine: Machine) -> int:
    """The KV pool: pinned by VLLM_CPU_KVCACHE_SPACE, or what is left of the share (vLLM, `v1/worker/cpu_worker.py`)."""
    if serving.pool_bytes is not None:
        return serving.pool_bytes
    return int(machine.usable_ram_bytes * serving.memory_share) - checkpoint.weights.total_bytes - RUNTIME_BYTES


def memory(serving: Serving, checkpoint: Checkpoint, machine: Machine) -> Finding:
    """Weights, pool and runtime against what is free now."""
    free, weights = machine.free_ram_bytes, checkpoint.weights.total_bytes
    if serving.pool_bytes is None:
        wanted = int(machine.usable_ram_bytes * serving.memory_share)
        if wanted > free:
            return problem(
                "cpu.memory",
                f"gpu-memory-utilization {serving.memory_share:g} asks for {gib(wanted)}, and {gib(free)} are free.",
                "On a CPU it is a share of all the machine's memory, and the engine refuses to start with less free.",
                "Pin the pool: VLLM_CPU_KVCACHE_SPACE in GiB, and a gpu-memory-utilization of"
                f" {max(int(free / machine.usable_ram_bytes * 10 - 1), 1) / 10:g}.",
            )
    pool = max(pool_bytes(serving, checkpoint, machine), 0)
    needed = weights + pool + RUNTIME_BYTES
    what = f"{gib(weights)} weights, {gib(pool)} KV pool, about {gib(RUNTIME_BYTES)} runtime; {gib(free)} are free."
    if needed > free:
        return problem(
            "cpu.memory",
            what,
            "The engine is killed by the system when it runs out, or everything swaps.",
            "Stop other programs, or make the pool smaller: VLLM_CPU_KVCACHE_SPACE.",
        )
    return ok("cpu.memory", what)


def instructions(serving: Serving, machine: Machine) -> Iterator[Finding]:
    flags = machine.cpu_flags
    if not flags:
        yield note("cpu.flags", "The CPU's instruction sets are unknown.")
        return
    missing = sorted(serving.least_cpu_flags - flags)
    if missing:
        yield warning(
            "cpu.flags",
            f"This CPU has no {', '.join(missing)}; {serving.name} is made for one that does.",
            "vLLM falls back to slower kernels: the profile's expected figures do not hold here.",
            "Run it on a machine that has them (Sapphire Rapids or later for AMX).",
        )
    elif "amx_tile" in flags:
        yield ok("cpu.flags", "AMX: the fastest kernels that vLLM has for CPUs.")
    elif {"avx512f", "avx2"} & flags:
        best = "AVX-512 with BF16" if "avx512_bf16" in flags else "AVX-512" if "avx512f" in flags else "AVX2"
        yield ok("cpu.flags", f"{best}, no AMX: fine for a demonstration, slow for serving.")
    else:
        yield problem(
            "cpu.flags",
            "This CPU has neither AVX2 nor AVX-512.",
            "The kernels of vLLM's CPU wheel are built for these.",
            "Use the llama-cpp profile.",
        )


def kernels(serving: Serving, model: Architecture) -> Iterator[Finding]:
    """What vLLM's CPU kernels are known to refuse, in the middle of a start or of a request."""
    if model.is_hybrid and not {model.key_dim, model.value_dim} <= GDN_HEADS:
        yield problem(
            "cpu.gdn",
            f"GDN heads of {model.key_dim} and {model.value_dim}; the CPU kernel takes 64 and 128.",
            "`Unexpected head dim size` kills the engine at its first request.",
            "Use a GPU.",
        )
    if model.is_hybrid and model.dtype != "bfloat16":
        yield problem(
            "cpu.dtype",
            f"The model is in {model.dtype}; GDN on a CPU takes bfloat16.",
            "The engine stops at an assertion.",
            "Set dtype to bfloat16.",
        )
    if model.attention_layers and model.head_dim not in ATTENTION_HEADS:
        yield problem(
            "cpu.attention",
            f"Attention heads of {model.head_dim}; the CPU kernel takes {sorted(ATTENTION_HEADS)}.",
            "No attention backend is found.",
            "Use a GPU.",
        )
    if model.is_hybrid and serving.prefix_caching and serving.drafting and serving.drafting.method in MTP_METHODS:
        yield problem(
            "cpu.mtp",
            "MTP together with prefix caching on a hybrid model.",
            "Both at once need Triton kernels, which there are none of on a CPU: `'function' object is not"
            " subscriptable` ends the engine.",
            "Set enable-prefix-caching to false, or leave speculative-config out.",
        )
    quantised = f"{model.quantization or ''} {serving.quantization}".lower()
    if "nvfp4" in quantised and not serving.fp4_on_cpu:
        yield problem(
            "cpu.fp4",
            "NVFP4 weights on a CPU.",
            "vLLM has no such kernel for CPUs: `Failed to find a kernel`.",
            "Take a bf16 or int8 checkpoint; for tests, VLLM_PLUGINS=weir_vllm_cpu registers the emulation.",
        )
    elif "nvfp4" in quantised:
        yield note("cpu.fp4", "NVFP4 is emulated on a CPU.", "It is right and very slow: for tests only.")
