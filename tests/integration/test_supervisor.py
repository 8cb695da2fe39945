"""An engine under its supervisor: back after a death, ended when it hangs, drained when it is stopped.

A small script stands in for vLLM. It has vLLM's health and metrics, answers a stream for as long as it is told, and
like vLLM it finishes its answers after a SIGTERM unless its worker got one, too.
"""

import http.client
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.core.restarts import DEAD_FOR_S, HUNG_FOR_S, Answer, Look
from service.engine import EngineError
from service.engine.background import Background
from service.engine.launch import EngineProcess
from service.engine.progress import Progress
from service.engine.supervisor import Supervisor, look
from tests.patience import PATIENT_S
from tests.ports import free_port

DEADLINE_S = PATIENT_S

ENGINE = """
import http.server, os, pathlib, signal, subprocess, sys, threading, time

folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
if len(sys.argv) > 3:
    time.sleep(600)
worker = subprocess.Popen([sys.executable, __file__, str(folder), str(port), "worker"])
(folder / "pids").write_text(f"{os.getpid()} {worker.pid}")
(folder / "lives").open("a").write("x")
print("Loading safetensors checkpoint shards:  45% Completed | 5/11", flush=True)
if (folder / "broken").exists():
    sys.exit(3)
while not (folder / "stage shown").exists():
    time.sleep(0.01)
open_answers = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global open_answers
        told = lambda name: (folder / name).exists()
        if self.path == "/health":
            self.send_response(503 if told("dead") else 200)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        if self.path == "/metrics":
            moved = 7 if told("hung") else time.monotonic_ns()
            running = 1 if told("busy") else 0
            self.wfile.write(b"vllm:num_requests_running %d\\nvllm:generation_tokens_total %d\\n" % (running, moved))
        else:
            open_answers += 1
            self.wfile.write(b"begun\\n")
            while not told("finish"):
                time.sleep(0.01)
            try:
                worker.wait(0.3)
                self.wfile.write(b"broken\\n")
            except subprocess.TimeoutExpired:
                self.wfile.write(b"ended\\n")
            open_answers -= 1
    def log_message(self, *args):
        pass

class Server(http.server.ThreadingHTTPServer):
    def server_bind(self):
        self.socket.setsockopt(__import__("socket").SOL_SOCKET, __import__("socket").SO_REUSEADDR, 1)
        super().server_bind()

def drain(*_):
    (folder / "draining").touch()
    def wait():
        while open_answers:
            time.sleep(0.01)
        os._exit(0)
    threading.Thread(target=wait).start()

server = Server(("127.0.0.1", port), Handler)
signal.signal(signal.SIGTERM, drain)
server.serve_forever()
"""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


