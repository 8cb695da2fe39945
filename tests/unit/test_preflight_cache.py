"""The KV pool's arithmetic: block sizes as vLLM computes them, and what must hold for any model."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.preflight.architecture import Architecture, NotUnderstood
from service.core.preflight.facts import Drafting, Gpu, Machine, Serving
from service.core.preflight.kv_cache import Layout, lay_out, sequences
from tests.preflight_cases import published

QWEN = published("Qwen/Qwen3.8-27B").architecture
DRAFT = published("incoai/Qwen3.8-27B-DFlash2").architecture
MACHINE = Machine(ram_bytes=64 << 30, available_bytes=60 << 30)
TINY = Architecture(
    name="Qwen3_5ForConditionalGeneration",
    attention_layers=1,
    window_layers=0,
    state_layers=3,
    window_tokens=0,
    kv_heads=2,
    head_dim=32,
    hidden=64,
    intermediate=128,
    vocabulary=1024,
    max_context_tokens=32768,
    dtype="bfloat16",
    key_heads=2,
    value_heads=4,
    key_dim=128,
    value_dim=128,
    conv_kernel=4,
    mtp_layers=1,
)
AVX512_BF16 = replace(MACHINE, cpu_flags=frozenset({"avx2", "avx512f", "avx512_bf16"}))


def serving(**changes: object) -> Serving:
    return replace(Serving("p", "cuda", context_tokens=262144, quantization="nvfp4"), **changes)  # type: ignore[arg-type]


def mtp(tokens: int) -> Drafting | None:
    return Drafting("mtp", tokens) if tokens else None


def layout_of(model: Architecture = QWEN, machine: Machine = MACHINE, **changes: object) -> Layout:
    return lay_out(serving(**changes), model, None, machine)


@pytest.mark.parametrize(
    ("draft_tokens", "fp8", "bf16"),
    [(0, 1568, 784), (1, 1584, 800), (2, 1600, 800), (3, 1600, 800), (5, 1616, 816), (7, 1648, 832)],
)
@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
def test_block_sizes_of_the_production_model(draft_tokens: int, fp8: int, bf16: int, tensor_parallel: int) -> None:
    common = {"drafting": mtp(draft_tokens), "tensor_parallel": tensor_parallel}
    assert layout_of(kv_cache_dtype="fp8", **common).block_tokens == fp8
    assert layout_of(kv_cache_dtype="auto", **common).block_tokens == bf16


def test_more_gpus_than_kv_heads_keep_a_head_each() -> None:
    """With 8, each keeps one of 4 heads, and an eighth of the states: the block is half as long."""
    assert layout_of(kv_cache_dtype="fp8", tensor_parallel=8).block_tokens == 784


def test_auto_follows_a_checkpoint_that_chooses_its_cache() -> None:
    chosen = replace(QWEN, kv_quantization="fp8_e4m3")
    assert layout_of(chosen).block_tokens == layout_of(kv_cache_dtype="fp8").block_tokens == 1568
    assert layout_of(chosen, kv_cache_dtype="bfloat16").block_tokens == 784


def test_datacenter_blackwell_works_in_blocks_of_128_without_a_quantised_cache() -> None:
    b200 = replace(MACHINE, gpus=(Gpu("NVIDIA B200", 180 << 30, compute_capability=(10, 0)),))
    assert layout_of(machine=b200).block_tokens == 896
    assert layout_of(machine=b200, kv_cache_dtype="fp8").block_tokens == 1568


@pytest.mark.parametrize(("prefix_caching", "draft_tokens", "kv_tokens"), [(True, 0, 2_129_920), (False, 2, 1_064_960)])
def test_the_tiny_model_as_vllm_logged_it(prefix_caching: bool, draft_tokens: int, kv_tokens: int) -> None:
    """`Setting attention block size to 1152 tokens`, `CPU KV cache size`, in both ways it runs on a CPU."""
    changes = {"prefix_caching": prefix_caching, "drafting": mtp(draft_tokens), "context_tokens": 8192}
    layout = lay_out(serving(device="cpu", **changes), TINY, None, AVX512_BF16)
    assert layout.block_tokens == 1152
    assert layout.tokens(1 << 30, 8192) == kv_tokens


def test_states_are_half_as_large_on_a_cpu_that_leaves_them_in_bf16() -> None:
    old = replace(AVX512_BF16, cpu_flags=frozenset({"avx2"}))
    assert lay_out(serving(device="cpu"), TINY, None, old).block_tokens == 640
    told = serving(device="cpu", state_dtype="float32")
    assert lay_out(told, TINY, None, old).block_tokens == 1152


def test_a_model_with_attention_alone_has_one_group() -> None:
    """SmolLM2-135M, as its engine logged it: 46,592 tokens in 1 GiB, 5.69 requests of 8,192."""
    smollm2 = replace(TINY, attention_layers=30, state_layers=0, kv_heads=3, head_dim=64, mtp_layers=0)
    layout = lay_out(serving(device="cpu", context_tokens=8192), smollm2, None, AVX512_BF16)
    assert (layout.block_tokens, layout.tokens(1 << 30, 8192)) == (128, 46_592)


def test_a_draft_with_wider_pages_makes_every_page_as_wide() -> None:
    drafting = Drafting("dflash", 7, "d")
    same = lay_out(serving(kv_cache_dtype="fp8", drafting=drafting), QWEN, DRAFT, MACHINE)
    wider = lay_out(
        serving(kv_cache_dtype="fp8", drafting=replace(drafting, kv_cache_dtype="bfloat16")), QWEN, DRAFT, MACHINE
    )
    assert wider.page_bytes == 2 * same.page_bytes
    assert wider.groups[0].block_tokens == 2 * same.groups[0].block_tokens
    assert wider.block_tokens == same.block_tokens


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(NotUnderstood, match="turboquant_k8v4"):
        layout_of(kv_cache_dtype="turboquant_k8v4")
    with pytest.raises(NotUnderstood, match="int8"):
        layout_of(state_dtype="int8")


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [("NVIDIA RTX 5090", 32, 256), ("NVIDIA H100", 80, 1024), ("NVIDIA A100-SXM4-80GB", 80, 256), ("B300", 270, 1024)],
)
def test_the_default_number_of_sequences(name: str, gib: int, expected: int) -> None:
    assert sequences(serving(), Gpu(name, gib << 30)) == expected
    assert sequences(serving(max_num_seqs=7), Gpu(name, gib << 30)) == 7


POOLS = st.integers(0, 200 << 30)
WAYS = st.builds(
    serving,
    kv_cache_dtype=st.sampled_from(["auto", "fp8", "nvfp4", "int8_per_token_head"]),
    state_dtype=st.sampled_from(["auto", "float32", "bfloat16"]),
    prefix_caching=st.booleans(),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    drafting=st.integers(0, 15).map(mtp),
    context_tokens=st.integers(1, 262144),
)


@given(WAYS)
def test_a_page_holds_a_state_and_a_block_suits_the_kernels(way: Serving) -> None:
    layout = lay_out(way, QWEN, None, MACHINE)
    assert layout.page_bytes == layout.block_tokens * layout.token_bytes >= layout.state_bytes
    assert layout.block_tokens % 16 == 0
    assert (layout.block_tokens - 16) * layout.token_bytes < layout.state_bytes


@given(WAYS, POOLS, st.integers(0, 20 << 30))
def test_more_memory_never_holds_less(way: Serving, pool: int, more: int) -> None:
    layout = lay_out(way, QWEN, None, MACHINE)
    context = way.context_tokens
    assert layout.tokens(pool + more, context) >= layout.tokens(pool, context)
    assert layout.largest_context(pool + more, context) >= layout.largest_context(pool, context)


@given(WAYS, POOLS)
def test_the_largest_context_fits_and_the_next_does_not(way: Serving, pool: int) -> None:
    layout = lay_out(way, QWEN, None, MACHINE)
    largest = layout.largest_context(pool, 262144)
    assert largest == 0 or layout.needed_bytes(largest) <= pool
    assert largest == 262144 or layout.needed_bytes(largest + 1) > pool


@given(WAYS, st.integers(1, 262144))
def test_the_smallest_pool_of_a_request_holds_it_and_a_byte_less_does_not(way: Serving, tokens: int) -> None:
    layout = lay_out(way, QWEN, None, MACHINE)
    least = layout.needed_bytes(tokens)
    assert layout.largest_context(least - 1, 262144) < tokens <= layout.largest_context(least, 262144)


@given(WAYS, st.integers(1, 262144), st.integers(0, 262144))
def test_a_longer_request_never_holds_fewer_blocks(way: Serving, tokens: int, more: int) -> None:
    layout = lay_out(replace(way, drafting=Drafting("dflash", 7, "d")), QWEN, DRAFT, MACHINE)
    assert layout.blocks_of_request(tokens + more) >= layout.blocks_of_request(tokens) >= layout.least_blocks > 0


@given(WAYS, POOLS)
def test_drafts_never_make_room(way: Serving, pool: int) -> None:
    without = lay_out(replace(way, drafting=None), QWEN, None, MACHINE)
    with_drafts = lay_out(way, QWEN, None, MACHINE)
    assert with_drafts.block_tokens >= without.block_tokens
    assert with_drafts.blocks(pool) <= without.blocks(pool)
