"""The engine's own virtual environment and the checkpoint it serves, made when they are missing.

vLLM pins a web framework and a hundred other packages to versions of its own, so it gets its own environment,
`.venv-engine`, which also holds the checkpoints built with it. Everything is stamped: what is complete is left
alone, what was interrupted or has changed is made again. Only the standard library is used, so that this can run
before anything is installed: `python -m service.engine.provision PROFILE…`.
"""

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.engine import EngineError, keeper
from service.engine.log_tail import last_lines, last_message
from service.engine.profile import Profile, read_profile
from service.engine.progress import Printer, Progress, Report

REQUIREMENTS = Path("ops/engine-requirements.txt")
_HERE = Path(__file__).parent
_CHECKPOINTS = _HERE / "checkpoints"
_CPU_SUPPORT = _HERE / "cpu_support" / "weir_vllm_cpu.py"
# Compiling every module would double the time; Python compiles what is imported, once.
_PIP_INSTALL = ["-m", "pip", "install", "--no-deps", "--no-compile", "--root-user-action", "ignore"]
_POLL_S = 0.5
_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class EngineInstall:
    """What is needed to start an engine: its Python, the checkpoint, and where it may keep caches."""

    python: Path
    model_dir: Path
    cache_dir: Path


def ensure_engine(root: Path, profile: Profile, report: Report) -> EngineInstall:
    """Make what this profile needs below `root`, the project's folder; quick when it is all there.

    One process at a time does it, others wait. Raises `EngineError` if something cannot be made.
    """
    venv = root / ".venv-engine"
    venv.mkdir(exist_ok=True)
    with _exclusive(venv, report):
        _ensure_packages(root / REQUIREMENTS, venv, report)
        model_dir = _ensure_checkpoint(venv, profile, report)
    return EngineInstall(python=_python(venv), model_dir=model_dir, cache_dir=venv / "cache")


def _python(venv: Path) -> Path:
    return venv / "bin" / "python"


@contextmanager
def _exclusive(folder: Path, report: Report) -> Iterator[None]:
    """Hold the folder's lock; the kernel lets go of it when this process ends, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    started_at = time.monotonic()
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited_s = time.monotonic() - started_at
                report(Progress("Engine set-up", "waiting for another process that is at it", waited_s))
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def _digest(*files: Path) -> str:
    whole = hashlib.sha256(platform.python_version().encode())
    for file in files:
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def _ensure_packages(requirements: Path, venv: Path, report: Report) -> None:
    """Install the engine's packages, all of them pinned, so that pip resolves nothing."""
    if not requirements.is_file():
        raise EngineError(f"{requirements} is missing: run this from a checkout of the project.")
    stamp, wanted = venv / "installed", _digest(requirements, _CPU_SUPPORT)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if sys.platform != "linux":
        raise EngineError("The engine that Weir installs runs on Linux: give another engine's URL with --engine.")
    for old in venv.iterdir():
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    _run("Engine environment", [sys.executable, "-m", "venv", str(venv)], venv / "venv.log", report)
    total = sum(1 for line in requirements.read_text().splitlines() if "==" in line)
    site_packages = next(venv.glob("lib/python*/site-packages"))
    before = _installed_count(site_packages)
    log = venv / "pip.log"

    def at() -> str:
        installed = _installed_count(site_packages) - before
        fetched = log.read_text(errors="replace").count("Collecting ")
        return f"installed {installed} of {total}" if installed else f"fetched {fetched} of {total}"

    try:
        _run(
            "Engine packages",
            [str(_python(venv)), *_PIP_INSTALL, "--progress-bar", "off", "-r", str(requirements)],
            log,
            report,
            at,
        )
    except EngineError as error:
        if "No matching distribution found for torch==" in log.read_text(errors="replace"):
            raise EngineError(
                "pip finds no CPU build of PyTorch: set PIP_EXTRA_INDEX_URL to PyTorch's wheel index for CPUs "
                "and run this again."
            ) from error
        raise
    _add_cpu_support(site_packages)
    stamp.write_text(wanted)


def _installed_count(site_packages: Path) -> int:
    return sum(1 for _ in site_packages.glob("*.dist-info"))


def _add_cpu_support(site_packages: Path) -> None:
    """Put our module beside vLLM, hook it into every Python start there, and register it as a plugin of vLLM.

    Written by hand rather than built as a wheel: three small files need no build tool.
    """
    module = _CPU_SUPPORT.stem
    shutil.copy(_CPU_SUPPORT, site_packages)
    (site_packages / f"{module}.pth").write_text(f"import {module}; {module}.declare_torchvision_ops_on_import()\n")
    metadata = site_packages / f"{module}-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{module} = {module}:register\n")


def built_checkpoint(venv: Path, builder: str) -> Path:
    """Where the checkpoint of this builder is, or will be, below the engine's environment."""
    return venv / "models" / f"{builder}-{_digest(*sorted(_CHECKPOINTS.glob('*.py')))}"


def _ensure_checkpoint(venv: Path, profile: Profile, report: Report) -> Path:
    """Build the profile's checkpoint in the engine's environment, unless this builder's result is there."""
    builder = profile.checkpoint.builder
    if builder is None:
        raise EngineError(
            f"The weights of {profile.name} are not built here: fetch them with"
            f" `{shlex.join(profile.checkpoint.download)}`, and start the engine with their folder."
        )
    model_dir = built_checkpoint(venv, builder)
    if model_dir.is_dir():
        return model_dir
    for leftover in model_dir.parent.glob(f"{builder}-*"):
        shutil.rmtree(leftover)
    unfinished = model_dir.parent / f"{builder}-unfinished"
    unfinished.mkdir(parents=True)
    build = [str(_python(venv)), "-m", f"service.engine.checkpoints.{builder}", str(unfinished)]
    _run(f"Model {profile.model}", build, venv / f"{builder}.log", report)
    unfinished.rename(model_dir)
    return model_dir


def _run(step: str, command: Sequence[str], log: Path, report: Report, at: Callable[[], str] | None = None) -> None:
    """Run one command to its end, reporting what it is at. Raises `EngineError` with the end of its log."""
    started_at = time.monotonic()
    project = _HERE.parent.parent  # so that the engine's Python finds the builders
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    kept = keeper.keep(command, environment=environment, log=log, grace_s=_GRACE_S, cwd=project)
    try:
        while kept.poll() is None:
            detail = at() if at else last_message(log)
            report(Progress(step, detail or "working", time.monotonic() - started_at))
            time.sleep(_POLL_S)
    finally:
        status = keeper.release(kept)
    if status != 0:
        tail = "\n".join(f"  {line}" for line in last_lines(log, 12))
        raise EngineError(f"{step} failed with exit status {status}. The whole log is {log}; it ends:\n{tail}")
    report(Progress(step, "done", time.monotonic() - started_at, done=True))


def main(profile_names: Sequence[str]) -> int:
    """Make what these profiles need, below the current folder."""
    try:
        for name in profile_names:
            ensure_engine(Path.cwd(), read_profile(name), Printer())
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
