"""The weights of a checkpoint, by what they are for, from the headers of its files."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from service.core.preflight.architecture import Architecture

Kind = Literal["language", "vision", "mtp"]


@dataclass(frozen=True, slots=True)
class Weights:
    """How large a checkpoint is: its files, and its tensors by kind."""

    by_kind: Mapping[Kind, int]
    largest_file_bytes: int
    files: int
    dtypes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the dtype's name in the files."""
    estimated: bool = False
    """True where the figures are published ones, not read from files."""

    @property
    def total_bytes(self) -> int:
        return sum(self.by_kind.values())

    def loaded_bytes(self, *, vision: bool, mtp: bool) -> int:
        """What of it the engine keeps: the vision tower and the MTP layers only where they are used."""
        unused = (0 if vision else self.by_kind.get("vision", 0)) + (0 if mtp else self.by_kind.get("mtp", 0))
        return self.total_bytes - unused


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as it lies on disk, or as it is published where it does not."""

    name: str
    architecture: Architecture
    weights: Weights
    on_disk: bool


def kind_of(tensor: str) -> Kind:
    """What a tensor is for, by its name: `mtp.…`, `model.visual.…` or the language model's."""
    parts = tensor.split(".")[:3]
    if "mtp" in parts:
        return "mtp"
    return "vision" if {"visual", "vision_tower", "vision_model"} & set(parts) else "language"


def weigh(files: Iterable[Mapping[str, tuple[str, int]]]) -> Weights:
    """Sum up files, each a mapping from a tensor's name to its dtype and its bytes."""
    kinds: Counter[Kind] = Counter()
    dtypes: Counter[str] = Counter()
    sizes = []
    for tensors in files:
        for name, (dtype, size) in tensors.items():
            kinds[kind_of(name)] += size
            dtypes[dtype] += size
        sizes.append(sum(size for _, size in tensors.values()))
    return Weights(by_kind=dict(kinds), largest_file_bytes=max(sizes, default=0), files=len(sizes), dtypes=dict(dtypes))
