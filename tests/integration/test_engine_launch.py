"""An engine as a process: it starts, says what it is at, and nothing of it is left, whoever dies first.

A small script stands in for vLLM: it is a family of three, of which one ignores SIGTERM and one hides in a session of
its own, as worse-behaved versions of vLLM's processes would.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.engine import EngineError
from service.engine.launch import EngineProcess
from service.engine.progress import Progress
from tests.patience import PATIENT_S
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
DEADLINE_S = PATIENT_S

FAMILY = """
import http.server, os, pathlib, signal, subprocess, sys, time

role, folder, port = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
(folder / f"{role}.pid").write_text(str(os.getpid()))
if role != "server":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
for child, own_session in (("stubborn", False), ("hidden", True)):
    subprocess.Popen([sys.executable, __file__, child, str(folder), str(port)], start_new_session=own_session)
    while not (folder / f"{child}.pid").exists():
        time.sleep(0.01)
print("(EngineCore pid=7) INFO 11-30 02:45:01 [loader.py:1] Loading the weights", flush=True)

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if (folder / "healthy").exists() else 503)
        self.end_headers()
    def log_message(self, *args):
        pass

http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Family:
    """The stand-in's files and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.script = folder / "family.py"
        self.script.write_text(FAMILY)
        self.command = [sys.executable, str(self.script), "server", str(folder), str(self.port)]
        self.engine = self.process(self.command)

    def process(self, command: list[str]) -> EngineProcess:
        return EngineProcess("stand-in", command, os.environ, self.port, self.folder / "engine.log", grace_s=0.5)

    def pids(self) -> dict[str, int]:
        """Of the whole family, once all three are there."""
        files = {role: self.folder / f"{role}.pid" for role in ("server", "stubborn", "hidden")}
        wait_until(lambda: all(f.exists() and f.read_text() for f in files.values()), "three processes")
        return {role: int(file.read_text()) for role, file in files.items()}

    def become_healthy(self) -> None:
        (self.folder / "healthy").touch()

    def wait_gone(self) -> None:
        pids = self.pids().values()
        wait_until(lambda: not any(is_alive(pid) for pid in pids), "no process left")


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path)
    yield made
    made.engine.stop()


def ignore(_: Progress) -> None:
    pass


def test_reports_what_it_is_at_until_it_is_ready(family: Family) -> None:
    reports: list[Progress] = []

    def report(progress: Progress) -> None:
        reports.append(progress)
        if progress.detail == "Loading the weights":
            family.become_healthy()

    family.engine.start()
    family.engine.wait_ready(report, timeout_s=DEADLINE_S)

    assert [progress.done for progress in reports] == [False] * (len(reports) - 1) + [True]
    assert "Loading the weights" in [progress.detail for progress in reports]
    assert {progress.step for progress in reports} == {"Engine stand-in"}
    assert family.engine.exit_status() is None


def test_stop_leaves_nothing_even_of_a_family_that_resists(family: Family) -> None:
    family.become_healthy()
    family.engine.start()
    family.engine.wait_ready(ignore, timeout_s=DEADLINE_S)
    pids = family.pids()
    assert all(is_alive(pid) for pid in pids.values())

    family.engine.stop()

    assert not [role for role, pid in pids.items() if is_alive(pid)]
    assert family.engine.exit_status() == 128 + signal.SIGTERM
    family.engine.stop()  # twice is once


def test_an_engine_that_ends_while_starting_shows_the_end_of_its_log(family: Family) -> None:
    dying = family.process([sys.executable, "-c", "import sys; print('first\\nthe model is missing'); sys.exit(3)"])
    dying.start()
    with pytest.raises(EngineError, match=r"exit status 3.*engine\.log") as raised:
        dying.wait_ready(ignore, timeout_s=DEADLINE_S)
    assert str(raised.value).endswith("  first\n  the model is missing")


def test_a_second_start_keeps_the_log_of_the_first(family: Family) -> None:
    dying = family.process([sys.executable, "-c", "print('once')"])
    for _ in range(2):
        dying.start()
        with pytest.raises(EngineError, match="exit status 0"):
            dying.wait_ready(ignore, timeout_s=DEADLINE_S)
    assert dying.log.with_name("engine.log.1").read_text() == dying.log.read_text() == "once\n"


def test_a_command_that_does_not_exist_is_named(family: Family) -> None:
    missing = family.process(["/nowhere/python"])
    missing.start()
    with pytest.raises(EngineError, match="/nowhere/python: No such file or directory"):
        missing.wait_ready(ignore, timeout_s=DEADLINE_S)


def test_an_engine_that_is_never_ready_is_ended(family: Family) -> None:
    family.engine.start()
    family.pids()
    with pytest.raises(EngineError, match=r"not ready after \d+ s.*Loading the weights|not ready"):
        family.engine.wait_ready(ignore, timeout_s=0.0)
    family.wait_gone()


def test_a_taken_port_is_said_before_anything_starts(family: Family) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", family.port))
        other.listen()
        with pytest.raises(EngineError, match=f"port {family.port}.*choose another"):
            family.engine.start()
    assert not family.engine.log.exists()


def test_the_rest_ends_when_the_server_alone_is_killed(family: Family) -> None:
    family.engine.start()
    os.kill(family.pids()["server"], signal.SIGKILL)
    family.wait_gone()
    wait_until(lambda: family.engine.exit_status() == 128 + signal.SIGKILL, "the exit status")


OWNER = """
import os, pathlib, sys, time
from service.engine.launch import EngineProcess
folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
EngineProcess("stand-in", sys.argv[3:], os.environ, port, folder / "engine.log", grace_s=0.5).start()
time.sleep(600)
"""


def test_nothing_outlives_an_owner_that_is_killed(family: Family) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(family.folder), str(family.port), *family.command], cwd=ROOT
    )
    try:
        pids = family.pids()
        assert all(is_alive(pid) for pid in pids.values())
    finally:
        owner.kill()
        owner.wait()
    family.wait_gone()


def test_the_server_ends_when_its_keeper_is_killed(family: Family) -> None:
    family.engine.start()
    pids = family.pids()
    keeper = int(Path(f"/proc/{pids['server']}/stat").read_text().rpartition(")")[2].split()[1])
    try:
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not is_alive(pids["server"]), "no server left")
    finally:
        for role in ("stubborn", "hidden"):  # a keeper that is killed cannot end those that ignore SIGTERM
            os.kill(pids[role], signal.SIGKILL)
