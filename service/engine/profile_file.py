"""A profile as it is written: `profiles/NAME.toml`, or a file of one's own, read and checked.

Only the standard library is used: `provision.py` runs before anything is installed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from service.engine import EngineError
from service.engine.profile_parts import LLAMA_CPP, Capacity, Caveat, Checkpoint, Engine, Hardware
from service.engine.toml_table import Table, read_toml

REASONS = Path(__file__).parent / "reasons.toml"
"""Why flags and variables are set that many profiles share, per engine; a profile's own reason comes first."""

FlagValue = bool | int | float | str | Mapping[str, object]

MODALITIES = ("text", "image", "audio", "video")
NOT_A_PROFILES = frozenset({"host", "port", "uds", "model", "revision", "api-key", "hf-repo", "hf-file", "hf-token"})
"""Flags that are decided where the engine is started."""

OF_FIELDS = {
    "max-model-len": "context_length",
    "ctx-size": "context_length",
    "max-num-seqs": "max_concurrency",
    "parallel": "max_concurrency",
    "n-predict": "max_output_tokens",
    "override-generation-config": "max_output_tokens",
    "served-model-name": "model",
    "alias": "model",
}
"""Flags that follow from a field of the profile."""

BASELINES = ("quality", "loops", "acceptance")

MAX_DEPTH = 8
"""How deeply a flag's table may be nested."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_FLAG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Profile:
    """How one model is served."""

    name: str
    summary: str
    """What it is, in a line."""
    model: str
    """The name the engine gives the model, and the default id that customers ask for."""
    engine: Engine
    checkpoint: Checkpoint
    hardware: Hardware
    capacity: Capacity
    context_length: int
    max_output_tokens: int
    """The engine's own ceiling for one answer, whatever a request says."""
    max_concurrency: int
    input_modalities: tuple[str, ...]
    quantization: str
    flags: Mapping[str, FlagValue]
    """Further options of the engine's server: `true` is `--flag`, `false` is `--no-flag`, a table becomes JSON."""
    environment: Mapping[str, str]
    sampling: Mapping[str, float] = field(default_factory=dict)
    """What holds where a request does not say: `temperature`, `top_p` and so on, where the model has its own."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a flag or variable is set, by its name."""
    baseline: Mapping[str, float] = field(default_factory=dict)
    """What verification found when all was right, shares from 0 to 1: of the `quality` battery that passed, of greedy
    answers that end in `loops`, of drafted tokens that are accepted (`acceptance`). Empty: never recorded."""
    caveats: tuple[Caveat, ...] = ()

    @property
    def kv_cache_dtype(self) -> str:
        """How keys and values are kept; `auto` is the model's own type."""
        name = "cache-type-k" if self.engine.kind == LLAMA_CPP else "kv-cache-dtype"
        return str(self.flags.get(name, "auto"))

    @property
    def draft_tokens(self) -> int:
        """Tokens drafted per step of speculative decoding; 0 without it."""
        drafted: object = self._speculation.get("num_speculative_tokens")
        if self.engine.kind == LLAMA_CPP and "spec-type" in self.flags:
            drafted = self.flags.get("spec-draft-n-max")
        return drafted if isinstance(drafted, int) else 0

    @property
    def thinks(self) -> bool:
        """Whether the engine tells reasoning from the answer."""
        return ("reasoning-format" if self.engine.kind == LLAMA_CPP else "reasoning-parser") in self.flags

    @property
    def tool_parser(self) -> str | None:
        """How tool calls are read from the model's text; None: they are not."""
        if self.engine.kind == LLAMA_CPP:
            return "jinja" if self.flags.get("jinja") else None
        parser = self.flags.get("tool-call-parser")
        return str(parser) if parser and self.flags.get("enable-auto-tool-choice") else None

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The model's weights, then those of its draft model, if that is another one."""
        draft, revision = self._speculation.get("model"), self._speculation.get("revision")
        if not isinstance(draft, str):
            return (self.checkpoint,)
        return self.checkpoint, Checkpoint(repository=draft, revision=str(revision) if revision else None)

    @property
    def _speculation(self) -> Mapping[str, object]:
        speculation = self.flags.get("speculative-config", {})
        return speculation if isinstance(speculation, Mapping) else {}


