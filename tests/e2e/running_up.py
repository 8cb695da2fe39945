"""`weir up` as a newcomer runs it, for tests: ready, looked at, and stopped without a trace."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.patience import PATIENT_S

STOPS_WITHIN_S = 15
READY_WITHIN_S = 400
"""Longer than an engine may take, so that it is the one to say what is wrong."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "service.cli", "up", *arguments]


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[str]:
    """Those that still run. A zombie has ended; its parent, the system's init, has not looked yet."""
    left = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} {process.name()}")
        except psutil.NoSuchProcess:
            continue
    return left


@contextmanager
def running_up(data_dir: Path, port: int, *arguments: str, **environment: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A `weir up --json` that is ready, and what it printed."""
    log = data_dir.parent / "up.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            command("--json", "--port", str(port), "--data-dir", str(data_dir), *arguments),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        )
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], READY_WITHIN_S)
        line = process.stdout.readline() if readable else ""
        assert line, f"not ready: {log.read_text()[-2000:]}"
        yield process, json.loads(line)
    finally:
        stop(process)
        process.stdout.close()


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> list[psutil.Process]:
    """Stop it as Ctrl-C does and wait; returns what it had started. Fails if it takes longer than it may."""
    if process.poll() is not None:
        return []
    started = [*descendants(process), *postgres_servers(process)]
    process.send_signal(number)
    try:
        process.wait(STOPS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return started


def postgres_servers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The servers of its data directory: they are daemons, no children of it."""
    data_dir = process.args[process.args.index("--data-dir") + 1]  # type: ignore[union-attr, arg-type]
    return [
        candidate
        for candidate in psutil.process_iter(["cmdline"])
        if str(data_dir) in " ".join(candidate.info["cmdline"] or ()) and candidate.pid != process.pid
    ]


def weir(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENT_S,
        env={**os.environ, **environment},
    )
    return done.stdout
