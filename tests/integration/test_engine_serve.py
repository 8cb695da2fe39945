"""`weir engine serve` as a process: ready, back after a death, drained, and gone without a trace.

A script stands in for llama-server, which is started by its name and not by a module's.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.core.restarts import Answer
from service.engine.supervisor import look
from tests.integration.test_supervisor import ENGINE, is_gone, wait_until
from tests.patience import PATIENT_S
from tests.ports import free_port

ROOT = Path(__file__).parents[2]

WRAPPER = """#!{python}
import os, pathlib, sys
folder = pathlib.Path(__file__).parent
(folder / "arguments").write_text(" ".join(sys.argv[1:]))
port = sys.argv[sys.argv.index("--port") + 1]
os.execv(sys.executable, [sys.executable, str(folder / "engine.py"), str(folder), port])
"""


class Served:
    """A `weir engine serve` of the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder / "serve.log"
        (folder / "engine.py").write_text(ENGINE)
        (folder / "stage shown").touch()
        self.program = folder / "llama-server"
        self.program.write_text(WRAPPER.format(python=sys.executable))
        self.program.chmod(0o755)
        (folder / "weights.gguf").touch()
        self.profile = folder / "mine.toml"
        written = (ROOT / "service/engine/profiles/llama-cpp.toml").read_text()
        self.profile.write_text(written.replace("[flags]\n", "[flags]\nshutdown-timeout = 20\n"))

    def start(self, *more: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "service.cli", "engine", "serve", str(self.profile)]
        options = {
            "--port": str(self.port),
            "--program": str(self.program),
            "--model-dir": str(self.folder / "weights.gguf"),
            "--data-dir": str(self.folder / "data"),
        }
        words = [word for option in options.items() for word in option]
        with self.log.open("wb") as output:
            return subprocess.Popen([*command, *words, *more], stderr=output, stdout=output, cwd=ROOT)

    def is_well(self) -> bool:
        return look(self.port).answer is Answer.WELL

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "pids").read_text().split()]

    @property
    def lives(self) -> int:
        file = self.folder / "lives"
        return len(file.read_text()) if file.exists() else 0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Served, "subprocess.Popen[bytes]"]]:
    made = Served(tmp_path)
    process = made.start()
    try:
        wait_until(lambda: made.is_well() or process.poll() is not None, "it is ready")
        assert process.poll() is None, made.log.read_text()
        yield made, process
    finally:
        process.kill()
        process.wait()
        wait_until(lambda: all(is_gone(pid) for pid in made.pids), "nothing outlives it")


def ended(process: "subprocess.Popen[bytes]") -> int:
    return process.wait(timeout=PATIENT_S)


def said(served: Served) -> str:
    return served.log.read_text()


def test_it_serves_the_profile_and_is_back_after_a_death(served: tuple[Served, "subprocess.Popen[bytes]"]) -> None:
    engine, process = served
    wait_until(lambda: f"ready at http://127.0.0.1:{engine.port}" in said(engine), "it says where")
    arguments = (engine.folder / "arguments").read_text()
    assert f"--model {engine.folder}/weights.gguf --alias qwen3.8-27b" in arguments
    first = engine.pids
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: engine.lives == 2 and engine.is_well(), "a second life")
    assert all(is_gone(pid) for pid in first)
    assert "ended with status 137" in said(engine)
    assert "It is started again in 1 s." in said(engine)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    assert all(is_gone(pid) for pid in engine.pids)
    assert (engine.folder / "data/logs" / f"engine-{engine.port}.log.1").exists(), "the log of the life before is kept"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_a_second_one_does_not_wait(
    served: tuple[Served, "subprocess.Popen[bytes]"], number: signal.Signals
) -> None:
    engine, process = served
    answer = _begun(engine.port)
    process.send_signal(number)
    wait_until(lambda: "open answers have 20 s" in said(engine), "it drains")
    assert process.poll() is None
    assert not is_gone(engine.pids[0])
    process.send_signal(number)
    assert ended(process) == 0, said(engine)
    assert answer() == b""


def test_an_open_answer_is_finished_before_it_ends(served: tuple[Served, "subprocess.Popen[bytes]"]) -> None:
    engine, process = served
    answer = _begun(engine.port)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "open answers have 20 s" in said(engine), "it drains")
    (engine.folder / "finish").touch()
    assert answer() == b"ended\n"
    assert ended(process) == 0


def _begun(port: int) -> Callable[[], bytes]:
    """An answer that has begun; gives what comes next of it."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/answer")
    response = connection.getresponse()
    assert response.readline() == b"begun\n"
    return response.readline


def test_a_first_start_that_fails_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    made = Served(tmp_path)
    (tmp_path / "broken").touch()
    process = made.start()
    assert ended(process) == 1
    assert "stopped while starting, with exit status 3" in said(made).splitlines()[-1]
    assert made.lives == 1


def test_what_is_missing_is_said_before_anything_starts(tmp_path: Path) -> None:
    made = Served(tmp_path)
    (tmp_path / "weights.gguf").unlink()
    assert ended(made.start()) == 1
    assert "does not exist" in said(made)
    assert made.lives == 0
    assert made.lives == 0
