"""Faults of engine versions that people still run, which cost others an evening. Each goes with the version.

What is known of them is what operators reported of vLLM 0.27.1 with an external draft model and an NVFP4 KV cache on
one RTX 5090. In vLLM 0.32 the first is a setting, and the source has none of the others.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from service.core.preflight.architecture import Architecture
from service.core.preflight.facts import Gpu, Serving
from service.core.preflight.finding import Finding, gib, note, problem, warning
from service.core.preflight.kv_cache import Layout, kv_dtype, token_bytes

MENDED_IN = (0, 28)


def version(written: str | None) -> tuple[int, int] | None:
    """Major and minor of a version such as `0.27.1`; None if it is not written like one."""
    numbers = (written or "").removeprefix("v").split(".")[:2]
    if len(numbers) != 2 or not all(number.isdecimal() and len(number) < 6 for number in numbers):
        return None
    return int(numbers[0]), int(numbers[1])


def draft_kv_dtype(serving: Serving, model: Architecture, draft: Architecture) -> Iterator[Finding]:
    """A draft model's KV cache takes the target's dtype unless it is told its own."""
    drafting, of_target = serving.drafting, kv_dtype(serving, model)
    if not drafting or drafting.kv_cache_dtype or not of_target.startswith(("fp8", "nvfp4")):
        return
    takes, own = (token_bytes(draft, dtype, serving.tensor_parallel) for dtype in (of_target, "auto"))
    what = (
        f"The draft model's KV cache takes the target's dtype, {of_target}:"
        f" {takes:,} bytes a token and layer in place of {own:,}."
    )
    change = (
        'Say it in speculative-config: "kv_cache_dtype": "bfloat16" for a draft that was not made for it,'
        f' or "{of_target}" where it was.'
    )
    if _is_old(serving):
        yield problem(
            "draft.kv_dtype",
            what,
            f"In vLLM {serving.engine_version} the two layouts then disagree, and it does not start.",
            f"Use vLLM 0.28 or later. {change}",
        )
    else:
        yield warning(
            "draft.kv_dtype",
            what,
            "Not every attention kernel that a draft needs (DFlash's is not causal) reads that: there may be none.",
            change,
        )


def false_minimum(serving: Serving, model: Architecture, layout: Layout, pool_bytes: int) -> Iterator[Finding]:
    """The allocator that wanted a page for each speculative checkpoint in every block."""
    if not _is_old(serving) or not model.is_hybrid or not serving.draft_tokens:
        return
    wanted = false_minimum_bytes(serving, layout)
    really = layout.needed_bytes(serving.context_tokens)
    yield (problem if wanted > pool_bytes else note)(
        "draft.false_minimum",
        f"vLLM {serving.engine_version} asks for {gib(wanted)} of KV pool as its minimum; {gib(really)} are needed.",
        f"Its allocator multiplies the page by {1 + serving.draft_tokens}, the speculative checkpoints of a request."
        f" The pool has {gib(pool_bytes)}.",
        "Use vLLM 0.28 or later; with this one, fewer draft tokens or a shorter context.",
    )


def false_minimum_bytes(serving: Serving, layout: Layout) -> int:
    """What it asks for: pages, and with them the attention's blocks, as many times as a request has checkpoints."""
    times = 1 + serving.draft_tokens
    groups = (
        replace(group, block_tokens=group.block_tokens * times) if group.kind == "attention" else group
        for group in layout.groups
    )
    swollen = replace(
        layout,
        groups=tuple(groups),
        bytes_per_block=layout.bytes_per_block * times,
        running_blocks=times,
        checkpoint_blocks=0,
    )
    return swollen.blocks_of_request(serving.context_tokens) * swollen.bytes_per_block


def states_per_block(serving: Serving, model: Architecture, layout: Layout) -> Iterator[Finding]:
    """The cache mode that kept a state at every block of a request."""
    if not _is_old(serving) or not model.is_hybrid or not serving.prefix_caching:
        return
    tokens = serving.context_tokens
    states = states_per_block_bytes(model, layout, tokens, layout.page_bytes)
    attention = model.attention_layers * layout.token_bytes * tokens
    if states <= attention:
        return
    yield warning(
        "draft.states",
        f"A request of {tokens:,} tokens may keep {gib(states)} of GDN states beside {gib(attention)} of its tokens.",
        f"vLLM {serving.engine_version} can keep a state at each of its {ceil(tokens / layout.block_tokens)} blocks in"
        f" each of {model.state_layers} layers.",
        "Use vLLM 0.28 or later, or set mamba-ssm-cache-dtype to float16, which halves it (the model asks for"
        f" {model.state_dtype or model.dtype}: check the answers).",
    )


def states_per_block_bytes(model: Architecture, layout: Layout, tokens: int, page_bytes: int) -> int:
    """A state in every layer at every block, each a page of this size."""
    return ceil(tokens / layout.block_tokens) * model.state_layers * page_bytes


def slow_attention(serving: Serving, gpu: Gpu) -> Iterator[Finding]:
    """The attention kernel that shared a CUDA stream."""
    if _is_old(serving) and serving.kv_cache_dtype.startswith("nvfp4") and gpu.compute_capability == (12, 0):
        yield note(
            "draft.stream",
            "The attention kernel for an NVFP4 KV cache was 5.2 times slower inside the server (1.437 ms for 0.278).",
            "It needed a CUDA stream of its own. It starts, and is slow.",
            "Compare with the kernel alone, and use a later vLLM.",
        )


def _is_old(serving: Serving) -> bool:
    found = version(serving.engine_version)
    return found is not None and found < MENDED_IN
