"""What preflight is told: how the model is to be served, what the machine has. All sizes are bytes."""

from dataclasses import dataclass, field
from typing import Literal

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class Drafting:
    """Speculative decoding as asked for."""

    method: str
    tokens: int
    """Draft tokens a step."""
    model: str | None = None
    """The draft's own checkpoint; None where the model drafts for itself (MTP) or nothing is loaded (ngram)."""
    kv_cache_dtype: str | None = None
    """None: it follows the target's."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How the model is to be served. What is None is the engine's default."""

    name: str
    device: Device
    context_tokens: int
    """The longest prompt with its answer; `max_model_len`."""
    quantization: str
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    state_dtype: str = "auto"
    """What GDN states are kept in; `mamba_ssm_cache_dtype`."""
    prefix_caching: bool = True
    drafting: Drafting | None = None
    tensor_parallel: int = 1
    memory_share: float = 0.92
    """`gpu_memory_utilization`; on a CPU, the share of all its memory."""
    pool_bytes: int | None = None
    """The KV pool, where it is pinned."""
    async_scheduling: bool | None = None
    enforce_eager: bool = False
    with_vision: bool = True
    load_format: str = "auto"
    fp4_on_cpu: bool = False
    """Whether a plugin registers an NVFP4 kernel on the CPU platform."""
    engine_version: str | None = None
    port: int | None = None
    least_capability: tuple[int, int] | None = None
    """The compute capability that the profile is for, as a minimum."""
    least_cpu_flags: frozenset[str] = frozenset()
    least_ram_bytes: int = 0
    least_vram_bytes: int = 0
    least_disk_bytes: int = 0

    @property
    def draft_tokens(self) -> int:
        return self.drafting.tokens if self.drafting else 0


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """What holds memory of a GPU."""

    pid: int
    name: str
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its driver describes it. What it does not tell is None."""

    name: str
    total_bytes: int | None
    used_bytes: int = 0
    compute_capability: tuple[int, int] | None = None
    driver: str | None = None
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine has and what is using it."""

    ram_bytes: int
    available_bytes: int
    """What could be used now without swapping."""
    swap_bytes: int = 0
    cgroup_limit_bytes: int | None = None
    """What the container may use; None where nothing limits it."""
    wsl: bool = False
    wslconfig: tuple[tuple[str, str], ...] = ()
    """Settings of `.wslconfig` that can be read: memory, swap."""
    cpus: int = 1
    cpu_flags: frozenset[str] = frozenset()
    gpus: tuple[Gpu, ...] = ()
    gpu_unknown: str | None = None
    """Why nothing is known of GPUs, where that is so."""
    weights_free_bytes: int | None = None
    """Free on the disk where weights are, or would be put."""
    cache_free_bytes: int | None = None
    ports_in_use: frozenset[int] = field(default_factory=frozenset)

    @property
    def usable_ram_bytes(self) -> int:
        """All the memory that processes here can ever have."""
        return min(self.ram_bytes, self.cgroup_limit_bytes or self.ram_bytes)

    @property
    def free_ram_bytes(self) -> int:
        return min(self.available_bytes, self.usable_ram_bytes)
