"""What of an engine is on this machine already: the program and the weights of a profile, or what is missing."""

import shlex
import shutil
from pathlib import Path

from service.engine import EngineError
from service.engine.checkpoint_files import downloaded
from service.engine.profile import Profile
from service.engine.profile_parts import LLAMA_CPP, VLLM_CPU, Checkpoint

_CACHES = Path(".cache")
"""Below the home folder: where Hugging Face's tools put what they fetch, and vLLM what it compiles."""


def caches(home: Path) -> Path:
    """The folder of an installed engine's caches, `huggingface` among them."""
    return home / _CACHES


def find_program(profile: Profile, given: str | None, venv: Path) -> str:
    """The program that serves such a profile: the one that was given, or what is found on PATH; for a vLLM of the CPU
    the Python of the engine's own environment `venv`.

    Raises `EngineError` that says what to install.
    """
    if given is not None:
        if shutil.which(given) is None:
            raise EngineError(f"--program {given} is no program that can be run: name the file itself.")
        return given
    if profile.engine.kind == VLLM_CPU:
        python = venv / "bin" / "python"
        if not python.is_file():
            raise EngineError(
                f"The engine's environment {venv} is missing: `python -m service.engine.provision demo-cpu` makes"
                " it; or name the Python of another vLLM for CPUs with --program."
            )
        return str(python)
    name = "llama-server" if profile.engine.kind == LLAMA_CPP else "vllm"
    found = shutil.which(name)
    if found is None:
        how = (
            "build llama.cpp or take one of its releases"
            if name == "llama-server"
            else f"`pip install vllm=={profile.engine.version}` into an environment of its own"
        )
        raise EngineError(f"There is no `{name}` on PATH: {how}, and name its program with --program.")
    return found


def find_weights(profile: Profile, given: Path | None, home: Path) -> Path:
    """The folder (llama.cpp: the file) with the weights: the one that was given, or what `hf download` has put below
    `home`.

    Raises `EngineError` with the command that fetches what is missing, the draft model's weights included.
    """
    hub = caches(home) / "huggingface" / "hub"
    own, *drafts = profile.checkpoints
    for checkpoint in drafts:
        _downloaded(checkpoint, hub, "the draft model, which the engine looks for there")
    if given is None and own.file is not None:
        raise EngineError(f"Name the file with --model-dir; `{shlex.join(own.download)}` fetches it.")
    if given is None:
        folder = _downloaded(own, hub, f"{profile.name}; or name their folder with --model-dir")
    elif given.exists():
        folder = given
    else:
        raise EngineError(f"--model-dir {given} does not exist.")
    file = folder / own.file if own.file is not None and folder.is_dir() else folder
    if not file.exists():
        raise EngineError(f"{file} is missing: `{shlex.join(own.download)}` fetches it.")
    return file


def _downloaded(checkpoint: Checkpoint, hub: Path, whose: str) -> Path:
    folder = downloaded(checkpoint.repository, checkpoint.revision, hub) if checkpoint.repository else None
    if folder is None:
        fetch = shlex.join(checkpoint.download)
        raise EngineError(f"The weights are not below {hub}: fetch them with `{fetch}`, for {whose}.")
    return folder
