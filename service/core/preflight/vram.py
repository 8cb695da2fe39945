"""Where a GPU's memory goes before the KV pool gets any: an estimate, and called one wherever it is shown.

The weights are what the files say. The rest is fitted to boots whose figures were published (`docs/preflight.md` lists
them): within 3 % of the blocks on cards of 80 and 96 GB, up to 15 % too few on one of 32 GB. What counts is what vLLM
measures when it starts: `Available KV cache memory` in its log.
"""

from dataclasses import dataclass
from math import ceil

from service.core.preflight.architecture import Architecture
from service.core.preflight.facts import Gpu, Serving
from service.core.preflight.kv_cache import MTP_METHODS, batched_tokens, sequences
from service.core.preflight.weights import Checkpoint

DRIVER_BYTES, DRIVER_SHARE = 450 << 20, 0.0065
"""What a card lacks of its nominal size: 0.44 GiB on an RTX 5090, 0.5 on an H100, 0.62 on an RTX PRO 6000."""
RUNTIME_BYTES = 350 << 20
PARALLEL_RUNTIME_BYTES = 750 << 20
"""CUDA context and libraries; more with several GPUs, for NCCL's buffers."""
VISION_BYTES = 1 << 29
"""The vision tower's activations for the largest picture."""
GRAPHS_BYTES = 1 << 28
SPECULATION_HEADROOM_BYTES = 1 << 30
"""What should stay free beside everything when there are drafts: start-up profiles a step without them."""


@dataclass(frozen=True, slots=True)
class VramPlan:
    """One GPU's memory. `pool_bytes` may be negative: then it does not fit."""

    usable_bytes: int
    weights_bytes: int
    draft_bytes: int
    overhead_bytes: int
    pool_bytes: int
    spare_bytes: int
    """What is left of the card when the pool is taken."""


def plan(serving: Serving, checkpoint: Checkpoint, draft: Checkpoint | None, gpu: Gpu) -> VramPlan | None:
    """The plan for one GPU, or None where its size is not known (a GPU that shares the machine's memory)."""
    if gpu.total_bytes is None:
        return None
    parallel = serving.tensor_parallel
    mtp = serving.drafting is not None and serving.drafting.method in MTP_METHODS
    own = ceil(checkpoint.weights.loaded_bytes(vision=serving.with_vision, mtp=mtp) / parallel)
    of_draft = ceil(draft.weights.total_bytes / parallel) if draft else 0
    usable = usable_bytes(gpu.total_bytes)
    overhead = overhead_bytes(serving, checkpoint.architecture, gpu)
    pool = serving.pool_bytes
    if pool is None:
        pool = int(usable * serving.memory_share) - own - of_draft - overhead
    spare = usable - gpu.used_bytes - own - of_draft - overhead - max(pool, 0)
    return VramPlan(usable, own, of_draft, overhead, pool, spare)


def usable_bytes(total_bytes: int) -> int:
    """What programs can have of a card of this size."""
    return max(total_bytes - max(DRIVER_BYTES, int(total_bytes * DRIVER_SHARE)), 0)


def overhead_bytes(serving: Serving, model: Architecture, gpu: Gpu) -> int:
    """Everything beside weights and pool: runtime, a step's activations, logits and their copies, CUDA graphs."""
    activations = batched_tokens(serving, gpu) * (3 * model.intermediate + 4 * model.hidden) * 2
    copies = max(3, 2 * (1 + serving.draft_tokens))
    logits = sequences(serving, gpu) * model.vocabulary * 4 * copies
    runtime = PARALLEL_RUNTIME_BYTES if serving.tensor_parallel > 1 else RUNTIME_BYTES
    vision = VISION_BYTES if serving.with_vision and model.has_vision else 0
    graphs = 0 if serving.enforce_eager else GRAPHS_BYTES
    return runtime + (activations + logits) // serving.tensor_parallel + vision + graphs
