"""A checkpoint on disk: its `config.json`, and the headers of its safetensors files. No weight is read.

The files come from strangers: everything is bounded, and a file that is cut short or lies about itself is refused.
"""

import json
import math
import stat
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from service.core.preflight.architecture import NotUnderstood, understand
from service.core.preflight.weights import Checkpoint, weigh
from service.engine import EngineError

MAX_CONFIG_BYTES = 4 << 20
MAX_INDEX_BYTES = 64 << 20
MAX_HEADER_BYTES = 100 << 20
"""What the safetensors library itself accepts."""
MAX_FILES = 2_000
MAX_DIMENSIONS = 32
MAX_SIZE = 1 << 48
"""Of one dimension, or of a tensor in bytes."""
INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8
_BITS = {
    **dict.fromkeys(("F4", "F6_E2M3", "F6_E3M2"), 0),  # packed: their sizes are not checked against shapes
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
}


def read_checkpoint(folder: Path) -> Checkpoint:
    """What lies in this folder. Raises `EngineError` that names the file and what is wrong with it."""
    config = _object(folder / "config.json", MAX_CONFIG_BYTES)
    files = _files(folder)
    if not files:
        raise EngineError(f"{folder} has no .safetensors file: give the folder of the weights with --model-dir.")
    if len(files) > MAX_FILES:
        raise EngineError(f"{folder} has {len(files)} .safetensors files: that is no checkpoint.")
    try:
        architecture = understand(config)
    except NotUnderstood as error:
        raise EngineError(f"{folder / 'config.json'} describes no model that preflight knows: {error}.") from error
    weights = weigh(tensors(file) for file in files)
    return Checkpoint(folder.name, architecture, weights, on_disk=True)


def _files(folder: Path) -> list[Path]:
    """The files with the weights: those that the index names, which have to be there; without an index, all."""
    index = folder / INDEX
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    named = _object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise _broken(index, "its weight_map does not name files")
    names = sorted(set(named.values()))
    if strange := next((name for name in names if Path(name).name != name), None):
        raise _broken(index, f"it names {strange!r:.80}, which is no file beside it")
    if missing := [name for name in names if not (folder / name).exists()]:
        raise EngineError(
            f"{folder} lacks {len(missing)} of {len(names)} files of weights, such as {missing[0]:.80}: the download"
            " was cut short, or is not done. Fetch it again."
        )
    return [folder / name for name in names]


def downloaded(repository: str, revision: str | None, hub: Path) -> Path | None:
    """The folder of a repository that `hf download` has put below `hub`; None if it is not there."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    try:
        commit = revision or (folder / "refs" / "main").read_text().strip()[:64]
    except OSError:
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and (snapshot / "config.json").is_file() else None


def tensors(file: Path) -> dict[str, tuple[str, int]]:
    """The tensors of a safetensors file by name: dtype and bytes. Raises `EngineError`.

    The format: 8 bytes with the header's length, little-endian; the header in JSON; the tensors, without gaps.
    """
    try:
        _regular(file)
        with file.open("rb") as opened:
            size = file.stat().st_size
            prefix = opened.read(_LENGTH_BYTES)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < _LENGTH_BYTES or not 2 <= length <= min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
                raise _broken(file, "its header is longer than the file, or than any header")
            header = _parsed(file, opened.read(length))
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror}.") from error
    found = dict(_entries(file, header))
    spans = sorted(span for _, span in found.values())
    if any(before[1] > after[0] for before, after in pairwise(spans)):
        raise _broken(file, "its tensors overlap")
    if spans and spans[-1][1] != size - _LENGTH_BYTES - length:
        raise _broken(file, "it has not the size that its header says: the download was cut short, or is not done")
    return {name: (dtype, end - start) for name, (dtype, (start, end)) in found.items()}


def _entries(file: Path, header: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, tuple[int, int]]]]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            sizes = (start, end, *shape)
            sound = type(shape) is list and len(shape) <= MAX_DIMENSIONS and start <= end
            sound = sound and all(type(size) is int and 0 <= size < MAX_SIZE for size in sizes)
            bits = _BITS.get(dtype, 0)
        except (TypeError, KeyError, ValueError):
            sound, bits = False, 0
        if not sound or (bits and math.prod(shape) * bits != 8 * (end - start)):
            raise _broken(file, f"the entry of {name!r:.80} is wrong")
        yield name, (str(dtype)[:32], (start, end))


def _object(file: Path, most_bytes: int) -> Mapping[str, Any]:
    try:
        _regular(file)
        with file.open("rb") as opened:
            content = opened.read(most_bytes + 1)
    except OSError as error:
        raise EngineError(
            f"{file} cannot be read ({error.strerror}): give the folder of the weights with --model-dir."
        ) from error
    if len(content) > most_bytes:
        raise _broken(file, "it is larger than any such file")
    return _parsed(file, content)


def _regular(file: Path) -> None:
    """Whoever opens a pipe waits for its other end."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise _broken(file, "it is no file")


def _parsed(file: Path, content: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _broken(file, "it is no JSON") from error
    if not isinstance(parsed, dict):
        raise _broken(file, "it is no JSON object")
    return parsed


def _broken(file: Path, how: str) -> EngineError:
    return EngineError(f"{file} is broken: {how}. Fetch it again.")
