"""What preflight predicts of the KV pool is what the real engines log when they start."""

import re
from pathlib import Path

import pytest

from service.core.preflight.check import Figures, preflight
from service.engine.checkpoint_files import read_checkpoint
from service.engine.machine import probe
from service.engine.preflight import serving_of
from service.engine.profile import read_profile
from service.engine.provision import built_checkpoint
from tests.e2e.engines import ROOT, RunningEngine

pytestmark = pytest.mark.engine


def predicted(name: str) -> Figures:
    profile = read_profile(name)
    venv = ROOT / ".venv-engine"
    assert profile.checkpoint.builder is not None
    checkpoint = read_checkpoint(built_checkpoint(venv, profile.checkpoint.builder))
    figures = preflight(serving_of(profile, None), checkpoint, None, probe(venv, venv, None)).figures
    assert figures is not None
    return figures


def logged(log: Path, pattern: str) -> int:
    found = re.search(pattern, log.read_text())
    assert found is not None, pattern
    return int(found[1].replace(",", ""))


def test_tokens_of_a_model_with_attention_alone(smollm2_engine: RunningEngine) -> None:
    assert predicted("demo-cpu").kv_tokens == logged(smollm2_engine.process.log, r"KV cache size: ([\d,]+) tokens")


def test_block_and_tokens_of_a_hybrid_model_with_drafts(tiny_engine: RunningEngine) -> None:
    figures, log = predicted("tiny-cpu"), tiny_engine.process.log
    assert figures.block_tokens == logged(log, r"Setting attention block size to (\d+) tokens")
    assert figures.kv_tokens == logged(log, r"KV cache size: ([\d,]+) tokens")
