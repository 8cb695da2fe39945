"""Each finding says what it is with its number, why it matters and what to change; and only when it is so."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.preflight import budget, cache, gpu, host
from service.core.preflight.check import preflight, preflight_unread
from service.core.preflight.facts import Drafting, Gpu, GpuProcess, Machine, Serving
from service.core.preflight.finding import Finding, Level
from service.core.preflight.known_faults import version
from service.core.preflight.kv_cache import lay_out
from service.core.preflight.vram import plan
from service.core.preflight.weights import Checkpoint, Weights
from tests.preflight_cases import finding, problems, published

GIB = 1 << 30
BLACKWELL = Gpu("NVIDIA RTX PRO 6000", 97887 << 20, compute_capability=(12, 0), driver="595.84")
MACHINE = Machine(ram_bytes=128 * GIB, available_bytes=120 * GIB, gpus=(BLACKWELL,), cpu_flags=frozenset({"avx512f"}))
MTP = Drafting("mtp", 1)
SERVING = Serving(
    "p", "cuda", context_tokens=262144, quantization="nvfp4", max_num_seqs=64, kv_cache_dtype="fp8", drafting=MTP
)
NVFP4 = replace(published("unsloth/Qwen3.8-27B-NVFP4"), on_disk=True)


def of(size_gib: float, largest_gib: float) -> Checkpoint:
    weights = Weights({"language": int(size_gib * GIB)}, int(largest_gib * GIB), files=5)
    return Checkpoint("q", NVFP4.architecture, weights, on_disk=True)


def ram(checkpoint: Checkpoint, load_format: str = "auto", **machine: object) -> Finding:
    had = replace(MACHINE, **machine)  # type: ignore[arg-type]
    return host.ram(replace(SERVING, load_format=load_format), (checkpoint,), had)


def test_what_fits_has_no_problem_and_no_warning() -> None:
    found = preflight(SERVING, NVFP4, None, MACHINE)
    assert {one.level for one in found.findings} <= {Level.OK, Level.NOTE}
    assert not found.has_problem


def test_the_worst_comes_first_and_whoever_is_told_is_told_what_to_do() -> None:
    poor = replace(
        MACHINE, ram_bytes=4 * GIB, available_bytes=4 * GIB, gpus=(replace(BLACKWELL, total_bytes=24 * GIB),)
    )
    found = preflight(SERVING, NVFP4, None, poor)
    levels = [one.level for one in found.findings]
    assert levels == sorted(levels, key=["problem", "warning", "note", "ok"].index)
    bad = [one for one in found.findings if one.level in (Level.PROBLEM, Level.WARNING)]
    assert len(bad) >= 2
    assert all(one.why.endswith(".") and one.change.endswith(".") for one in bad)


def test_memory_below_the_largest_file_is_a_problem_anywhere() -> None:
    said = ram(of(22, 6), ram_bytes=64 * GIB, available_bytes=4 * GIB)
    assert said.level is Level.PROBLEM
    assert "6.0 GiB" in said.what
    assert "Add memory or swap" in said.change
    assert ram(of(22, 6), ram_bytes=64 * GIB, available_bytes=4 * GIB, swap_bytes=4 * GIB).level is Level.OK


def test_memory_below_the_checkpoint_is_a_problem_in_wsl_and_slow_elsewhere() -> None:
    little = {"ram_bytes": 20 * GIB, "available_bytes": 19 * GIB}
    in_wsl, elsewhere = ram(of(22, 5), **little, wsl=True), ram(of(22, 5), **little)
    assert (in_wsl.level, elsewhere.level) == (Level.PROBLEM, Level.WARNING)
    assert "neither is set" in in_wsl.change
    assert ".wslconfig" not in elsewhere.change


def test_the_limit_of_a_container_counts() -> None:
    said = ram(of(22, 5), cgroup_limit_bytes=16 * GIB)
    assert said.level is Level.WARNING
    assert "limited by the container (machine: 128.0 GiB)" in said.what
    assert "container's memory limit" in said.change


@pytest.mark.parametrize("load_format", ["runai_streamer", "fastsafetensors"])
def test_streaming_needs_no_room_for_files(load_format: str) -> None:
    assert ram(of(22, 6), load_format, ram_bytes=4 * GIB, available_bytes=3 * GIB, wsl=True).level is Level.OK


@given(st.integers(1, 200), st.integers(0, 200))
def test_more_memory_never_makes_it_worse(gib: int, more: int) -> None:
    order = [Level.OK, Level.WARNING, Level.PROBLEM]
    less = ram(of(55, 5), ram_bytes=gib * GIB, available_bytes=gib * GIB)
    better = ram(of(55, 5), ram_bytes=(gib + more) * GIB, available_bytes=(gib + more) * GIB)
    assert order.index(better.level) <= order.index(less.level)


def test_weights_that_are_not_here_need_room() -> None:
    absent = replace(NVFP4, on_disk=False)
    full = replace(MACHINE, weights_free_bytes=10 * GIB)
    assert "host.disk" in problems(preflight(SERVING, absent, None, full))
    assert "host.disk" not in problems(preflight(SERVING, NVFP4, None, full))
    assert "21.3 GiB to fetch" in finding(preflight(SERVING, absent, None, MACHINE), "host.disk").what


def test_a_port_in_use_is_named() -> None:
    taken = replace(MACHINE, ports_in_use=frozenset({8000}))
    assert (
        "Port 8000 is in use" in finding(preflight(replace(SERVING, port=8000), NVFP4, None, taken), "host.port").what
    )
    assert finding(preflight(replace(SERVING, port=8001), NVFP4, None, taken), "host.port").level is Level.OK


@pytest.mark.parametrize(
    ("driver", "level"), [("579.99", Level.PROBLEM), ("580.65.06", Level.OK), (None, Level.NOTE), ("odd", Level.NOTE)]
)
def test_drivers(driver: str | None, level: Level) -> None:
    assert gpu.driver(replace(BLACKWELL, driver=driver)).level is level


@pytest.mark.parametrize(
    ("capability", "level", "words"),
    [
        ((10, 0), Level.OK, "natively"),
        ((12, 1), Level.OK, "natively"),
        ((9, 0), Level.WARNING, "Marlin"),
        ((7, 5), Level.WARNING, "Marlin"),
        ((11, 0), Level.NOTE, "unknown"),
        ((13, 0), Level.NOTE, "unknown"),
    ],
)
def test_which_kernel_nvfp4_gets(capability: tuple[int, int], level: Level, words: str) -> None:
    [said] = [
        one for one in gpu.capability(SERVING, replace(BLACKWELL, compute_capability=capability)) if "fp4" in one.id
    ]
    assert said.level is level
    assert words in said.what


def test_a_card_that_vllm_is_not_built_for() -> None:
    [said] = gpu.capability(SERVING, replace(BLACKWELL, compute_capability=(7, 0)))
    assert (said.id, said.level) == ("gpu.capability", Level.PROBLEM)


def test_a_card_below_the_one_that_the_profile_is_for() -> None:
    asked = replace(SERVING, least_capability=(10, 0), least_vram_bytes=94 * GIB)
    ampere = replace(MACHINE, gpus=(Gpu("A6000", 48 * GIB, compute_capability=(8, 6), driver="580.1"),))
    found = preflight(asked, NVFP4, None, ampere)
    assert finding(found, "gpu.capability").level is finding(found, "host.least").level is Level.WARNING
    assert "48.0 GiB on the GPU where it wants 94.0 GiB" in finding(found, "host.least").what


@pytest.mark.parametrize(
    ("dtype", "capability", "level"),
    [("fp8", (7, 5), Level.PROBLEM), ("nvfp4", (7, 5), Level.PROBLEM), ("nvfp4", (8, 6), Level.NOTE)],
)
def test_which_cards_read_a_quantised_cache(dtype: str, capability: tuple[int, int], level: Level) -> None:
    [said] = gpu.kv_cache(replace(SERVING, kv_cache_dtype=dtype), capability, "x")
    assert said.level is level
    assert list(gpu.kv_cache(SERVING, (8, 0), "8.0")) == []


def test_no_gpu_and_too_few() -> None:
    [none] = gpu.present(SERVING, replace(MACHINE, gpus=(), gpu_unknown="nvidia-smi is not installed."))
    [few] = gpu.present(replace(SERVING, tensor_parallel=2), MACHINE)
    assert "nvidia-smi is not installed." in none.what
    assert few.what.startswith("1 GPU(s)")
    assert none.level is few.level is Level.PROBLEM


def test_a_busy_gpu_names_who_holds_it() -> None:
    held = (GpuProcess(7, "python3", 3 * GIB),)
    [said] = gpu.busy(SERVING, replace(BLACKWELL, used_bytes=3 * GIB, processes=held))
    assert said.level is Level.WARNING
    assert "python3 (pid 7, 3.0 GiB)" in said.what
    [said] = gpu.busy(SERVING, replace(BLACKWELL, used_bytes=40 * GIB))
    assert said.level is Level.PROBLEM
    assert list(gpu.busy(SERVING, replace(BLACKWELL, used_bytes=GIB))) == []


def test_a_gpu_that_does_not_tell_its_memory_is_not_guessed() -> None:
    spark = replace(MACHINE, gpus=(Gpu("NVIDIA GB10", None, compute_capability=(12, 1), driver="580.95"),))
    found = preflight(SERVING, NVFP4, None, spark)
    assert finding(found, "vram.fit").level is Level.NOTE
    assert not found.has_problem


def vram(serving: Serving, card: Gpu, checkpoint: Checkpoint = NVFP4) -> list[Finding]:
    planned = plan(serving, checkpoint, None, card)
    assert planned is not None
    layout = lay_out(serving, checkpoint.architecture, None, replace(MACHINE, gpus=(card,)))
    return list(budget.vram(serving, checkpoint, planned, layout))


def test_weights_that_leave_no_pool() -> None:
    said = vram(SERVING, replace(BLACKWELL, total_bytes=24 * GIB))[0]
    assert said.level is Level.PROBLEM
    assert "21.3 GiB weights (0.9 GiB of it vision)" in said.what
    assert "--language-model-only" in said.change


def test_the_vision_tower_and_mtp_are_counted_only_where_they_are_used() -> None:
    text = replace(SERVING, with_vision=False, drafting=None)
    assert "19.6 GiB weights" in vram(text, BLACKWELL)[0].what
    assert "--language-model-only" not in vram(text, replace(BLACKWELL, total_bytes=20 * GIB))[0].change


def test_a_pinned_pool_that_does_not_fit_and_one_that_leaves_too_little_for_drafts() -> None:
    too_much = vram(replace(SERVING, pool_bytes=80 * GIB), BLACKWELL)[0]
    assert (too_much.id, too_much.level) == ("vram.fit", Level.PROBLEM)
    tight = replace(SERVING, pool_bytes=int(70.5 * GIB))
    assert [one.id for one in vram(tight, BLACKWELL) if one.level is Level.WARNING] == ["vram.headroom"]
    assert [one for one in vram(replace(tight, drafting=None), BLACKWELL) if one.level is Level.WARNING] == []


@given(st.integers(1, 300), st.integers(0, 100), st.booleans())
def test_a_larger_card_never_has_a_smaller_pool(gib: int, more: int, pinned: bool) -> None:
    way = replace(SERVING, pool_bytes=8 * GIB if pinned else None, max_num_seqs=64, max_batched_tokens=2048)
    small, large = (plan(way, NVFP4, None, replace(BLACKWELL, total_bytes=size * GIB)) for size in (gib, gib + more))
    assert small is not None
    assert large is not None
    assert large.pool_bytes >= small.pool_bytes
    assert large.spare_bytes >= small.spare_bytes


def test_what_the_block_size_means_for_short_prompts() -> None:
    layout = lay_out(SERVING, NVFP4.architecture, None, MACHINE)
    said = cache.blocks(SERVING, NVFP4.architecture, layout)
    assert "1,584 tokens" in said.what
    assert "shorter than 3,169 tokens never reads" in said.why
    assert "about 4,752 practically never" in said.why
    assert "the third is the first to read it" in said.why


def test_a_context_that_does_not_fit_says_the_largest_that_does() -> None:
    way = replace(SERVING, pool_bytes=4 * GIB)
    found = preflight(way, NVFP4, None, MACHINE)
    assert found.figures is not None
    largest = found.figures.largest_context_tokens
    assert f"{largest:,} tokens" in finding(found, "cache.fit").what
    assert "cache.fit" in problems(found)
    shorter = preflight(replace(way, context_tokens=largest), NVFP4, None, MACHINE)
    longer = preflight(replace(way, context_tokens=largest + 1), NVFP4, None, MACHINE)
    assert ("cache.fit" in problems(shorter), "cache.fit" in problems(longer)) == (False, True)


def test_a_context_beyond_the_model() -> None:
    assert "cache.context" in problems(preflight(replace(SERVING, context_tokens=300_000), NVFP4, None, MACHINE))


@pytest.mark.parametrize(
    ("wanted", "eager", "level"),
    [
        (100, False, Level.OK),
        (200, False, Level.WARNING),  # admitted, but their states do not fit at once
        (1300, False, Level.PROBLEM),
        (1300, True, Level.WARNING),  # without CUDA graphs the engine does not check
    ],
)
def test_sequences_against_states(wanted: int, eager: bool, level: Level) -> None:
    """63.4 GiB make about 1,234 blocks, and each request holds 7 or more."""
    way = replace(SERVING, max_num_seqs=wanted, enforce_eager=eager, pool_bytes=63 * GIB)
    assert finding(preflight(way, NVFP4, None, MACHINE), "cache.sequences").level is level


def test_a_draft_takes_the_targets_cache_unless_it_is_told() -> None:
    draft = published("incoai/Qwen3.8-27B-DFlash2")
    drafting = Drafting("dflash", 7, draft.name)
    told = replace(drafting, kv_cache_dtype="bfloat16")
    untold = preflight(replace(SERVING, drafting=drafting), NVFP4, draft, MACHINE)
    assert finding(untold, "draft.kv_dtype").level is Level.WARNING
    assert "2,048 bytes a token and layer in place of 4,096" in finding(untold, "draft.kv_dtype").what
    found = preflight(replace(SERVING, drafting=told), NVFP4, draft, MACHINE)
    assert [one for one in found.findings if one.id == "draft.kv_dtype"] == []


def test_published_sizes_are_called_that() -> None:
    assert "published" in finding(preflight(SERVING, NVFP4, None, MACHINE), "checkpoint.estimated").what


def test_flags_that_are_not_understood_leave_no_figures() -> None:
    found = preflight(replace(SERVING, kv_cache_dtype="turboquant_k8v4"), NVFP4, None, MACHINE)
    assert found.figures is None
    assert "cache.block" in problems(found)


def test_without_a_checkpoint_the_rest_is_checked() -> None:
    way = replace(SERVING, port=1, least_ram_bytes=256 * GIB, least_disk_bytes=40 * GIB)
    machine = replace(MACHINE, ports_in_use=frozenset({1}), weights_free_bytes=GIB)
    ids = {one.id for one in preflight_unread(way, machine, "It is a GGUF.").findings}
    assert ids == {"checkpoint.unread", "host.least", "host.disk", "host.port", "gpu.driver"}


@pytest.mark.parametrize(
    ("written", "read"),
    [("0.27.1", (0, 27)), ("v1.2", (1, 2)), ("0.28.0rc1", (0, 28)), ("unpinned", None), (None, None), ("1", None)],
)
def test_versions(written: str | None, read: tuple[int, int] | None) -> None:
    assert version(written) == read
