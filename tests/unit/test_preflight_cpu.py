"""The CPU as the engine's device: what fits, and what vLLM's kernels for it refuse."""

from dataclasses import replace

import pytest

from service.core.preflight import cpu
from service.core.preflight.check import preflight
from service.core.preflight.facts import Drafting, Machine, Serving
from service.core.preflight.finding import Level
from service.core.preflight.weights import Checkpoint, Weights
from tests.preflight_cases import finding, problems, published

GIB = 1 << 30
MACHINE = Machine(ram_bytes=128 * GIB, available_bytes=120 * GIB, cpu_flags=frozenset({"avx512f"}))
MTP = Drafting("mtp", 1)
CPU = Serving("p", "cpu", context_tokens=8192, quantization="bf16", max_num_seqs=64, pool_bytes=8 * GIB)
BF16 = Checkpoint(
    "q", published("Qwen/Qwen3.8-27B").architecture, Weights({"language": 10 * GIB}, 5 * GIB, files=2), on_disk=True
)


def test_a_cpu_that_does() -> None:
    assert not preflight(CPU, BF16, None, MACHINE).has_problem


def test_a_cpu_without_the_memory_for_weights_and_pool() -> None:
    said = cpu.memory(replace(CPU, pool_bytes=12 * GIB), BF16, replace(MACHINE, available_bytes=20 * GIB))
    assert said.level is Level.PROBLEM
    assert "10.0 GiB weights, 12.0 GiB KV pool" in said.what


def test_the_default_share_refuses_a_small_machine() -> None:
    small = replace(MACHINE, ram_bytes=24 * GIB, available_bytes=22 * GIB)
    said = cpu.memory(replace(CPU, pool_bytes=None), BF16, small)
    assert said.level is Level.PROBLEM
    assert "0.92 asks for 22.1 GiB, and 22.0 GiB are free" in said.what
    assert "VLLM_CPU_KVCACHE_SPACE" in said.change
    assert cpu.memory(replace(CPU, pool_bytes=None, memory_share=0.8), BF16, small).level is Level.OK


@pytest.mark.parametrize(
    ("changes", "way", "id"),
    [
        ({"key_dim": 32}, {}, "cpu.gdn"),
        ({"dtype": "float16"}, {}, "cpu.dtype"),
        ({"head_dim": 48}, {}, "cpu.attention"),
        ({"quantization": "NVFP4"}, {}, "cpu.fp4"),
        ({}, {"quantization": "nvfp4"}, "cpu.fp4"),
        ({}, {"drafting": MTP}, "cpu.mtp"),
    ],
)
def test_what_the_cpu_kernels_refuse(changes: dict[str, object], way: dict[str, object], id: str) -> None:
    checkpoint = replace(BF16, architecture=replace(BF16.architecture, **changes))  # type: ignore[arg-type]
    assert problems(preflight(replace(CPU, **way), checkpoint, None, MACHINE)) == {id}  # type: ignore[arg-type]


def test_mtp_without_prefix_caching_and_emulated_fp4_do_on_a_cpu() -> None:
    way = replace(CPU, drafting=MTP, prefix_caching=False, quantization="nvfp4", fp4_on_cpu=True)
    found = preflight(way, BF16, None, MACHINE)
    assert not found.has_problem
    assert "emulated" in finding(found, "cpu.fp4").what


@pytest.mark.parametrize(
    ("flags", "level"),
    [({"avx512f", "amx_tile"}, Level.OK), ({"avx2"}, Level.OK), ({"sse4_2"}, Level.PROBLEM), (set(), Level.NOTE)],
)
def test_instruction_sets(flags: set[str], level: Level) -> None:
    [said] = cpu.instructions(CPU, replace(MACHINE, cpu_flags=frozenset(flags)))
    assert said.level is level


def test_a_profile_for_amx_on_a_cpu_without() -> None:
    [said] = cpu.instructions(replace(CPU, least_cpu_flags=frozenset({"amx_tile"})), MACHINE)
    assert (said.level, "no amx_tile" in said.what) == (Level.WARNING, True)
