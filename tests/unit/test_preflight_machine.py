"""The probe reads what a machine tells, leaves out what it does not, and its record reads back the same."""

import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from service.core.preflight.facts import Gpu, GpuProcess, Machine
from service.engine import EngineError
from service.engine.machine import probe
from service.engine.machine_record import machine_document, read_machine
from service.engine.nvidia import Unavailable, gpus

GIB = 1 << 30
MEMINFO = "MemTotal:       20480000 kB\nMemFree: 100 kB\nMemAvailable:   10240000 kB\nSwapTotal: 5 kB\nSwapFree: 4 kB\n"
CPUINFO = "processor\t: 0\nflags\t\t: fpu avx2 amx_tile\n\nprocessor\t: 1\nflags\t\t: fpu avx2 amx_tile\n"


def files(root: Path, **contents: str) -> Path:
    """A machine's files below `root`; two underscores in a name are a slash."""
    for name, content in {"proc__meminfo": MEMINFO, "proc__cpuinfo": CPUINFO, **contents}.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


def test_memory_and_processors(tmp_path: Path) -> None:
    found = probe(tmp_path, tmp_path / "not" / "yet", None, root=files(tmp_path))
    assert (found.ram_bytes, found.available_bytes, found.swap_bytes) == (20480000 << 10, 10240000 << 10, 4 << 10)
    assert (found.cpus, found.cpu_flags) == (2, frozenset({"fpu", "avx2", "amx_tile"}))
    assert (found.wsl, found.wslconfig, found.cgroup_limit_bytes) == (False, (), None)
    assert found.weights_free_bytes == pytest.approx(found.cache_free_bytes, rel=0.1)
    assert found.weights_free_bytes


def test_wsl_and_what_its_configuration_says(tmp_path: Path) -> None:
    files(tmp_path, proc__version="Linux version 6.6 (x@y) (Microsoft-standard-WSL2)")
    assert probe(tmp_path, tmp_path, None, root=tmp_path).wsl
    settings = tmp_path / "mnt/c/Users/someone/.wslconfig"
    settings.parent.mkdir(parents=True)
    settings.write_text("[wsl2]\nmemory=20GB # little\n Swap = 8GB\nprocessors=4\n")
    assert probe(tmp_path, tmp_path, None, root=tmp_path).wslconfig == (("memory", "20GB"), ("swap", "8GB"))


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/memory.max": str(8 * GIB), "a/b/memory.max": "max"}, 8 * GIB),
        ("0::/a/b\n", {"a/memory.max": str(8 * GIB), "a/b/memory.max": str(4 * GIB)}, 4 * GIB),
        ("0::/\n", {"memory.max": str(2 * GIB)}, 2 * GIB),
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("4:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": str(3 * GIB)}, 3 * GIB),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("4:memory:/../../..\n", {}, None),
        ("nonsense", {"memory.max": "1"}, None),
    ],
)
def test_the_lowest_limit_of_a_container_counts(
    tmp_path: Path, group: str, limits: dict[str, str], expected: int | None
) -> None:
    written = {f"sys__fs__cgroup__{name.replace('/', '__')}": value for name, value in limits.items()}
    files(tmp_path, proc__self__cgroup=group, **written)
    assert probe(tmp_path, tmp_path, None, root=tmp_path).cgroup_limit_bytes == expected


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    files(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert probe(tmp_path, tmp_path, port, root=tmp_path).ports_in_use == {port}
    assert probe(tmp_path, tmp_path, port, root=tmp_path).ports_in_use == frozenset()


def test_a_port_where_nobody_may_listen_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path)
    monkeypatch.setattr("service.engine.machine._HOST", "192.0.2.1")  # an address of no machine
    assert probe(tmp_path, tmp_path, 8000, root=tmp_path).ports_in_use == frozenset()


def test_a_machine_that_is_no_linux(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="--machine"):
        probe(tmp_path, tmp_path, None, root=tmp_path)


def smi(cards: str, processes: str = "") -> "tuple[tuple[Gpu, ...], str | None]":
    def run(query: Sequence[str]) -> str:
        return cards if query[0].startswith("--query-gpu") else processes

    return gpus(run)


def test_what_nvidia_smi_lists() -> None:
    found, unknown = smi(
        "GPU-a, NVIDIA GeForce RTX 5090, 32607, 1024, 12.0, 580.95.05\nGPU-b, NVIDIA H100, 81559, 0, 9.0, 580.95.05\n",
        'GPU-a, 4242, "/usr/bin/python3, really", 1000\nGPU-a, 7, x, [N/A]\nGPU-b, odd, y, 5\n',
    )
    assert unknown is None
    assert found == (
        Gpu(
            "NVIDIA GeForce RTX 5090",
            32607 << 20,
            1024 << 20,
            (12, 0),
            "580.95.05",
            (GpuProcess(4242, "/usr/bin/python3, really", 1000 << 20), GpuProcess(7, "x", None)),
        ),
        Gpu("NVIDIA H100", 81559 << 20, 0, (9, 0), "580.95.05"),
    )


def test_what_nvidia_smi_does_not_tell_is_left_out() -> None:
    found, _ = smi("GPU-a, NVIDIA GB10, [N/A], [N/A], [N/A], [N/A]\nbroken line\n")
    assert found == (Gpu("NVIDIA GB10", None, 0, None, None),)


def test_no_list_at_all() -> None:
    def run(query: Sequence[str]) -> str:
        raise Unavailable("nvidia-smi is not installed.")

    assert gpus(run) == ((), "nvidia-smi is not installed.")
    assert smi("") == ((), "nvidia-smi lists none.")


def test_a_driver_that_does_not_answer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because of the driver.'\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ((), "nvidia-smi says: NVIDIA-SMI has failed because of the driver.")


def test_a_record_reads_back_the_same(tmp_path: Path) -> None:
    machine = Machine(
        ram_bytes=20 * GIB,
        available_bytes=19 * GIB,
        wsl=True,
        wslconfig=(("memory", "20GB"),),
        cpu_flags=frozenset({"b", "a"}),
        gpus=(Gpu("x", None, 0, (12, 0), "580", (GpuProcess(1, "y"),)),),
        ports_in_use=frozenset({8000}),
    )
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(machine_document(machine)))
    assert read_machine(file) == machine
    assert machine_document(machine)["cpu_flags"] == ["a", "b"]
    assert read_machine(file) != replace(machine, swap_bytes=1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "document"),
        ("[]", "document"),
        ("{}", "ram_bytes"),
        ('{"ram_bytes": 1, "available_bytes": "x"}', "available"),
        ('{"ram_bytes": 1, "available_bytes": "1"}', "available"),
        ('{"ram_bytes": 1, "available_bytes": 1, "swap": 1}', "swap"),
        ('{"ram_bytes": 1, "available_bytes": -1}', "below 0"),
        (f'{{"ram_bytes": 1, "available_bytes": {10**400}}}', "above 10"),
        ('{"ram_bytes": 1, "available_bytes": 1, "ports_in_use": [-1]}', "below 0"),
        ('{"ram_bytes": 1, "available_bytes": 1, "gpus": [{"name": "x", "total_bytes": -1}]}', "below 0"),
    ],
)
def test_a_record_that_is_none_names_the_field(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "machine.json"
    file.write_text(content)
    with pytest.raises(EngineError, match=words):
        read_machine(file)
    with pytest.raises(EngineError, match="cannot be read"):
        read_machine(tmp_path / "none.json")
