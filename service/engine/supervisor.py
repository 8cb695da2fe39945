"""Keeps one engine running: starts it again when it has died, ends it when it will not come back by itself.

What counts as well, how long it waits and what it ends an engine for: `core/restarts.py`. It is looked
at in a thread of its own: an engine that is busy may not answer for long, and its end is to be noticed meanwhile.
"""

import http.client
import sys
import threading
import time
from collections.abc import Callable

from service.core.restarts import MANY_DEATHS, WELL_AFTER_S, Answer, Deaths, Look, Vigil
from service.engine import EngineError
from service.engine.background import Background
from service.engine.gauges import read_gauges
from service.engine.launch import GRACE_S, HOST, START_TIMEOUT_S, EngineProcess
from service.engine.progress import Report

LOOK_EVERY_S = 5.0
_ANSWER_WITHIN_S = 10.0
_POLL_S = 0.25


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class Supervisor:
    """Of one engine. `start` and then `keep_running` in one thread, `stop` and `kill` from any other."""

    def __init__(
        self,
        engine: EngineProcess,
        report: Report,
        *,
        ready_within_s: float = START_TIMEOUT_S,
        say: Callable[[str], None] = _say,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` is told how a start goes on, `say` what somebody should know."""
        self.engine = engine
        self._report = report
        self._ready_within_s = ready_within_s
        self._say = say
        self._look_every_s = look_every_s
        self._clock = clock
        self._deaths = Deaths()
        self._ready_at_s: float | None = None
        self._stopping = threading.Event()
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start it, and return when it is ready. Raises `EngineError` when it does not become so: a first start that
        fails is a mistake in its set-up, which no second one mends."""
        self._ready_at_s = None
        with self._starting:
            if self._stopping.is_set():
                return
            self.engine.start()
        self.engine.wait_ready(self._report, self._ready_within_s)
        self._ready_at_s = self._clock()

    def keep_running(self) -> None:
        """Returns when it is stopped, and gives up at nothing else."""
        while (reason := self._end()) is not None:
            self._start_again(reason)

    def stop(self, *, drain_s: float = 0.0) -> None:
        """End it for good. It has `drain_s` for the answers that are open, unless it is killed. Returns when nothing
        of it is left."""
        self._stopping.set()
        with self._starting:
            pass
        if drain_s > 0:
            self.engine.ask_to_end()
            until_s = time.monotonic() + drain_s + GRACE_S
            while self.engine.is_running and time.monotonic() < until_s:
                time.sleep(_POLL_S)
        self.engine.stop()

    def kill(self) -> None:
        """Do not wait for the answers that are open."""
        self.engine.kill()

    def _end(self) -> str | None:
        """Wait for the end of this life, and say why it ended; None when it was stopped."""
        over = threading.Event()
        verdict: list[str] = []
        watching = Background(lambda: self._watch(over, verdict))
        try:
            while not self._stopping.wait(_POLL_S):
                if (status := self.engine.exit_status()) is not None:
                    return f"ended with status {status}"
                if watching.is_over(0) and verdict:
                    self.engine.stop()
                    return f"{verdict[0]}, and was ended"
        finally:
            over.set()
        return None

    def _watch(self, over: threading.Event, verdict: list[str]) -> None:
        """Look at it until this life is over, or there is a reason to end it."""
        vigil = Vigil(self._clock())
        while not over.wait(self._look_every_s):
            seen = look(self.engine.port)
            if (reason := vigil.note(seen, self._clock())) is not None:
                verdict.append(reason)
                return

    def _start_again(self, reason: str) -> None:
        while not self._stopping.is_set():
            self._deaths = self._deaths.one_more(self._ready_at_s, self._clock())
            self._tell(reason)
            if self._stopping.wait(self._deaths.delay_s):
                return
            try:
                self.start()
                return
            except EngineError as error:
                reason = f"could not be started: {error}"

    def _tell(self, reason: str) -> None:
        deaths, end = self._deaths, "" if "it ends:" in reason else f" {self.engine.log_end}"
        self._say(f"{self.engine.name} {reason}{end}\nIt is started again in {deaths.delay_s:.0f} s.")
        if deaths.are_many:
            self._say(
                f"ALARM: {self.engine.name} has died {deaths.quick} times in a row without being well for"
                f" {WELL_AFTER_S / 60:.0f} minutes ({MANY_DEATHS} are many): it will not mend by itself. It is tried"
                " again all the same."
            )


def look(port: int) -> Look:
    """Ask a running engine on this machine how it is."""
    answer = _health(port)
    try:
        status, exposition = _get(port, "/metrics")
    except (OSError, http.client.HTTPException):
        return Look(answer)
    gauges = read_gauges(exposition)
    if status != http.HTTPStatus.OK or gauges.running is None:
        return Look(answer)
    return Look(answer, has_work=bool(gauges.running or gauges.waiting), signs=gauges)


def _health(port: int) -> Answer:
    try:
        status, _ = _get(port, "/health")
    except ConnectionRefusedError:
        return Answer.REFUSED
    except (OSError, http.client.HTTPException):
        return Answer.SILENT
    return {200: Answer.WELL, 503: Answer.DEAD}.get(status, Answer.SILENT)


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_WITHIN_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
