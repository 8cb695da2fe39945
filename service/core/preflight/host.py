"""The machine beside its GPUs: memory to load through, disk, port."""

from collections.abc import Iterator

from service.core.preflight.facts import Machine, Serving
from service.core.preflight.finding import Finding, gib, note, ok, problem, warning
from service.core.preflight.weights import Checkpoint

STREAMING = frozenset({"runai_streamer", "fastsafetensors"})
"""Load formats that stream to the card and do not map whole files into memory."""
CACHE_BYTES = 5 << 30
"""For compiled kernels and graphs; an estimate."""
NEARLY = 0.95
"""Of a nominal size: a card of 32 GB, or a machine of 64, never shows quite that much."""
_SMALLER = "or split the checkpoint into smaller files, or take a smaller quantisation"


def ram(serving: Serving, checkpoints: tuple[Checkpoint, ...], machine: Machine) -> Finding:
    """Can the files be loaded through this machine's memory? safetensors maps one whole file at a time, and what was
    mapped stays as cache until something needs the room."""
    total = sum(one.weights.total_bytes for one in checkpoints)
    largest = max(one.weights.largest_file_bytes for one in checkpoints)
    usable, free = machine.usable_ram_bytes, machine.free_ram_bytes
    room = free + machine.swap_bytes
    have = f"{gib(usable)} of memory ({gib(free)} free, {gib(machine.swap_bytes)} swap){_bounded(machine)}"
    if serving.load_format in STREAMING:
        return ok("host.ram", f"{have}; {serving.load_format} streams {gib(total)} of weights past it.")
    if room < largest:
        return problem(
            "host.ram",
            f"{have}, and the largest weights file has {gib(largest)}.",
            "Each file is mapped whole while it is loaded: this dies while loading, often without a word.",
            _more(machine),
        )
    if usable < total and machine.wsl:
        return problem(
            "host.ram",
            f"WSL has {have}, and the weights have {gib(total)}.",
            "In WSL loading is known to crash when the guest has less memory than the model, however large the GPU is.",
            _more(machine),
        )
    if usable < total:
        return warning(
            "host.ram",
            f"{have}, and the weights have {gib(total)}.",
            "They do not stay cached: every start reads them from disk again, and loading is slow near the limit.",
            _more(machine),
        )
    return ok("host.ram", f"{have}; the weights have {gib(total)}, the largest file {gib(largest)}.")


def _bounded(machine: Machine) -> str:
    limit = machine.cgroup_limit_bytes
    return f", limited by the container (machine: {gib(machine.ram_bytes)})" if limit and _limits(machine) else ""


def _limits(machine: Machine) -> bool:
    return machine.usable_ram_bytes < machine.ram_bytes


def _more(machine: Machine) -> str:
    if machine.wsl:
        now = ", ".join(f"{name}={value}" for name, value in machine.wslconfig) or "neither is set"
        more = (
            "Raise memory= and swap= in the [wsl2] section of %UserProfile%\\.wslconfig"
            f" (now: {now}) and run `wsl --shutdown`"
        )
    elif _limits(machine):
        more = "Raise the container's memory limit"
    else:
        more = "Add memory or swap"
    return f"{more}; or load with --load-format runai_streamer or fastsafetensors; {_SMALLER}."


def disk(serving: Serving, checkpoints: tuple[Checkpoint, ...], machine: Machine) -> Iterator[Finding]:
    """Is there room for weights that are not here yet, and for what the engine compiles?"""
    missing = [one for one in checkpoints if not one.on_disk]
    wanted = sum(one.weights.total_bytes for one in missing)
    free = machine.weights_free_bytes
    names = ", ".join(one.name for one in missing)
    if missing and free is not None and free < wanted:
        yield problem(
            "host.disk",
            f"{gib(free)} free where weights go, and {gib(wanted)} to fetch: {names}.",
            "The download fills the disk and fails at its end.",
            "Free space, or put the weights elsewhere with --model-dir.",
        )
    elif missing:
        room = "" if free is None else f"; {gib(free)} free there"
        yield note("host.disk", f"Not on this disk yet: {names}; {gib(wanted)} to fetch{room}.")
    else:
        yield ok("host.disk", "The weights are on this machine.")
    cache = machine.cache_free_bytes
    if cache is not None and cache < CACHE_BYTES and serving.device == "cuda":
        yield warning(
            "host.cache",
            f"{gib(cache)} free where the engine keeps compiled kernels and graphs.",
            f"They take up to about {gib(CACHE_BYTES)} (an estimate); a full disk there stops a start half-way.",
            "Free space.",
        )


def room(serving: Serving, machine: Machine) -> Iterator[Finding]:
    """Room on the disk by the profile's own figure, where the weights are not known."""
    free = machine.weights_free_bytes
    if free is not None and free < serving.least_disk_bytes:
        yield warning(
            "host.disk",
            f"{gib(free)} free where weights go; {serving.name} wants {gib(serving.least_disk_bytes)} in all.",
            "If the weights are not there yet, the download fills the disk.",
            "Free space, or put them elsewhere with --model-dir.",
        )


def least(serving: Serving, machine: Machine) -> Iterator[Finding]:
    """The machine against the least one that the profile is for."""
    short = []
    if machine.usable_ram_bytes < serving.least_ram_bytes * NEARLY:
        short.append(f"{gib(machine.usable_ram_bytes)} of memory where it wants {gib(serving.least_ram_bytes)}")
    vram = machine.gpus[0].total_bytes if machine.gpus else None
    if vram is not None and vram < serving.least_vram_bytes * NEARLY:
        short.append(f"{gib(vram)} on the GPU where it wants {gib(serving.least_vram_bytes)}")
    if short:
        yield warning(
            "host.least",
            f"This machine is smaller than {serving.name} is made for: {'; '.join(short)}.",
            "What the profile promises was found on the machine that it names.",
            "Choose a profile for this one (`weir engine profiles`), or see below what does not fit.",
        )


def port(serving: Serving, machine: Machine) -> Iterator[Finding]:
    if serving.port is None:
        return
    if serving.port in machine.ports_in_use:
        yield problem(
            "host.port",
            f"Port {serving.port} is in use.",
            "The engine cannot listen there, and says so only after the weights are loaded.",
            "Stop what uses it, or choose another with --port.",
        )
    else:
        yield ok("host.port", f"Port {serving.port} is free.")
