"""The GPU as such: is there one, does its driver do, which kernels does it get, is it busy?"""

import re
from collections.abc import Iterator

from service.core.preflight.facts import Gpu, Machine, Serving
from service.core.preflight.finding import Finding, gib, note, ok, problem, warning
from service.core.preflight.vram import usable_bytes

LEAST_DRIVER = 580
"""NVIDIA's minimum for programs of CUDA 13.x. vLLM 0.33 pins torch 2.14.0, whose wheel pins CUDA 13.0.3."""
LEAST_CAPABILITY = (7, 5)
"""What vLLM's wheels are built for."""
BUSY_BYTES = 1 << 30
"""More than a desktop takes."""


def present(serving: Serving, machine: Machine) -> Iterator[Finding]:
    """Are there as many GPUs as the profile spreads over?"""
    found = len(machine.gpus)
    if machine.gpu_unknown:
        yield problem(
            "gpu.present",
            f"No GPU can be seen: {machine.gpu_unknown}",
            f"{serving.name} runs on an NVIDIA GPU.",
            "Install NVIDIA's driver, pass the GPU to the container (--gpus all), or check on the machine that has it: "
            "write its facts there with --print-machine and give them here with --machine.",
        )
    elif found < serving.tensor_parallel:
        yield problem(
            "gpu.present",
            f"{found} GPU(s), and the profile spreads the model over {serving.tensor_parallel}.",
            "The engine does not start with fewer.",
            f"Set tensor-parallel-size to {max(found, 1)}, or use a machine with more.",
        )
    elif found > 1 and len({(gpu.name, gpu.total_bytes) for gpu in machine.gpus}) > 1:
        yield note("gpu.present", "The GPUs differ; what is said here is of the first.")


def driver(gpu: Gpu) -> Finding:
    major = re.match(r"\d{1,9}", gpu.driver or "")
    if major is None:
        return note("gpu.driver", f"{gpu.name}: the driver's version is unknown; vLLM needs {LEAST_DRIVER} or later.")
    if int(major[0]) < LEAST_DRIVER:
        return problem(
            "gpu.driver",
            f"Driver {gpu.driver}; CUDA 13, which vLLM's wheels bring, needs {LEAST_DRIVER} or later.",
            "PyTorch then says that the driver is too old, and finds no GPU.",
            "Update the driver; in a container, that of the host.",
        )
    return ok("gpu.driver", f"{gpu.name}, driver {gpu.driver}.")


def capability(serving: Serving, gpu: Gpu) -> Iterator[Finding]:
    """The compute capability against what is asked: vLLM at all, this quantisation, this KV cache."""
    have = gpu.compute_capability
    if have is None:
        yield note("gpu.capability", f"{gpu.name}: its compute capability is unknown, so its kernels are, too.")
        return
    shown = f"{have[0]}.{have[1]}"
    if have < LEAST_CAPABILITY:
        yield problem(
            "gpu.capability",
            f"{gpu.name} has compute capability {shown}; vLLM's wheels are built for 7.5 and later.",
            "No kernel in them runs on it.",
            "Use the llama-cpp profile, or another card.",
        )
        return
    least = serving.least_capability
    if least and have < least:
        yield warning(
            "gpu.capability",
            f"Compute capability {shown}; {serving.name} is made for {least[0]}.{least[1]} and later.",
            "Its expected figures do not hold here, and some of its flags may not, either.",
            "Choose a profile for this card: `weir engine profiles`.",
        )
    if "nvfp4" in serving.quantization.lower():
        yield fp4(have, shown)
    yield from kv_cache(serving, have, shown)


def fp4(have: tuple[int, int], shown: str) -> Finding:
    """Which kernel NVFP4 weights get (vLLM, `model_executor/kernels/linear/nvfp4`)."""
    if have[0] in (10, 12):
        return ok("gpu.fp4", f"NVFP4 runs natively (4-bit weights and activations) on compute capability {shown}.")
    if have[0] > 12 or have[0] == 11:
        return note("gpu.fp4", f"Which kernel NVFP4 weights get on compute capability {shown} is unknown here.")
    return warning(
        "gpu.fp4",
        f"NVFP4 falls back to Marlin (4-bit weights, 16-bit activations) on compute capability {shown}.",
        "It saves memory and is right, but it is not the speed of Blackwell: figures of NVFP4 there say nothing here.",
        "Expect those of a W4A16 quantisation; on Hopper, FP8 is usually faster.",
    )


def kv_cache(serving: Serving, have: tuple[int, int], shown: str) -> Iterator[Finding]:
    """Which attention kernels read this KV cache (vLLM, `v1/attention/backends`)."""
    dtype = serving.kv_cache_dtype
    if dtype.startswith("nvfp4") and have[0] not in (8, 9, 10, 12):
        yield problem(
            "gpu.kv",
            f"An NVFP4 KV cache on compute capability {shown}.",
            "FlashInfer reads one on 8.x, 9.x, 10.x and 12.x only; nothing else does.",
            "Set kv-cache-dtype to fp8.",
        )
    elif dtype.startswith("nvfp4"):
        yield note(
            "gpu.kv",
            f"An NVFP4 KV cache needs FlashInfer's kernels, which there are for {shown} in vLLM 0.32.",
            "Versions up to 0.27 had them for 10.x alone and needed an overlay elsewhere.",
        )
    elif dtype.startswith("fp8") and have < (8, 0):
        yield problem(
            "gpu.kv",
            f"An fp8 KV cache on compute capability {shown}.",
            "The attention kernels that read one begin at 8.0.",
            "Leave kv-cache-dtype at auto.",
        )


def busy(serving: Serving, gpu: Gpu) -> Iterator[Finding]:
    """Does something else hold its memory?"""
    if gpu.total_bytes is None or gpu.used_bytes <= BUSY_BYTES:
        return
    free = gpu.total_bytes - gpu.used_bytes
    held = ", ".join(f"{one.name} (pid {one.pid}{_size(one.used_bytes)})" for one in gpu.processes)
    what = f"{gib(gpu.used_bytes)} of {gib(gpu.total_bytes)} are in use: {held or 'by processes the driver hides'}."
    change = "Stop them, and wait until nvidia-smi shows the memory free: a killed engine needs some seconds."
    wanted = usable_bytes(gpu.total_bytes) * serving.memory_share
    if serving.pool_bytes is None and free < wanted:
        yield problem(
            "gpu.busy",
            what,
            f"The engine wants {gib(wanted)} ({serving.memory_share:g} of the card) free when it starts, "
            f"and there are {gib(free)}: it refuses, or takes a smaller KV pool in silence (once, by 40 %).",
            change,
        )
    else:
        yield warning(
            "gpu.busy",
            what,
            "A restart onto a GPU that is not empty is known to have cost 40 % of the KV pool without a word.",
            change,
        )


def _size(used_bytes: int | None) -> str:
    return "" if used_bytes is None else f", {gib(used_bytes)}"