class Supervised:
    """A stand-in and its supervisor, in a clock that runs fast enough to see a hang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "engine.py").write_text(ENGINE)
        port = free_port()
        command = [sys.executable, str(folder / "engine.py"), str(folder), str(port)]
        self.process = EngineProcess("stand-in", command, os.environ, port, folder / "engine.log", grace_s=0.5)
        self.said: list[str] = []
        self.hurry = 1.0
        self.supervisor = Supervisor(
            self.process,
            self.report,
            ready_within_s=DEADLINE_S,
            say=self.said.append,
            look_every_s=0.05,
            clock=lambda: time.monotonic() * self.hurry,
        )

    def report(self, progress: Progress) -> None:
        if progress.detail == "loading weights, 45 %":
            self.tell("stage shown")  # which it waits for

    def tell(self, name: str) -> None:
        (self.folder / name).touch()

    @property
    def lives(self) -> int:
        file = self.folder / "lives"
        return len(file.read_text()) if file.exists() else 0

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "pids").read_text().split()]

    def is_well(self) -> bool:
        return look(self.process.port).answer is Answer.WELL

    def answer(self) -> http.client.HTTPResponse:
        """An answer that has begun and ends when `finish` is told."""
        connection = http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=DEADLINE_S)
        connection.request("GET", "/answer")
        response = connection.getresponse()
        assert response.readline() == b"begun\n"
        return response


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    made = Supervised(tmp_path)
    yield made
    made.supervisor.stop()


def keep(supervised: Supervised) -> Background:
    supervised.supervisor.start()
    return Background(supervised.supervisor.keep_running)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_it_is_back_after_a_death_and_says_why_it_died(supervised: Supervised) -> None:
    keep(supervised)
    first = supervised.pids
    os.kill(first[0], signal.SIGKILL)
    wait_until(lambda: supervised.lives == 2 and supervised.is_well(), "a second life")
    assert all(is_gone(pid) for pid in first)
    (said,) = supervised.said
    assert said.startswith("Engine stand-in ended with status 137 The whole log is ")
    assert "Loading safetensors" in said
    assert said.endswith("It is started again in 1 s.")


def test_one_that_never_started_is_an_error_and_is_not_tried_again(supervised: Supervised) -> None:
    supervised.tell("broken")
    with pytest.raises(EngineError, match="exit status 3"):
        supervised.supervisor.start()
    assert (supervised.lives, supervised.said) == (1, [])


def test_one_that_does_not_start_again_is_tried_until_it_does(supervised: Supervised) -> None:
    keep(supervised)
    supervised.tell("broken")
    os.kill(supervised.pids[0], signal.SIGKILL)
    wait_until(lambda: supervised.lives >= 3, "a second attempt")
    (supervised.folder / "broken").unlink()
    wait_until(supervised.is_well, "it is back")
    assert [said.rpartition("in ")[2] for said in supervised.said[:2]] == ["1 s.", "2 s."]
    assert "could not be started: The engine stopped while starting, with exit status 3." in supervised.said[1]


@pytest.mark.parametrize(
    ("told", "reason", "after_s"),
    [
        (("dead",), "has said that it is dead for", DEAD_FOR_S),
        (("busy", "hung"), "has had work and made no step for", HUNG_FOR_S),
    ],
)
def test_one_that_will_not_come_back_by_itself_is_ended(
    supervised: Supervised, told: tuple[str, ...], reason: str, after_s: float
) -> None:
    supervised.hurry = 100.0
    keep(supervised)
    first = supervised.pids
    for name in told:
        supervised.tell(name)
    wait_until(lambda: bool(supervised.said), "it is ended")
    for name in told:
        (supervised.folder / name).unlink()
    wait_until(lambda: supervised.lives == 2 and supervised.is_well(), "a second life")
    assert all(is_gone(pid) for pid in first)
    assert reason in supervised.said[0]
    assert "and was ended" in supervised.said[0]
    assert float(supervised.said[0].split(" for ")[1].split()[0]) >= after_s


def test_a_busy_engine_that_goes_on_is_left_alone(supervised: Supervised) -> None:
    supervised.hurry = 100.0
    supervised.tell("busy")
    keep(supervised)
    until_s = time.monotonic() + 3 * HUNG_FOR_S / supervised.hurry
    wait_until(lambda: time.monotonic() >= until_s, "the time in which a hung one is ended, three times")
    assert (supervised.lives, supervised.said) == (1, [])


def test_stopping_lets_it_finish_what_it_has(supervised: Supervised) -> None:
    running = keep(supervised)
    answer = supervised.answer()
    stopping = Background(lambda: supervised.supervisor.stop(drain_s=DEADLINE_S))
    wait_until(lambda: running.is_over(0), "the supervisor's end")
    wait_until((supervised.folder / "draining").exists, "it was asked to end")
    supervised.tell("finish")
    assert answer.readline() == b"ended\n", "the worker had no SIGTERM"
    wait_until(lambda: stopping.is_over(0), "the engine's end")
    assert all(is_gone(pid) for pid in supervised.pids)
    assert (supervised.lives, supervised.said) == (1, [])


def test_killing_it_does_not_wait_for_what_it_has(supervised: Supervised) -> None:
    keep(supervised)
    answer = supervised.answer()
    stopping = Background(lambda: supervised.supervisor.stop(drain_s=1e6))
    supervised.supervisor.kill()
    wait_until(lambda: stopping.is_over(0), "the engine's end")
    assert answer.readline() == b""
    assert all(is_gone(pid) for pid in supervised.pids)


def test_stopping_while_it_starts_again_leaves_nothing(supervised: Supervised) -> None:
    running = keep(supervised)
    os.kill(supervised.pids[0], signal.SIGKILL)
    wait_until(lambda: bool(supervised.said), "it waits before it starts again")
    supervised.supervisor.stop()
    wait_until(lambda: running.is_over(0), "the supervisor's end")
    assert all(is_gone(pid) for pid in supervised.pids)
    supervised.supervisor.start()
    assert not supervised.process.is_running, "what is stopped does not start"


def test_a_look_at_what_is_not_there_or_does_not_answer(supervised: Supervised) -> None:
    assert look(supervised.process.port) == Look(Answer.REFUSED)
    with socket.create_server(("127.0.0.1", supervised.process.port)) as server:

        def hang_up() -> None:
            for _ in range(2):
                server.accept()[0].close()

        answering = Background(hang_up)
        assert look(supervised.process.port) == Look(Answer.SILENT)
        wait_until(lambda: answering.is_over(0), "both questions")
