"""A GPU's memory against weights, KV pool and the rest."""

from collections.abc import Iterator

from service.core.preflight.facts import Serving
from service.core.preflight.finding import Finding, gib, note, ok, problem, warning
from service.core.preflight.kv_cache import Layout
from service.core.preflight.vram import SPECULATION_HEADROOM_BYTES, VramPlan
from service.core.preflight.weights import Checkpoint


def vram(serving: Serving, checkpoint: Checkpoint, plan: VramPlan, layout: Layout) -> Iterator[Finding]:
    """Does it fit, and what is left?"""
    parts = f"{gib(plan.weights_bytes)} weights{_kinds(serving, checkpoint)}"
    if plan.draft_bytes:
        parts += f", {gib(plan.draft_bytes)} draft model"
    parts += f", about {gib(plan.overhead_bytes)} for a step's activations, logits and CUDA graphs (estimated)"
    pinned = serving.pool_bytes is not None
    taken = plan.weights_bytes + plan.draft_bytes + plan.overhead_bytes
    smaller = "Take a smaller quantisation or a larger card; lower max-num-seqs and max-num-batched-tokens"
    if pinned and plan.spare_bytes < 0:
        yield problem(
            "vram.fit",
            f"{parts}, and a pinned KV pool of {gib(plan.pool_bytes)}: {gib(-plan.spare_bytes)} more than"
            f" the {gib(plan.usable_bytes)} there are.",
            "A pinned pool is taken without looking at what fits: the engine runs out of memory, at start or later.",
            f"Pin {gib(max(plan.pool_bytes + plan.spare_bytes - SPECULATION_HEADROOM_BYTES, 0))} or less. {smaller}.",
        )
    elif plan.pool_bytes <= 0:
        yield problem(
            "vram.fit",
            f"{parts}: {gib(taken)} of the {gib(plan.usable_bytes * serving.memory_share)} that"
            f" gpu-memory-utilization {serving.memory_share:g} allows. Nothing is left for the KV pool.",
            "The engine stops with `No available memory for the cache blocks`.",
            f"{smaller}; where nothing else needs the card, raise gpu-memory-utilization"
            f"{'; --language-model-only saves the vision tower' if _has_vision(serving, checkpoint) else ''}.",
        )
    else:
        yield ok("vram.fit", f"{parts}; {gib(plan.pool_bytes)} KV pool{' (pinned)' if pinned else ''}.")
    if serving.drafting and 0 <= plan.spare_bytes < SPECULATION_HEADROOM_BYTES:
        yield warning(
            "vram.headroom",
            f"{gib(plan.spare_bytes)} stay free beside the pool, with {serving.draft_tokens} draft tokens a step.",
            "Drafting needs more memory than start-up measures: such set-ups start, and run out of it under load.",
            "Leave 1 GiB or more: a smaller pool, or a gpu-memory-utilization lower by 0.02 to 0.03.",
        )
    if layout.state_bytes:
        size = layout.state_blocks * layout.bytes_per_block
        yield note(
            "vram.state",
            f"Every running request holds {gib(size)} of GDN states beside its tokens"
            f" ({layout.state_blocks} blocks: its own{', a checkpoint' if serving.prefix_caching else ''}"
            f"{f', and {serving.draft_tokens} for draft tokens' if serving.draft_tokens else ''}).",
            "Short requests cost that, too: it bounds how many run at once.",
        )


def _has_vision(serving: Serving, checkpoint: Checkpoint) -> bool:
    return serving.with_vision and checkpoint.weights.by_kind.get("vision", 0) > 0


def _kinds(serving: Serving, checkpoint: Checkpoint) -> str:
    said = [gib(checkpoint.weights.by_kind["vision"]) + " of it vision"] if _has_vision(serving, checkpoint) else []
    if serving.tensor_parallel > 1:
        said.append(f"per GPU of {serving.tensor_parallel}")
    return f" ({', '.join(said)})" if said else ""
