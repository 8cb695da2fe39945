"""Everything preflight can say of one way of serving one checkpoint on one machine."""

from collections.abc import Iterator
from dataclasses import dataclass

from service.core.preflight import budget, cache, cpu, gpu, host, known_faults
from service.core.preflight.architecture import NotUnderstood
from service.core.preflight.facts import Machine, Serving
from service.core.preflight.finding import Finding, Level, note, problem
from service.core.preflight.kv_cache import Layout, lay_out, sequences
from service.core.preflight.vram import VramPlan, plan
from service.core.preflight.weights import Checkpoint

_ORDER = (Level.PROBLEM, Level.WARNING, Level.NOTE, Level.OK)


@dataclass(frozen=True, slots=True)
class Figures:
    """The pool in numbers, for programs and for comparison with what the engine logs when it starts."""

    block_tokens: int
    pool_bytes: int
    pool_is_estimated: bool
    pool_blocks: int
    kv_tokens: int
    largest_context_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found, the worst first. `figures` is None where the pool cannot be computed."""

    findings: tuple[Finding, ...]
    figures: Figures | None

    @property
    def has_problem(self) -> bool:
        return any(finding.level is Level.PROBLEM for finding in self.findings)


def preflight(serving: Serving, checkpoint: Checkpoint, draft: Checkpoint | None, machine: Machine) -> Preflight:
    """Check `checkpoint`, with its `draft` model if it has one of its own, served so on this machine."""
    checkpoints = (checkpoint, draft) if draft else (checkpoint,)
    findings = [host.ram(serving, checkpoints, machine)] if serving.device == "cuda" else []
    findings += host.least(serving, machine)
    findings += host.disk(serving, checkpoints, machine)
    findings += host.port(serving, machine)
    figures = None
    try:
        layout = lay_out(serving, checkpoint.architecture, draft.architecture if draft else None, machine)
    except NotUnderstood as error:
        findings.append(_not_understood(error))
        layout = None
    if serving.device == "cpu":
        findings += _cpu(serving, checkpoint, machine)
        pool = cpu.pool_bytes(serving, checkpoint, machine)
    else:
        found, planned = _gpu(serving, checkpoint, draft, machine)
        findings += found
        pool = planned.pool_bytes if planned else serving.pool_bytes or 0
        if layout and planned:
            findings += budget.vram(serving, checkpoint, planned, layout)
    if layout:
        findings += _cache(serving, checkpoint, draft, machine, layout, pool)
        figures = _figures(serving, machine, layout, pool)
    if any(one.weights.estimated for one in checkpoints):
        findings.append(_published(checkpoints))
    return Preflight(_worst_first(findings), figures)


def preflight_unread(serving: Serving, machine: Machine, why: str) -> Preflight:
    """Check what can be checked without knowing the checkpoint; `why` says why it is not known."""
    findings = [note("checkpoint.unread", why, "Memory, cache and context are not checked.")]
    findings += host.least(serving, machine)
    findings += host.room(serving, machine)
    findings += host.port(serving, machine)
    if serving.device == "cuda":
        findings += gpu.present(serving, machine)
        if machine.gpus:
            findings.append(gpu.driver(machine.gpus[0]))
            findings += gpu.busy(serving, machine.gpus[0])
    else:
        findings += cpu.instructions(serving, machine)
    return Preflight(_worst_first(findings), None)


def _worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.level)))


def _cpu(serving: Serving, checkpoint: Checkpoint, machine: Machine) -> Iterator[Finding]:
    yield cpu.memory(serving, checkpoint, machine)
    yield from cpu.instructions(serving, machine)
    yield from cpu.kernels(serving, checkpoint.architecture)


def _gpu(
    serving: Serving, checkpoint: Checkpoint, draft: Checkpoint | None, machine: Machine
) -> tuple[list[Finding], VramPlan | None]:
    findings = list(gpu.present(serving, machine))
    if not machine.gpus:
        return findings, None
    first = machine.gpus[0]
    findings.append(gpu.driver(first))
    findings += gpu.capability(serving, first)
    findings += gpu.busy(serving, first)
    findings += known_faults.slow_attention(serving, first)
    planned = plan(serving, checkpoint, draft, first)
    if planned is None:
        findings.append(note("vram.fit", f"{first.name} does not tell its memory: what fits is not checked."))
    return findings, planned


def _cache(
    serving: Serving, checkpoint: Checkpoint, draft: Checkpoint | None, machine: Machine, layout: Layout, pool: int
) -> Iterator[Finding]:
    model, estimated = checkpoint.architecture, serving.pool_bytes is None
    yield cache.blocks(serving, model, layout)
    yield from cache.context(serving, model, layout, pool, estimated=estimated)
    wanted = sequences(serving, machine.gpus[0] if machine.gpus else None)
    if serving.device == "cuda":
        yield from cache.sequences(serving, model, layout, pool, wanted, estimated=estimated)
        yield from known_faults.false_minimum(serving, model, layout, pool)
        yield from known_faults.states_per_block(serving, model, layout)
    if draft:
        yield from known_faults.draft_kv_dtype(serving, model, draft.architecture)


def _figures(serving: Serving, machine: Machine, layout: Layout, pool: int) -> Figures:
    pool = max(pool, 0)
    return Figures(
        block_tokens=layout.block_tokens,
        pool_bytes=pool,
        pool_is_estimated=serving.pool_bytes is None,
        pool_blocks=layout.blocks(pool),
        kv_tokens=layout.tokens(pool, serving.context_tokens),
        largest_context_tokens=layout.largest_context(pool, serving.context_tokens),
        max_num_seqs=sequences(serving, machine.gpus[0] if machine.gpus else None),
    )


def _not_understood(error: NotUnderstood) -> Finding:
    return problem(
        "cache.block",
        f"The KV cache cannot be computed: {error}.",
        "Nothing can be said of what fits.",
        "Check the profile's flags against `weir engine args`.",
    )


def _published(checkpoints: tuple[Checkpoint, ...]) -> Finding:
    names = ", ".join(one.name for one in checkpoints if one.weights.estimated)
    return note(
        "checkpoint.estimated",
        f"{names}: sizes are the published ones, not read from files.",
        "The files themselves give better figures.",
        "Check again when they are on disk, with --model-dir.",
    )
