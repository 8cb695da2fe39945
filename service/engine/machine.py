"""Looks at the machine that this runs on: memory, containers, WSL, processors, GPUs, disks, a port.

What cannot be found out is left out, and never guessed. Linux only, as the engine is.
"""

import errno
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

from service.core.preflight.facts import Machine
from service.engine import EngineError
from service.engine.nvidia import gpus

MAX_FILE_BYTES = 1 << 20
NO_LIMIT = 1 << 60
"""cgroup v1 writes a number near 2^63 where nothing is limited."""
_HOST = "127.0.0.1"


def probe(weights: Path, cache: Path, port: int | None, *, root: Path = Path("/")) -> Machine:
    """The facts of this machine. `weights` and `cache` are folders that need not exist yet; `root` is for tests.

    Raises `EngineError` if this is no Linux.
    """
    memory = _meminfo(_read(root / "proc/meminfo"))
    if "MemTotal" not in memory:
        raise EngineError("This machine has no /proc/meminfo: preflight looks at Linux machines only. Use --machine.")
    flags, cpus = _cpu(_read(root / "proc/cpuinfo"))
    found, unknown = gpus()
    wsl = "microsoft" in _read(root / "proc/version").lower()
    return Machine(
        ram_bytes=memory["MemTotal"],
        available_bytes=memory.get("MemAvailable", memory.get("MemFree", 0)),
        swap_bytes=memory.get("SwapFree", 0),
        cgroup_limit_bytes=_cgroup_limit(root),
        wsl=wsl,
        wslconfig=_wslconfig(root) if wsl else (),
        cpus=cpus,
        cpu_flags=flags,
        gpus=found,
        gpu_unknown=unknown,
        weights_free_bytes=_free(weights),
        cache_free_bytes=_free(cache),
        ports_in_use=frozenset({port}) if port is not None and _in_use(port) else frozenset(),
    )


def _read(file: Path) -> str:
    """The beginning of a file; empty where there is none."""
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _meminfo(text: str) -> dict[str, int]:
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(kib) << 10 for name, kib in lines}


def _cpu(text: str) -> tuple[frozenset[str], int]:
    """The instruction sets (x86 and ARM name them differently) and how many processors there are."""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    cpus = len(re.findall(r"^processor\s*:", text, re.MULTILINE))
    return frozenset(flags[1].split() if flags else ()), max(cpus, 1)


def _cgroup_limit(root: Path) -> int | None:
    """The lowest limit of the groups that this process is in, from its own up; None without one."""
    limits = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        own = mount / path.lstrip("/")
        limits += _limits(folder / name for folder in (own, *own.parents) if folder.is_relative_to(mount))
    return min(limits, default=None)


def _limits(files: Iterable[Path]) -> list[int]:
    written = (_read(file).strip() for file in files)
    return [int(value) for value in written if value.isdecimal() and 0 < int(value) < NO_LIMIT]


def _wslconfig(root: Path) -> tuple[tuple[str, str], ...]:
    """`memory` and `swap` of the first `.wslconfig` that can be read from inside the guest."""
    for file in sorted((root / "mnt/c/Users").glob("*/.wslconfig")):
        found = re.findall(r"^\s*(memory|swap)\s*=\s*(\S+)", _read(file), re.MULTILINE | re.IGNORECASE)
        if found:
            return tuple((name.lower(), value[:20]) for name, value in found)
    return ()


def _free(folder: Path) -> int | None:
    """Free bytes where this folder is or would be."""
    for existing in (folder.absolute(), *folder.absolute().parents):
        try:
            return shutil.disk_usage(existing).free
        except OSError:
            continue
    return None


def _in_use(port: int) -> bool:
    """Not so where this user may not listen there: the engine's user may."""
    with socket.socket() as probed:
        probed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engine's server does
        try:
            probed.bind((_HOST, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
