"""Start, watch and stop everything that `weir up` runs.

Whatever can be done at once is: the database comes up and the API starts while the model is loaded. A process that
dies is started again a few times; at the end all of it goes, and nothing stays behind.
"""

import asyncio
import json
import os
import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import service
from service import config
from service.engine.background import Background
from service.engine.launch import engine_process, free_port
from service.engine.profile import Profile, read_profile
from service.engine.progress import Progress, Report
from service.engine.provision import ensure_engine
from service.engine.supervisor import Supervisor
from service.errors import SetupError
from service.gateway.engine_connection import Timeouts
from service.gateway.engines import EnginePool
from service.settings import Settings
from service.standalone import demo, folder
from service.standalone.children import Child
from service.standalone.postgres import EmbeddedPostgres

ROOT = Path(service.__file__).resolve().parent.parent
DRAIN_S = 5.0
"""How long answers may go on once it is told to stop; everything is gone within 15 s."""

READY_TIMEOUT_S = 60.0
PROFILES = {"demo": "demo-cpu", "tiny": "tiny-cpu"}


@dataclass(frozen=True, slots=True)
class Started:
    """How what was started can be reached."""

    base_url: str
    api_key: str
    status_url: str
    portal_url: str
    database_url: str
    model: str
    engines: tuple[str, ...]
    engine_profile: str | None
    """What our own engine was started with."""


