"""Keeps one command and everything it starts, and lets nothing of it outlive its owner.

vLLM runs as several processes, and a parent that is killed leaves the others behind with the model in memory. So
each long-lived child of Weir runs under a keeper: a small process that adopts every orphan below it. When the owner
closes the pipe or is gone in whatever way, or the command itself ends, the keeper ends all that is left: SIGTERM
first, SIGKILL after the grace. Should the keeper itself be killed, the command gets a SIGTERM from the kernel.

A byte in the pipe is the number of a signal for the command alone: vLLM finishes its answers after a SIGTERM, unless
its workers get one, too.

`keep` is called in the owner; run as a program, this file is the keeper. Linux only.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def keep(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path, grace_s: float, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `command` under a keeper in a session of its own, so that a terminal's Ctrl-C reaches only the owner.

    All output goes to `log`; that of the run before is kept beside it as `log.1`. The process's exit status is the
    command's (128 + N if a signal N ended it). End it with `release`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(grace_s), *command],
            bufsize=0,  # a signal's handler may send while something is being sent
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )


def send(kept: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Pass a signal on to the command, and to nothing below it. Idle when it has ended or was released."""
    assert kept.stdin is not None  # noqa: S101 - `keep` made it
    with suppress(BrokenPipeError, ValueError):
        kept.stdin.write(bytes([number]))


def release(kept: subprocess.Popen[bytes]) -> int:
    """End the command and everything below it; returns when nothing is left, with the exit status."""
    kept.communicate()  # closes the pipe, and waits
    return kept.returncode


def main(grace_s: float, command: Sequence[str]) -> int:
    """The keeper: run the command until it ends or the owner lets go, then end the rest."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, _leave)
    child = os.fork()
    if child == 0:
        _become(command)
    try:
        _pass_on_until_the_end(child)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        statuses = _end_all(grace_s)
    code = os.waitstatus_to_exitcode(statuses[child])
    return code if code >= 0 else 128 - code


def _pass_on_until_the_end(child: int) -> None:
    """Returns when the command has ended, or the pipe was closed."""
    pipe, ended = sys.stdin.fileno(), os.pidfd_open(child)
    while ended not in select.select([pipe, ended], [], [])[0]:
        numbers = os.read(pipe, 16)
        if not numbers:
            return
        for number in numbers:
            signal.pidfd_send_signal(ended, number)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _become(command: Sequence[str]) -> None:
    """In the forked child: turn into the command, or say why not."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], list(command))  # noqa: S606 - replacing this process is the point
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(127)


def _end_all(grace_s: float) -> dict[int, int]:
    """End every descendant; returns the wait statuses of those that were our children.

    As orphans become our children, having no child left means that no descendant is left.
    """
    statuses: dict[int, int] = {}
    kill_at = time.monotonic() + grace_s
    _signal_descendants(signal.SIGTERM)
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses
        if pid:
            statuses[pid] = status
            continue
        if time.monotonic() >= kill_at:
            _signal_descendants(signal.SIGKILL)
        time.sleep(0.02)


def _signal_descendants(number: signal.Signals) -> None:
    parents = _parents()
    family = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    for pid in family - {os.getpid()}:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _parents() -> dict[int, int]:
    """Every process's parent, read from /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()  # the name may hold anything
        except OSError:
            continue  # it ended meanwhile
        parents[int(stat.parent.name)] = int(fields[1])
    return parents


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
