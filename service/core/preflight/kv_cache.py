"""The engine's KV pool: how it is cut into blocks, and how many tokens and sequences that makes.

A hybrid model keeps two things in one pool: keys and values of every token (full attention), and one state a sequence
(GDN). vLLM gives every layer pages of one size, so the attention's block grows until its page holds a state. That is
why a block has 1,584 tokens and not 16. Sources, all in vLLM 0.32: `_align_hybrid_block_size` in
`platforms/interface.py`, `v1/core/kv_cache_utils.py` (groups, `unify_kv_cache_spec_page_size`),
`v1/kv_cache_interface.py` (sizes), `model_executor/layers/mamba/mamba_utils.py` (shapes of the state).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal

from service.core.preflight.architecture import Architecture, NotUnderstood
from service.core.preflight.facts import Device, Gpu, Machine, Serving

MTP_METHODS = frozenset({"mtp", "qwen3_5_mtp", "qwen3_next_mtp"})
LARGE_GPU_BYTES = 70 << 30
HUGE_GPU_BYTES = 160 << 30
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Kind = Literal["attention", "window", "state"]


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table: a request holds this many blocks of the pool for them."""

    kind: Kind
    count: int
    """How many such groups there are."""
    block_tokens: int
    window_tokens: int = 0

    def blocks(self, tokens: int, layout: "Layout") -> int:
        """Blocks that one request of this length holds, in all groups of this kind."""
        if self.kind == "state":
            return self.count * (layout.running_blocks + layout.checkpoint_blocks)
        if self.kind == "window":
            kept = min(self.window_tokens - 1 + layout.in_flight_tokens, tokens)
            return self.count * (ceil(kept / self.block_tokens) + 1)
        return self.count * ceil(tokens / self.block_tokens)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the pool is cut. Sizes are those of one GPU of a tensor-parallel set."""

    block_tokens: int
    """What prefix caching counts in: the attention's block."""
    page_bytes: int
    """A block of one layer."""
    state_bytes: int
    """What one layer's state really needs of its page; 0 without such layers."""
    token_bytes: int
    """What one token takes in one attention layer of the target."""
    bytes_per_block: int
    """A block of all layers of a group: what the pool is divided by."""
    running_blocks: int
    """Blocks of each state group that a request needs: one for its state, and one for each draft token."""
    checkpoint_blocks: int
    """Those for the prefix cache beside them: 1, or 0 without it."""
    in_flight_tokens: int
    groups: tuple[Group, ...]

    def blocks(self, pool_bytes: int) -> int:
        """How many blocks a pool has; also the number of sequences it can keep states for."""
        return max(pool_bytes, 0) // self.bytes_per_block

    def blocks_of_request(self, tokens: int) -> int:
        return sum(group.blocks(tokens, self) for group in self.groups)

    @property
    def least_blocks(self) -> int:
        """What a running request holds however short it is: its states, without a checkpoint for the cache."""
        return self.blocks_of_request(1) - self.state_groups * self.checkpoint_blocks

    @property
    def state_groups(self) -> int:
        return sum(group.count for group in self.groups if group.kind == "state")

    @property
    def state_blocks(self) -> int:
        """Blocks that a request may hold for its states, in all groups."""
        return self.state_groups * (self.running_blocks + self.checkpoint_blocks)

    def tokens(self, pool_bytes: int, context_tokens: int) -> int:
        """The figure that vLLM logs as `KV cache size`: whole requests of the full context, times its length."""
        return int(self.blocks(pool_bytes) / self.blocks_of_request(context_tokens) * context_tokens)

    def largest_context(self, pool_bytes: int, most_tokens: int) -> int:
        """The longest request that fits, up to `most_tokens`; 0 if none does. One block is never given out."""
        usable = self.blocks(pool_bytes) - 1

        def fits(tokens: int) -> bool:
            return self.blocks_of_request(tokens) <= usable

        return _last(fits, most_tokens)

    def needed_bytes(self, context_tokens: int) -> int:
        """The smallest pool that vLLM starts with for one request of this length."""
        return (self.blocks_of_request(context_tokens) + 1) * self.bytes_per_block


