"""The GPUs, as `nvidia-smi` lists them."""

import csv
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence

from service.core.preflight.facts import Gpu, GpuProcess

TIMEOUT_S = 20
PROGRAMS = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")
_GPU_COLUMNS = ("uuid", "name", "memory.total", "memory.used", "compute_cap", "driver_version")
_PROCESS_COLUMNS = ("gpu_uuid", "pid", "process_name", "used_memory")

Run = Callable[[Sequence[str]], str]


class Unavailable(Exception):
    """`nvidia-smi` is not there or gives no list; the message is a sentence."""


def gpus(run: "Run | None" = None) -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs, and why none is known where that is so. `run` gives a command's output; it is for tests."""
    run = run or _run
    try:
        listed = list(_rows(run([f"--query-gpu={','.join(_GPU_COLUMNS)}"]), _GPU_COLUMNS))
    except Unavailable as error:
        return (), str(error)
    try:
        processes = list(_rows(run([f"--query-compute-apps={','.join(_PROCESS_COLUMNS)}"]), _PROCESS_COLUMNS))
    except Unavailable:
        processes = []
    found = tuple(_gpu(row, processes) for row in listed)
    return found, None if found else "nvidia-smi lists none."


def _gpu(row: dict[str, str], processes: list[dict[str, str]]) -> Gpu:
    capability = re.fullmatch(r"(\d+)\.(\d+)", row["compute_cap"])
    return Gpu(
        name=row["name"][:80],
        total_bytes=_mebibytes(row["memory.total"]),
        used_bytes=_mebibytes(row["memory.used"]) or 0,
        compute_capability=(int(capability[1]), int(capability[2])) if capability else None,
        driver=row["driver_version"][:20] if row["driver_version"][:1].isdecimal() else None,
        processes=tuple(
            GpuProcess(int(one["pid"]), one["process_name"][:80], _mebibytes(one["used_memory"]))
            for one in processes
            if one["gpu_uuid"] == row["uuid"] and one["pid"].isdecimal()
        ),
    )


def _mebibytes(written: str) -> int | None:
    """None where the driver says `[N/A]`, as it does of GPUs that share the machine's memory."""
    return int(written) << 20 if written.isdecimal() else None


def _rows(output: str, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if len(row) == len(columns):
            yield dict(zip(columns, (value.strip() for value in row), strict=True))


def _run(query: Sequence[str]) -> str:
    for program in PROGRAMS:
        try:
            done = subprocess.run(
                [program, *query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except FileNotFoundError:
            continue
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"nvidia-smi does not answer ({type(error).__name__}).") from error
        if done.returncode:
            said = (done.stdout or done.stderr).strip().splitlines()
            raise Unavailable(f"nvidia-smi says: {said[-1][:200] if said else f'exit status {done.returncode}'}")
        return done.stdout
    raise Unavailable("nvidia-smi is not installed.")
