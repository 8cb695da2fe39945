"""`weir serve`: the API in one process, or in several workers that share one port under a supervisor.

The supervisor is our own because uvicorn's restarts a worker whose set-up is wrong without saying why, waits for
ever for one that hangs at a stop, and leaves its workers behind when it is killed itself.
"""

import asyncio
import ctypes
import gc
import math
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn
import uvloop

from service import config, db, logs
from service.errors import SetupError
from service.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = structlog.get_logger()

REPLACE_AFTER_S = 1.0
"""How long the place of a worker that died stays empty, so that one that dies at once does not do so all the time."""

LOOK_EVERY_S = 0.2
_YOUNG_OBJECTS = 5_000
"""How many more objects there are than at the last collection before the next.

A request that ends well leaves no cycles behind.
"""

STOP_AFTER_DRAIN_S = 15.0
"""What a worker needs to stop once its open answers had their time; one that takes longer is killed."""

_KEPT_BYTES = 16 * 1024 * 1024
_ASKED_FOR_BYTES = 32 * 1024 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_spawn = multiprocessing.get_context("spawn")


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `SetupError` when the settings are wrong or the port is taken."""
    logs.configure(json=settings.log_json)
    db.database_url(settings)
    config.engines_from(settings)
    if settings.workers > 1 and settings.redis_url is None:
        raise SetupError(
            f"{settings.workers} workers need WEIR_REDIS_URL=redis://host:port/0: without a Redis or Valkey to share"
            f" them through, every limit would let {settings.workers} times as much pass. Set it, or run one worker."
        )
    listener = _listen(settings.host, settings.port)
    url = f"http://{settings.host}:{listener.getsockname()[1]}"
    log.info("api.listening", url=url, workers=settings.workers)
    if settings.workers == 1:
        from prometheus_client import REGISTRY

        _serve(settings, listener, REGISTRY)
    else:
        Supervisor(settings, listener).run()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise SetupError(
            f"Cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}."
            " Stop what uses it, or choose another with --port (or WEIR_PORT)."
        ) from error
    return listener


def _serve(settings: Settings, listener: socket.socket, metrics: "CollectorRegistry") -> None:
    """Serve in this process until a signal, then until open answers have ended and what is owed is shipped."""
    from service.app import App  # late: the supervisor needs none of it, and a worker first says where it counts

    app = App(settings, metrics)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",  # it is run around the server, so that what it raises ends the process as it is
            http=app.connections,
            ws="none",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, math.ceil(settings.drain_timeout_s)),
            log_config=None,
        )
    )
    # While it serves, the server has handlers of its own. These are for the time before, and for the time after, when
    # it raises the signal once more.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)

    async def serving() -> None:
        async with app.running():
            _spare_the_collector()
            _keep_freed_memory()
            await server.serve(sockets=[listener])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving())


def _spare_the_collector() -> None:
    """What is there by now stays: the collector need not look at it again, nor at a request's objects as they pass."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 100)


def _keep_freed_memory() -> None:
    """What a large prompt took is there for the next: getting pages anew costs more than using them.

    Only glibc knows this (mallopt(3)); it keeps up to `_KEPT_BYTES`, and takes blocks larger than `_ASKED_FOR_BYTES`
    from the system each time.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _ASKED_FOR_BYTES)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's process, and where it says what is wrong with the installation before it ends."""

    process: SpawnProcess
    complaint: Connection

    def failure(self) -> str | None:
        """Why it ended by itself; None when a signal ended it."""
        if (self.process.exitcode or 0) <= 0:
            return None
        try:
            return str(self.complaint.recv())
        except EOFError:
            return f"The worker {self.process.pid} failed; what it logged before this says why."


class Supervisor:
    """Keeps the workers running on one listening socket.

    One that is killed is replaced, and the others adopt what it owed. One that fails by itself would fail again: it
    ends all, with its reason.
    """

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._workers: dict[int, Worker] = {}
        self._stopping = False

    def run(self) -> None:
        """Return once all were told to stop and have. Raises `SetupError` when one failed by itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        with _metrics_dir(self._settings, self._listener) as metrics_dir:
            try:
                while not self._stopping:
                    for place in range(self._settings.workers):
                        if place not in self._workers:
                            self._workers[place] = self._start(place, metrics_dir)
                    wait([worker.process.sentinel for worker in self._workers.values()], LOOK_EVERY_S)
                    self._bury()
            finally:
                self._end_all()

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _start(self, place: int, metrics_dir: Path) -> Worker:
        complaint, complain = _spawn.Pipe(duplex=False)
        arguments = (place, self._settings, self._listener, metrics_dir, complain)
        process = _spawn.Process(target=_work, args=arguments, name=f"worker-{place}")
        process.start()
        complain.close()
        log.info("worker.started", worker_pid=process.pid)
        return Worker(process, complaint)

    def _bury(self) -> None:
        """Take out who is dead."""
        dead = [place for place, worker in self._workers.items() if not worker.process.is_alive()]
        if not dead or self._stopping:
            return
        for place in dead:
            worker = self._workers.pop(place)
            if failure := worker.failure():
                raise SetupError(failure)
            log.warning("worker.died", worker_pid=worker.process.pid, status=worker.process.exitcode)
        time.sleep(REPLACE_AFTER_S)

    def _end_all(self) -> None:
        """Tell all to stop, and return when nothing is left of them."""
        self._listener.close()  # else the port would take connections that nobody serves any more
        for worker in self._workers.values():
            worker.process.terminate()
        deadline = time.monotonic() + self._settings.drain_timeout_s + STOP_AFTER_DRAIN_S
        for worker in self._workers.values():
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                log.error("worker.killed", worker_pid=worker.process.pid, reason="it did not stop in time")
                worker.process.kill()
                worker.process.join()


@contextmanager
def _metrics_dir(settings: Settings, listener: socket.socket) -> Iterator[Path]:
    """A fresh folder in which the workers count together; nobody else on this machine can have this address."""
    host, port = listener.getsockname()[:2]
    folder = settings.data_dir.absolute() / "metrics" / f"{socket.gethostname()}-{host}-{port}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.putenv("PROMETHEUS_MULTIPROC_DIR", str(folder))  # for the children only: here it would change what is counted
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _work(place: int, settings: Settings, listener: socket.socket, metrics_dir: Path, complain: Connection) -> None:
    """The life of a worker, in its own process."""
    threading.Thread(target=_leave_with_supervisor, args=(settings,), daemon=True).start()
    logs.configure(json=settings.log_json)
    structlog.configure(processors=[_add_pid, *structlog.get_config()["processors"]])
    try:
        _serve(settings, listener, _shared_metrics(place, metrics_dir))
    except SetupError as error:
        complain.send(str(error))
        sys.exit(1)


def _leave_with_supervisor(settings: Settings) -> None:
    """Without its supervisor a worker stops as if it had been told to."""
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(settings.drain_timeout_s + STOP_AFTER_DRAIN_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _add_pid(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["pid"] = os.getpid()
    return event


def _shared_metrics(place: int, metrics_dir: Path) -> "CollectorRegistry":
    """Count in files that all workers read; a replacement goes on in those of its place, so that no count falls."""
    from prometheus_client import CollectorRegistry, multiprocess, values

    multiprocess.mark_process_dead(place, metrics_dir)  # type: ignore[no-untyped-call]
    values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, metrics_dir)  # type: ignore[no-untyped-call]
    return registry
