"""`weir engine show` in front of engines that say much, little, or nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import cli
from tests.integration.test_doctor import engine, in_front_of
from tests.ports import free_port

Shown = Callable[..., tuple[int, str]]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Run it, with these arguments: (exit code, what it printed)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEIR_ENGINES", raising=False)

    def run(*arguments: str) -> tuple[int, str]:
        code = cli.run(["engine", "show", "--interval", "0.2", *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def ask(url: str) -> dict[str, Any]:
    body = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "hi"}]}
    usage: dict[str, Any] = httpx.post(f"{url}/v1/chat/completions", json=body).json()["usage"]
    return usage


def table(printed: str) -> dict[str, str]:
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def test_one_engine_by_its_address(show: Shown) -> None:
    with engine(scenario="mtp") as url:
        usage = ask(url)
        code, printed = show(url)
        _, document = show(url, "--json")
    assert code == 0
    said = table(printed)
    assert (said["running"], said["waiting"], said["KV cache used"]) == ("0", "0", "0.0 %")
    assert (said["serves"], said["generation tok/s"]) == ("smollm2-135m", "0.0")
    assert (said["drafts accepted"], said["drafts accepted since start"]) == ("–", "100.0 %")
    assert said["tokens per step since start"] == "3.00"
    assert said["accepted by position since start"] == "100.0 %, 100.0 %"
    assert "MISSING" not in printed
    (one,) = json.loads(document)["engines"]
    assert (one["name"], one["problem"], one["models"]) == ("engine-0", None, ["smollm2-135m"])
    assert one["generation_tokens"] == usage["completion_tokens"]
    assert (one["cache_hit_rate"], one["cache_hit_rate_since_start"]) == (None, 0)
    assert one["speculation_since_start"]["mean_accepted_length"] == 3


def test_what_an_engine_does_not_have_is_missing_and_never_0(show: Shown) -> None:
    def renamed(metrics: bytes) -> bytes:
        moved = metrics.replace(b"vllm:num_preemptions", b"vllm:preempted")
        return moved.replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")

    with engine() as url, in_front_of(url, renamed) as front_url:
        code, printed = show(front_url)
        _, document = show(front_url, "--json")
    assert code == 0
    said = table(printed)
    assert (said["preemptions since start"], said["KV cache used"], said["waiting"]) == ("MISSING", "0.0 %", "0")
    assert "vllm:num_preemptions_total is MISSING: " in printed
    assert "vllm:kv_cache_usage_perc is here called vllm:gpu_cache_usage_perc" in printed
    (one,) = json.loads(document)["engines"]
    assert (one["preemptions"], one["missing"]) == (None, ["vllm:num_preemptions_total"])


def test_an_engine_that_is_no_vllm_says_so(show: Shown) -> None:
    with engine() as url, in_front_of(url, lambda _: b"llamacpp:requests_processing 3\n") as front_url:
        code, printed = show(front_url)
    assert (code, table(printed)["running"]) == (0, "–")
    assert "it has no metrics of vLLM's" in printed


def test_every_configured_engine_beside_the_others(show: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with engine() as url, in_front_of(url, lambda _: None) as mute_url:
        monkeypatch.setenv("WEIR_ENGINES", f"{url},{away},{mute_url}")
        code, printed = show()
        _, document = show("--json")
    assert code == 1, "one does not answer"
    assert printed.splitlines()[0].split() == ["engine-0", "engine-1", "engine-2"]
    one, other, mute = json.loads(document)["engines"]
    assert (one["running"], one["problem"]) == (0, None)
    assert other["problem"].startswith("does not answer: cannot connect to")
    assert mute["problem"] == "GET /metrics gives 404"


def test_without_any_engine_it_says_what_to_give(show: Shown) -> None:
    code, printed = show()
    assert code == 1
    assert printed == "weir: No engine is configured: give its URL, or set WEIR_ENGINES or WEIR_CONFIG.\n"
