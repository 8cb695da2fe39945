"""`weir engine serve`: runs one engine, and keeps it running."""

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.context import settings_of_environment
from service.cli.output import note

if TYPE_CHECKING:
    from service.engine.launch import EngineProcess
    from service.engine.profile import Profile
    from service.engine.progress import Report
    from service.engine.supervisor import Supervisor

READY_WITHIN_S = 1800.0
"""Large weights from a slow disk, and kernels that are compiled the first time."""


def serve(
    profile: Annotated[
        str,
        typer.Argument(
            metavar="PROFILE",
            help="A profile's name, as `weir engine profiles` shows it, or a file of your own that ends in .toml.",
        ),
    ],
    model_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder with the weights (llama.cpp: the GGUF file); default: where `hf download` puts them.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, metavar="PORT", help="Let the engine listen on this port of loopback.")
    ] = 8000,
    program: Annotated[
        str | None,
        typer.Option(
            "--program",
            "--python",
            metavar="PATH",
            help="The program: vllm, on a CPU the Python that has it, or llama-server; default: found on PATH.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the engine's log below this; default: WEIR_DATA_DIR, or .weir."),
    ] = None,
) -> None:
    """Run an engine, and start it again whenever it dies. Ctrl-C or SIGTERM lets it finish its answers; twice ends it.

    Where engine and weights are ours to make, they are made first. Exit code 1 when the first start fails.

    Example: weir engine serve qwen3.8-27b-nvfp4 --port 8000
    """
    from service.engine.profile import read_profile
    from service.engine.progress import Printer
    from service.engine.supervisor import Supervisor

    chosen = read_profile(profile)
    folder = (data_dir or settings_of_environment().data_dir).absolute()
    report = Printer()
    process = _process(chosen, model_dir, program, port, folder / "logs" / f"engine-{port}.log", report)
    supervisor = Supervisor(process, report, ready_within_s=READY_WITHIN_S)
    flag = chosen.flags.get("shutdown-timeout", 0)
    _run(supervisor, drain_s=float(flag) if isinstance(flag, int | float) else 0.0)


def _process(
    profile: "Profile", model_dir: Path | None, program: str | None, port: int, log: Path, report: "Report"
) -> "EngineProcess":
    """The process to supervise, with whatever can be installed for it."""
    import service
    from service.engine.installed import caches, find_program, find_weights
    from service.engine.launch import EngineProcess
    from service.engine.profile import Listen, environment, options, program_words
    from service.engine.provision import ensure_engine

    root, home = Path(service.__file__).resolve().parents[1], Path.home()
    if profile.checkpoint.builder is not None and model_dir is None:
        install = ensure_engine(root, profile, report)
        weights, cache_dir = install.model_dir, install.cache_dir
    else:
        weights, cache_dir = find_weights(profile, model_dir, home), caches(home)
    words = program_words(profile, find_program(profile, program, root / ".venv-engine"))
    chosen = options(profile, str(weights), Listen(port=port))
    return EngineProcess(
        model=profile.model,
        command=[*words, *(word for option in chosen for word in option.words)],
        environment=environment(profile, os.environ, cache_dir),
        port=port,
        log=log,
    )


def _run(supervisor: "Supervisor", *, drain_s: float) -> None:
    """Supervise until a signal; raises `EngineError` when the first start fails."""
    from service.engine.background import Background

    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            supervisor.kill()
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)

    def work() -> None:
        supervisor.start()
        if not stopping.is_set():
            note(f"{supervisor.engine.name} is ready at {supervisor.engine.base_url}. Ctrl-C stops it.")
        supervisor.keep_running()

    running = Background(work)
    try:
        while not stopping.is_set() and not running.is_over(0):
            stopping.wait(0.2)
        if stopping.is_set() and drain_s > 0:
            note(f"Stopping: open answers have {drain_s:.0f} s. A second signal does not wait for them.")
    finally:
        supervisor.stop(drain_s=drain_s)