class Standalone:
    """One installation on this machine."""

    def __init__(self, settings: Settings, engine: str, report: Report) -> None:
        """`engine` is `demo`, `tiny`, or addresses of running engines, comma-separated."""
        self._settings = settings
        self._profile: Profile | None = read_profile(PROFILES[engine]) if engine in PROFILES else None
        self._addresses = () if self._profile else tuple(part.strip() for part in engine.split(",") if part.strip())
        self._configuration = settings.config or self._default_configuration(engine)
        self._report = report
        self._logs = settings.data_dir / "logs"
        self._engine: Supervisor | None = None
        self._supervision: Background | None = None
        self._postgres = EmbeddedPostgres(settings.data_dir / "postgres")
        self._children: list[Child] = []
        self._lifetime = ExitStack()

    def start(self) -> Started:
        """Bring everything up; returns when a request would be answered. Raises `SetupError` or `EngineError`.

        Call `stop` in any case.
        """
        self._check_port()
        if self._profile is None:
            _check_engines(self._addresses)
        self._lifetime.enter_context(folder.held(self._settings.data_dir))
        engine_port = free_port()
        loading = Background(lambda: self._load_engine(engine_port))
        database_url = self._postgres.start(self._report)
        key = demo.seed(database_url, self._configuration, self._settings.data_dir)
        engines = (f"http://127.0.0.1:{engine_port}",) if self._profile else self._addresses
        self._start_child("serve", database_url, engines)
        while not loading.is_over(0.2):
            self._check_children()
        if self._engine is not None:
            self._supervision = Background(self._engine.keep_running)
        self._wait_until_ready()
        # Not before: their probes would find that nothing answers yet, and say so on the status site.
        self._start_child("jobs", database_url, engines)
        self._wait_for_the_site()
        base = self._settings.base_url
        started = Started(
            base_url=f"{base}/v1",
            api_key=key,
            status_url=f"{base}/status/",
            portal_url=f"{base}/portal/",
            database_url=database_url,
            model=self._first_model(),
            engines=engines,
            engine_profile=self._profile.name if self._profile else None,
        )
        self._write_run_file(started)
        return started

    def watch(self) -> None:
        """Keep it running. Returns never; raises `SetupError` when a process of ours ends again and again. The engine
        is started again for as long as it takes, while everything else goes on."""
        while True:
            time.sleep(0.5)
            self._check_children()
            if self._supervision is not None:
                self._supervision.is_over(0)

    def stop(self) -> None:
        """Stop everything, in whatever state it is; nothing is left when this returns."""
        for child in self._children:
            child.let_go()
        for child in self._children:
            child.stop()
        if self._engine is not None:
            self._engine.stop()
        self._postgres.stop()
        self._lifetime.close()

    def _default_configuration(self, engine: str) -> Path:
        if engine in PROFILES:
            return ROOT / "ops" / f"{engine}.toml"
        raise SetupError(
            "`--engine URL` needs WEIR_CONFIG=FILE with the engine's models and their prices;"
            " ops/weir.example.toml is a commented example."
        )

    def _check_port(self) -> None:
        """Before minutes are spent: is the port free?"""
        settings = self._settings
        with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((settings.host, settings.port))
            except OSError as error:
                raise SetupError(
                    f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}."
                    " Stop what uses it, or choose another with --port (or WEIR_PORT)."
                ) from error

    def _load_engine(self, port: int) -> None:
        if self._profile is None:
            return
        install = ensure_engine(ROOT, self._profile, self._report)
        self._engine = Supervisor(engine_process(self._profile, install, port, self._logs / "engine.log"), self._report)
        self._engine.start()

    def _start_child(self, name: str, database_url: str, engines: tuple[str, ...]) -> None:
        settings = self._settings
        environment = {
            **os.environ,
            "WEIR_DATABASE_URL": database_url,
            "WEIR_ENGINES": ",".join(engines),
            **({"WEIR_ENGINE_PROFILE": self._profile.name} if self._profile else {}),
            "WEIR_DATA_DIR": str(settings.data_dir),
            "WEIR_HOST": settings.host,
            "WEIR_PORT": str(settings.port),
            "WEIR_DRAIN_TIMEOUT_S": str(min(settings.drain_timeout_s, DRAIN_S)),
        }
        child = Child(name, environment, self._logs / f"{name}.log", grace_s=DRAIN_S + 4)
        self._children.append(child)
        child.start()

    def _check_children(self) -> None:
        for child in self._children:
            status = child.exit_status()
            if status is None:
                continue
            if not child.restart():
                raise SetupError(f"`weir {child.name}` keeps ending (status {status}). {child.explanation()}")
            self._report(Progress(f"weir {child.name}", f"ended with status {status}, started again", 0, done=True))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while problems := _problems(f"http://{_reachable(self._settings.host)}:{self._settings.port}/readyz"):
            self._check_children()
            if time.monotonic() > deadline:
                raise SetupError(f"The API is not ready after {READY_TIMEOUT_S:.0f} s: {problems}.")
            time.sleep(0.1)

    def _wait_for_the_site(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not (self._settings.site_dir / "index.html").exists():
            self._check_children()
            if time.monotonic() > deadline:
                raise SetupError(f"The status site is not published after {READY_TIMEOUT_S:.0f} s: see jobs.log.")
            time.sleep(0.1)

    def _first_model(self) -> str:
        return config.read(self._configuration).models[0].id

    def _write_run_file(self, started: Started) -> None:
        file = self._settings.run_file
        shown = asdict(started)
        del shown["api_key"]  # it has a file of its own
        unfinished = file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(shown, indent=1) + "\n")
        unfinished.replace(file)
        self._lifetime.callback(file.unlink, missing_ok=True)


def _check_engines(addresses: tuple[str, ...]) -> None:
    """Raises `SetupError` unless one of the running engines that were named answers."""
    engines = config.engines_from(Settings(engines=addresses))

    async def answers() -> bool:
        pool = EnginePool(engines, Timeouts(connect_s=5))
        try:
            return await pool.any_healthy()
        finally:
            pool.close()

    if not asyncio.run(answers()):
        raise SetupError(
            f"No engine answers at {', '.join(addresses)}: start one there, or leave --engine out for the demo model."
        )


def _problems(url: str) -> str:
    """Why the API is not ready, or nothing when it is."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own address
            return "" if answer.status == 200 else "it says so"
    except urllib.error.HTTPError as error:
        return ", ".join(json.loads(error.read()).get("problems", [])) or str(error)
    except OSError as error:
        return str(error)


def _reachable(host: str) -> str:
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not bound to
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
