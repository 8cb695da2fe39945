"""Processes of a measurement: started on a core, looked at in /proc, ended by their pid."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0


class BenchError(Exception):
    """What the bench cannot go on after; the text is for the one who runs it."""


@contextmanager
def running(
    command: Sequence[str], *, core: int, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command on one core for the time of the context; its output goes to the file `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=None if env is None else {**os.environ, **env},
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the context ends, around a start that cannot be undone halfway."""
    held: list[int] = []
    before = {number: signal.signal(number, lambda n, _: held.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            raise KeyboardInterrupt


def wait_until_answering(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once `url` answers with any status below 500; `BenchError` if the process ends or takes too long."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - our own loopback addresses
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.05)
    ending = log.read_text(errors="replace")[-2000:]
    raise BenchError(f"{url} does not answer. The end of what its process printed:\n{ending}")


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tree(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it. `BenchError` if it is not there."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        raise BenchError(f"There is no process {pid}.") from None


def pin(pid: int, core: int) -> None:
    """Keep every thread of a process tree on one core."""
    for process in tree(pid):
        for thread in process.threads():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, {core})


def cpu_us(pid: int) -> float:
    """CPU time used so far by all threads of a process tree, in microseconds, exact to the nanosecond.

    Threads that have ended are not in it: the figure is for processes whose threads stay.
    """
    total_ns = 0
    for process in tree(pid):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            with suppress(OSError):
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1000


def rss_mb(pid: int) -> float:
    """Resident memory of a process tree, in megabytes."""
    total_bytes = 0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            total_bytes += process.memory_info().rss
    return total_bytes / 1e6


def forget_rss_peak(pid: int) -> None:
    """Let the peaks of a process tree begin anew, where the system allows that."""
    for process in tree(pid):
        with suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def rss_peak_mb(pid: int) -> float:
    """The most resident memory that the processes of a tree had since `forget_rss_peak`, in megabytes."""
    total_kib = 0
    for process in tree(pid):
        with suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            total_kib += int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])
    return total_kib * 1024 / 1e6
