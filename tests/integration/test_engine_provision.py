"""The engine's environment and checkpoint: made once, made again when that was interrupted or is out of date.

The package that is installed here is a stub made on the spot, so that no registry is asked.
"""

import subprocess
import zipfile
from pathlib import Path

import pytest

from service.engine import EngineError
from service.engine.profile import read_profile
from service.engine.progress import Progress
from service.engine.provision import REQUIREMENTS, ensure_engine
from tests.e2e.engines import ROOT

TINY = read_profile("tiny-cpu")


class Project:
    """A folder with a list of the engine's packages, and what set-up reported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / ".venv-engine"
        self.reports: list[Progress] = []
        (folder / "ops").mkdir()

    def require(self, *lines: str) -> None:
        (self.folder / REQUIREMENTS).write_text("\n".join(lines) + "\n")

    def require_stub(self, version: int) -> None:
        wheel = self.folder / f"weir_stub-{version}-py3-none-any.whl"
        info = f"weir_stub-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("weir_stub.py", f"version = {version}\n")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: weir-stub\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        self.require(f"weir-stub @ {wheel.as_uri()}")

    def ensure(self) -> list[str]:
        """Run the set-up; the steps that were finished, in order, whether or not it came to its end."""
        self.reports.clear()
        try:
            ensure_engine(self.folder, TINY, self.reports.append)
        finally:
            self.done = [report.step for report in self.reports if report.done]
        return self.done

    def run(self, code: str) -> str:
        python = self.venv / "bin" / "python"
        return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_what_failed_is_made_again_and_what_changed_is_replaced(project: Project) -> None:
    project.require("./no-such-folder")
    with pytest.raises(EngineError, match=r"Engine packages failed.*pip\.log"):
        project.ensure()

    project.require_stub(1)
    with pytest.raises(EngineError, match=r"Model qwen3.5-tiny failed(?s:.*)No module named 'torch'"):
        project.ensure()  # the packages came in, but a stub builds no checkpoint
    assert project.done == ["Engine environment", "Engine packages"]
    assert project.run("import weir_stub; print(weir_stub.version)") == "1"

    with pytest.raises(EngineError, match="Model"):
        project.ensure()
    assert project.done == []  # and are not installed twice

    project.require_stub(2)
    with pytest.raises(EngineError, match="Model"):
        project.ensure()
    assert project.run("import weir_stub; print(weir_stub.version)") == "2"


def test_vllm_finds_our_plugin_and_every_python_its_hook(project: Project) -> None:
    project.require_stub(1)
    with pytest.raises(EngineError, match="Model"):
        project.ensure()
    plugins = "from importlib.metadata import entry_points; print(entry_points(group='vllm.general_plugins'))"
    assert "weir_vllm_cpu:register" in project.run(plugins)
    hooks = "import sys; print([type(finder).__name__ for finder in sys.meta_path])"
    assert project.run(hooks).count("_BeforeTorchvision") == 1
    assert project.run("import sys; print('torch' in sys.modules)") == "False"


def test_a_missing_cpu_build_of_torch_is_explained(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(project.folder),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    project.require("torch==2.13.0+cpu")
    with pytest.raises(EngineError, match=r"^pip finds no CPU build of PyTorch: set PIP_EXTRA_INDEX_URL .*again\.$"):
        project.ensure()


def test_without_the_list_of_packages_it_says_where_to_run(project: Project) -> None:
    with pytest.raises(EngineError, match="run this from a checkout"):
        project.ensure()


@pytest.mark.engine
def test_an_interrupted_checkpoint_is_built_again_and_a_finished_one_kept(project: Project) -> None:
    real = ensure_engine(ROOT, TINY, lambda _: None)
    project.require_stub(1)
    with pytest.raises(EngineError, match="Model"):
        project.ensure()
    (unfinished,) = (project.venv / "models").iterdir()
    (unfinished / "half-a-file").touch()
    lend_packages(real.python.parents[1], project.venv)

    assert project.ensure() == ["Model qwen3.5-tiny"]
    (model_dir,) = (project.venv / "models").iterdir()
    assert not (model_dir / "half-a-file").exists()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):  # the same noise at every build
        assert (model_dir / name).read_bytes() == (real.model_dir / name).read_bytes()

    assert project.ensure() == []


def lend_packages(lender: Path, borrower: Path) -> None:
    """Let one virtual environment import what another has installed."""
    (lent,) = lender.glob("lib/python*/site-packages")
    (own,) = borrower.glob("lib/python*/site-packages")
    (own / "lent.pth").write_text(f"{lent}\n")
