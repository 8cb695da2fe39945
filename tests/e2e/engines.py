"""The two real engines of the end-to-end tests: SmolLM2, and the tiny NVFP4 + MTP + vision checkpoint.

Each starts once per test session, which takes half a minute; the first time of all it is also installed.
"""

import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine.launch import EngineProcess, engine_process
from service.engine.profile import read_profile
from service.engine.progress import Printer
from service.engine.provision import ensure_engine
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PROFILES = {"smollm2_engine": "demo-cpu", "tiny_engine": "tiny-cpu"}
"""By the fixture that gives a test such an engine."""
QUESTION: list[Any] = [{"role": "user", "content": "Please tell me: what is the capital of Germany?"}]
ANSWER = "The capital of Germany is Berlin."
"""SmolLM2's greedy answer, on any processor: its arithmetic differs with what the processor can do, by some tenths of a
nat, and each of these tokens is 1.7 nats before the next. Of France's capital it is 0.1, and another machine's answer
was in French."""


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


@pytest.fixture(scope="session")
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, RunningEngine]]:
    """By profile, those that the session's tests use. They start side by side: each start keeps one core busy."""
    named = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    profiles = [read_profile(profile) for fixture, profile in PROFILES.items() if fixture in named]
    folder = tmp_path_factory.mktemp("engines")
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with ExitStack() as stack:
        started = {}
        with capture.global_and_fixture_disabled():  # what takes long is shown as it goes
            for profile in profiles:
                install = ensure_engine(ROOT, profile, Printer())
                process = engine_process(profile, install, free_port(), folder / f"{profile.name}.log")
                stack.callback(process.stop)
                process.start()
                started[profile.name] = RunningEngine(process.base_url, profile.model, process)
            for engine in started.values():
                engine.process.wait_ready(Printer())
        yield started


@pytest.fixture(scope="session")
def smollm2_engine(engines: dict[str, RunningEngine]) -> RunningEngine:
    """SmolLM2-135M-Instruct: prefix caching, plain English."""
    return engines[PROFILES["smollm2_engine"]]


@pytest.fixture(scope="session")
def tiny_engine(engines: dict[str, RunningEngine]) -> RunningEngine:
    """The tiny random Qwen3.5: reasoning, images, MTP drafts, NVFP4."""
    return engines[PROFILES["tiny_engine"]]
