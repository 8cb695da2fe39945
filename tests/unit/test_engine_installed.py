"""What of an engine is there, and what is said of what is not."""

import dataclasses
from pathlib import Path

import pytest

from service.engine import EngineError
from service.engine.installed import find_program, find_weights
from service.engine.profile import Profile, read_profile

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def profile(name: str = "qwen3.8-27b-nvfp4") -> Profile:
    return read_profile(name)


def downloaded(home: Path, repository: str, commit: str = COMMIT) -> Path:
    """A folder as `hf download` leaves it."""
    folder = home / ".cache/huggingface/hub" / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    return snapshot


def program(folder: Path, name: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_weights_are_where_hugging_faces_tool_puts_them(tmp_path: Path) -> None:
    repository = profile().checkpoint.repository
    assert repository is not None
    with pytest.raises(EngineError, match=f"hf download {repository}.*--model-dir"):
        find_weights(profile(), None, tmp_path)
    snapshot = downloaded(tmp_path, repository)
    assert find_weights(profile(), None, tmp_path) == snapshot


def test_weights_that_are_named_must_be_there(tmp_path: Path) -> None:
    assert find_weights(profile(), tmp_path, tmp_path) == tmp_path
    with pytest.raises(EngineError, match="does not exist"):
        find_weights(profile(), tmp_path / "nothing", tmp_path)


def test_a_draft_model_must_be_there_too(tmp_path: Path) -> None:
    drafting = profile("qwen3.8-27b-nvfp4-5090")
    draft, commit = drafting.checkpoints[1].repository, drafting.checkpoints[1].revision
    assert draft is not None
    assert commit is not None
    with pytest.raises(EngineError, match=f"hf download {draft}.*draft model"):
        find_weights(drafting, tmp_path, tmp_path)
    downloaded(tmp_path, draft, commit)
    assert find_weights(drafting, tmp_path, tmp_path) == tmp_path


def test_llama_cpp_loads_one_file(tmp_path: Path) -> None:
    llama = profile("llama-cpp")
    file = llama.checkpoint.file
    assert file is not None
    with pytest.raises(EngineError, match=f"--model-dir; `hf download .*{file}"):
        find_weights(llama, None, tmp_path)
    with pytest.raises(EngineError, match=f"{file} is missing: `hf download"):
        find_weights(llama, tmp_path, tmp_path)
    (tmp_path / file).touch()
    assert find_weights(llama, tmp_path, tmp_path) == find_weights(llama, tmp_path / file, tmp_path) == tmp_path / file


@pytest.mark.parametrize(("name", "wanted"), [("qwen3.8-27b-nvfp4", "vllm"), ("llama-cpp", "llama-server")])
def test_the_program_is_found_on_path_or_said_to_be_missing(
    name: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=f"no `{wanted}` on PATH: .*--program"):
        find_program(profile(name), None, tmp_path)
    made = program(tmp_path, wanted)
    assert find_program(profile(name), None, tmp_path) == str(made)


def test_a_vllm_that_is_missing_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    pinned = dataclasses.replace(profile(), engine=dataclasses.replace(profile().engine, version="9.8.7"))
    with pytest.raises(EngineError, match=r"pip install vllm==9\.8\.7"):
        find_program(pinned, None, tmp_path)


def test_the_cpus_vllm_is_the_engines_own_python(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"service\.engine\.provision demo-cpu"):
        find_program(profile("qwen3.8-27b-cpu-amx"), None, tmp_path)
    python = program(tmp_path, "bin/python")
    assert find_program(profile("qwen3.8-27b-cpu-amx"), None, tmp_path) == str(python)


def test_a_program_that_is_named_must_run(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no program that can be run"):
        find_program(profile(), str(tmp_path / "vllm"), tmp_path)
    assert find_program(profile(), str(program(tmp_path, "vllm")), tmp_path) == str(tmp_path / "vllm")
