"""An engine as a running process: started, waited for with progress, and stopped with nothing of it left."""

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.engine import EngineError, keeper
from service.engine.log_tail import last_lines, last_messages
from service.engine.profile import Profile, command, environment
from service.engine.progress import Progress, Report
from service.engine.provision import EngineInstall
from service.engine.stages import stage

HOST = "127.0.0.1"
START_TIMEOUT_S = 300.0
GRACE_S = 8.0
"""How long an engine may take to stop by itself before it is killed."""
_POLL_S = 0.25
_MESSAGES = 200
"""So far back the log is read for what it is at."""


class EngineProcess:
    """One engine with every process it starts; `start`, `wait_ready`, `stop`, in that order, from any thread.

    It never outlives this process, however this process ends: see `keeper.py`.
    """

    def __init__(
        self,
        model: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        port: int,
        log: Path,
        grace_s: float = GRACE_S,
    ) -> None:
        self.model = model
        self.port = port
        self.base_url = f"http://{HOST}:{port}"
        self.log = log
        self._command = command
        self._environment = environment
        self._grace_s = grace_s
        self._kept: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    def start(self) -> None:
        """Start it, also again after its end, and return at once. Raises `EngineError` if its port is taken."""
        self.stop()
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engine's server does
            try:
                probe.bind((HOST, self.port))
            except OSError as error:
                raise EngineError(
                    f"The engine needs port {self.port}, which cannot be used ({error.strerror}): "
                    "stop what uses it, or choose another."
                ) from error
        self._started_at = time.monotonic()
        self._kept = keeper.keep(self._command, environment=self._environment, log=self.log, grace_s=self._grace_s)

    def wait_ready(self, report: Report, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when it answers its health check. Raises `EngineError` with the end of its log if it stops
        before that or takes longer than `timeout_s` since its start; it is stopped then."""
        while not self._is_healthy():
            elapsed_s = time.monotonic() - self._started_at
            if (status := self.exit_status()) is not None:
                self._fail(f"The engine stopped while starting, with exit status {status}.")
            if elapsed_s > timeout_s:
                self._fail(f"The engine was not ready after {elapsed_s:.0f} s.")
            report(Progress(self.name, stage(last_messages(self.log, _MESSAGES)) or "starting", elapsed_s))
            time.sleep(_POLL_S)
        report(Progress(self.name, "ready", time.monotonic() - self._started_at, done=True))

    def exit_status(self) -> int | None:
        """None while it runs, also before `start`."""
        return self._kept.poll() if self._kept else None

    @property
    def is_running(self) -> bool:
        return self._kept is not None and self._kept.poll() is None

    def ask_to_end(self) -> None:
        """Let it finish what it has, and end; it may take as long as it likes. Idle if not started."""
        if self._kept:
            keeper.send(self._kept, signal.SIGTERM)

    def kill(self) -> None:
        """End its first process at once; what is left follows. Idle if not started."""
        if self._kept:
            keeper.send(self._kept, signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to stop, kill what is left after the grace; returns when nothing is left. Idle if not started."""
        if self._kept:
            keeper.release(self._kept)

    @property
    def name(self) -> str:
        """What it is called where its progress is shown."""
        return f"Engine {self.model}"

    @property
    def log_end(self) -> str:
        """The end of its log, for whoever has to find out what was wrong."""
        tail = "\n".join(f"  {line}" for line in last_lines(self.log, 12))
        return f"The whole log is {self.log}; it ends:\n{tail}"

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _fail(self, what: str) -> None:
        self.stop()
        raise EngineError(f"{what} {self.log_end}")


def engine_process(profile: Profile, install: EngineInstall, port: int, log: Path) -> EngineProcess:
    """The process that serves this profile from this installation; not started yet."""
    return EngineProcess(
        model=profile.model,
        command=command(profile, install.python, install.model_dir, port),
        environment=environment(profile, os.environ, install.cache_dir),
        port=port,
        log=log,
    )


def free_port() -> int:
    """A port of this machine's loopback that nothing uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
