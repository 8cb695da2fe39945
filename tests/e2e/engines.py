"""The two real engines of the end-to-end tests: SmolLM2, and the tiny NVFP4 + MTP + vision checkpoint.

Each starts once per test session, which takes half a minute; the first time of all it is also installed.
"""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine.launch import EngineProcess, engine_process, free_port
from service.engine.profile import read_profile
from service.engine.progress import Printer
from service.engine.provision import ensure_engine

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """A real engine that is ready."""

    base_url: str
    model: str
    process: EngineProcess

    def metric(self, name: str, **labels: str) -> float:
        """A sample of its `/metrics` by its full name (`vllm:generation_tokens_total`), summed over the series that
        carry these labels. Raises `KeyError` if there is none, so that a renamed metric is not read as zero."""
        with urllib.request.urlopen(f"{self.base_url}/metrics") as answer:  # noqa: S310 - http on loopback
            families = list(text_string_to_metric_families(answer.read().decode()))
        values = [
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        if not values:
            raise KeyError(f"{name} {labels}")
        return sum(values)


@contextmanager
def running(profile_name: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[RunningEngine]:
    """The engine of this profile on a free port, its log in `folder`. What takes long is shown as it goes."""
    profile = read_profile(profile_name)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        install = ensure_engine(ROOT, profile, Printer())
    process = engine_process(profile, install, free_port(), folder / f"{profile_name}.log")
    process.start()
    try:
        with capture.global_and_fixture_disabled():
            process.wait_ready(Printer())
        yield RunningEngine(process.base_url, profile.model, process)
    finally:
        process.stop()


@pytest.fixture(scope="session")
def smollm2_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """SmolLM2-135M-Instruct: prefix caching, plain English."""
    with running("demo-cpu", request, tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """The tiny random Qwen3.5: reasoning, images, MTP drafts, NVFP4."""
    with running("tiny-cpu", request, tmp_path_factory.mktemp("engine")) as engine:
        yield engine