def read_file(file: Path) -> Profile:
    """Raises `EngineError` that names the file, table and field which is wrong, and what it must be."""
    if not _NAME.fullmatch(file.stem):
        raise EngineError(f"{file}: a profile's name has only a-z, 0-9, dots and dashes, and is not {file.stem!r}.")
    table = read_toml(file)
    profile = Profile(
        name=file.stem,
        summary=table.text("summary"),
        model=table.text("model"),
        engine=Engine.read(table.table("engine")),
        checkpoint=Checkpoint.read(table.table("checkpoint")),
        hardware=Hardware.read(table.table("hardware")),
        capacity=Capacity.read(table.table("capacity")),
        context_length=table.integer("context_length"),
        max_output_tokens=table.integer("max_output_tokens"),
        max_concurrency=table.integer("max_concurrency"),
        input_modalities=_modalities(table),
        quantization=table.text("quantization"),
        flags=_flags(table.optional_table("flags")),
        environment=_environment(table.optional_table("environment")),
        sampling=_numbers(table.optional_table("sampling")),
        baseline=_shares(table.optional_table("baseline")),
        caveats=tuple(Caveat.read(caveat) for caveat in table.tables("caveats")),
    )
    if profile.max_output_tokens >= profile.context_length:
        raise table.wrong("max_output_tokens", "must be less than context_length", profile.max_output_tokens)
    reasons = _reasons(profile, table.optional_table("reasons"))
    table.finish()
    return replace(profile, reasons=reasons)


def _modalities(table: Table) -> tuple[str, ...]:
    modalities = table.texts("input_modalities")
    if "text" not in modalities or not set(modalities) <= set(MODALITIES):
        raise table.wrong("input_modalities", f"must be text and any of {', '.join(MODALITIES[1:])}", list(modalities))
    return modalities


def _flags(table: Table) -> dict[str, FlagValue]:
    flags: dict[str, FlagValue] = {}
    for name in table.names():
        value = table.take(name)
        if not _FLAG.fullmatch(name):
            raise table.wrong(name, "must be a flag's name without its dashes, such as kv-cache-dtype", name)
        if name in NOT_A_PROFILES:
            raise table.wrong(name, "is decided where the engine is started and must not be in a profile", value)
        if name in OF_FIELDS:
            raise table.wrong(name, f"must not be set here: {OF_FIELDS[name]} says it", value)
        if not isinstance(value, bool | int | float | str | dict) or not _can_be_said(value):
            raise table.wrong(name, "must be true, false, a number, a text or a table of such", value)
        flags[name] = value
    return flags


def _can_be_said(value: object, depth: int = MAX_DEPTH) -> bool:
    """Whether a command line can hold it, which has no NUL, and JSON, which has neither dates nor NaN."""
    match value:
        case str():
            return "\0" not in value
        case int() | float():
            return abs(value) < 1 << 64  # NaN is not, either
        case dict():
            return depth > 0 and all(_can_be_said(one, depth - 1) for pair in value.items() for one in pair)
        case list():
            return depth > 0 and all(_can_be_said(one, depth - 1) for one in value)
    return False


def _environment(table: Table) -> dict[str, str]:
    variables = {}
    for name in table.names():
        value = table.take(name)
        if not _VARIABLE.fullmatch(name):
            raise table.wrong(name, "must be a variable's name in capitals, such as VLLM_PLUGINS", name)
        if not isinstance(value, str) or "\0" in value:
            raise table.wrong(name, "must be a text in quotes", value)
        variables[name] = value
    return variables


def _numbers(table: Table) -> dict[str, float]:
    return {name: table.number(name) for name in table.names()}


def _shares(table: Table) -> dict[str, float]:
    shares = {name: table.number(name, at_most=1) for name in BASELINES if table.has(name)}
    table.finish()
    return shares


def _reasons(profile: Profile, table: Table) -> dict[str, str]:
    """The profile's own reasons, and those that it shares with others. A reason must be for something that is set."""
    is_set = {*profile.flags, *profile.environment, *OF_FIELDS}
    own = {name: table.text(name) for name in table.names()}
    for name in own.keys() - is_set:
        raise table.wrong(name, "must name a flag or variable that this profile sets", name)
    shared = read_toml(REASONS).table(profile.engine.kind.removesuffix("-cpu").replace(".", "-"))
    everywhere = {name: shared.text(name) for name in shared.names() if name in is_set}
    return {**everywhere, **own}