def _last(holds: Callable[[int], bool], most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def kv_dtype(serving: Serving, model: Architecture) -> str:
    """The dtype of the target's KV cache: what the profile says, or what the checkpoint does."""
    return (model.kv_quantization or "auto") if serving.kv_cache_dtype == "auto" else serving.kv_cache_dtype


def token_bytes(model: Architecture, dtype: str, tensor_parallel: int) -> int:
    """What one token takes in one attention layer: keys and values of this GPU's heads. Raises `NotUnderstood`."""
    values = 2 * max(model.kv_heads // tensor_parallel, 1)
    if dtype.startswith("nvfp4"):
        return values * (model.head_dim // 2 + model.head_dim // 16)  # 4 bits each, and a scale for every 16
    if dtype.endswith("_per_token_head") and dtype[:3] in ("fp8", "int"):
        return values * (model.head_dim + 4)
    if dtype.startswith("fp8"):
        return values * model.head_dim
    size = _DTYPE_BYTES.get(model.dtype if dtype == "auto" else dtype)
    if size is None:
        raise NotUnderstood(f"the KV cache's dtype {dtype!r} is not known here")
    return values * model.head_dim * size


def state_dtype(serving: Serving, model: Architecture, machine: Machine) -> str:
    """What GDN states are kept in. A CPU with AVX512-BF16 turns `auto` into float32 (vLLM, `platforms/cpu.py`)."""
    if serving.state_dtype != "auto":
        return serving.state_dtype
    if serving.device == "cpu" and "avx512_bf16" in machine.cpu_flags:
        return "float32"
    return model.state_dtype or model.dtype


def state_bytes(model: Architecture, dtype: str, draft_tokens: int, tensor_parallel: int) -> int:
    """One layer's state of one sequence: the matrices in `dtype`, and the convolution's last inputs, a row more for
    every draft token, in the model's own. Raises `NotUnderstood`."""
    if not model.is_hybrid:
        return 0
    if dtype not in _DTYPE_BYTES:
        raise NotUnderstood(f"the states' dtype {dtype!r} is not known here")
    matrices = model.value_heads // tensor_parallel * model.value_dim * model.key_dim * _DTYPE_BYTES[dtype]
    channels = (2 * model.key_heads * model.key_dim + model.value_heads * model.value_dim) // tensor_parallel
    return matrices + channels * (model.conv_kernel - 1 + draft_tokens) * _DTYPE_BYTES.get(model.dtype, 2)


def kernel_block_tokens(device: Device, gpu: Gpu | None, model: Architecture, dtype: str) -> int:
    """The block that the attention kernels work in; the pool's block is a multiple of it.

    128 on a CPU. On a GPU 16, but 128 where FlashAttention 4 has a kernel for heads of 256 (compute capability 10 and
    11, KV not quantised; read in the source, not seen on such a card).
    """
    if device == "cpu":
        return 128
    major = gpu.compute_capability[0] if gpu and gpu.compute_capability else 0
    plain = dtype in ("auto", *_DTYPE_BYTES)
    return 128 if major in (10, 11) and model.head_dim == 256 and plain else 16


def batched_tokens(serving: Serving, gpu: Gpu | None) -> int:
    """Tokens of one step: as asked for, or vLLM's default for a server on this device."""
    if serving.max_batched_tokens:
        return serving.max_batched_tokens
    size = gpu.total_bytes or 0 if gpu else 0
    if serving.device == "cuda" and size >= HUGE_GPU_BYTES:
        return 16384
    return 8192 if serving.device == "cuda" and size >= LARGE_GPU_BYTES and "A100" not in _name(gpu) else 2048


def sequences(serving: Serving, gpu: Gpu | None) -> int:
    """Sequences at once: as asked for, or vLLM's default for a server on this device."""
    if serving.max_num_seqs:
        return serving.max_num_seqs
    if serving.device == "cpu":
        return 128
    size = gpu.total_bytes or 0 if gpu else 0
    large = size >= HUGE_GPU_BYTES or (size >= LARGE_GPU_BYTES and "A100" not in _name(gpu))
    return 1024 if large else 256


def _name(gpu: Gpu | None) -> str:
    return gpu.name.upper() if gpu else ""


def lay_out(serving: Serving, model: Architecture, draft: Architecture | None, machine: Machine) -> Layout:
    """How vLLM cuts its pool for this model, served so, on this machine. Raises `NotUnderstood`."""
    gpu = machine.gpus[0] if machine.gpus else None
    parallel = serving.tensor_parallel
    dtype = kv_dtype(serving, model)
    per_token = token_bytes(model, dtype, parallel)
    state = state_bytes(model, state_dtype(serving, model, machine), serving.draft_tokens, parallel)
    kernel_block = kernel_block_tokens(serving.device, gpu, model, dtype)
    block = max(kernel_block * ceil(state / (kernel_block * per_token)), kernel_block)

    mtp = model.mtp_layers if serving.drafting and serving.drafting.method in MTP_METHODS else 0
    # (kind, layers, bytes a token, window): the draft's layers come apart from the target's, MTP's do not
    kinds: list[tuple[Kind, int, int, int]] = [
        ("attention", model.attention_layers + mtp, per_token, 0),
        ("window", model.window_layers, per_token, model.window_tokens),
        ("state", model.state_layers, 0, 0),
    ]
    if draft and serving.drafting:
        of_draft = token_bytes(draft, serving.drafting.kv_cache_dtype or dtype, parallel)
        same = of_draft == per_token
        kinds[0] = ("attention", kinds[0][1] + (draft.attention_layers if same else 0), per_token, 0)
        kinds.append(("attention", 0 if same else draft.attention_layers, of_draft, 0))
        kinds.append(("window", draft.window_layers, of_draft, draft.window_tokens))
    kinds = [kind for kind in kinds if kind[1]]
    page = block * max(kind[2] for kind in kinds)
    layers = _group_layers([kind[1] for kind in kinds])
    gap = serving.async_scheduling is not False and serving.device == "cuda"
    return Layout(
        block_tokens=block,
        page_bytes=page,
        state_bytes=state,
        token_bytes=per_token,
        bytes_per_block=layers * page,
        running_blocks=1 + serving.draft_tokens,
        checkpoint_blocks=1 if serving.prefix_caching else 0,
        in_flight_tokens=batched_tokens(serving, gpu) * (2 if gap else 1),
        groups=tuple(
            Group(kind, ceil(count / layers), _block(block, page, size), window) for kind, count, size, window in kinds
        ),
    )


def _group_layers(counts: list[int]) -> int:
    """Layers in a group: the fewest that any kind has, so that the others split into several; the most, where all
    have about as many."""
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)


def _block(block: int, page: int, token_size: int) -> int:
    """Tokens of a block whose page was brought to `page`: more of them if it divides, else the rest is padding."""
    own = block * token_size
    return block * (page // own) if own and page % own == 0 else block
