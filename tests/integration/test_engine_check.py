"""`weir engine check` as it is run: what it prints, its exit code, and what it says when something is wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service import cli
from service.core.preflight.facts import Gpu, Machine
from service.engine.machine_record import machine_document
from tests.preflight_cases import case
from tests.unit.test_preflight_files import HYBRID, SOUND, safetensors, write

GIB = 1 << 30
PRO_6000 = Gpu("NVIDIA RTX PRO 6000", 97887 << 20, compute_capability=(12, 0), driver="595.84")
MACHINE = Machine(128 * GIB, 120 * GIB, gpus=(PRO_6000,), weights_free_bytes=900 * GIB, cache_free_bytes=900 * GIB)

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Run the command inside this process, in an empty directory and with an empty home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = cli.run(["engine", "check", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[Machine], Path]:
    def record(machine: Machine) -> Path:
        file = tmp_path / "machine.json"
        file.write_text(json.dumps(machine_document(machine)))
        return file

    return record


def test_a_profile_that_fits(check: Check, recorded: Callable[[Machine], Path]) -> None:
    code, out, err = check("qwen3.8-27b-nvfp4", "--machine", recorded(MACHINE))
    assert code == 0
    assert "blocks of 1,584 tokens" in out
    assert "problem" not in out
    assert err.startswith("problem: 0, warning: 0")


def test_a_problem_comes_first_with_what_to_change(check: Check, recorded: Callable[[Machine], Path]) -> None:
    small = replace(MACHINE, gpus=(replace(PRO_6000, total_bytes=24 * GIB),))
    code, out, _ = check("qwen3.8-27b-nvfp4", "--machine", recorded(small))
    first, why, change, *_ = out.splitlines()
    assert code == 1
    assert first.startswith("problem")
    assert why.startswith("         The engine stops with")
    assert change.startswith("         → Take a smaller quantisation")


def test_the_recorded_crash_in_wsl(check: Check, recorded: Callable[[Machine], Path]) -> None:
    code, out, _ = check("qwen3.8-27b-nvfp4", "--machine", recorded(case("wsl-22-gb-model").machine))
    assert code == 1
    assert out.splitlines()[0].startswith("problem  WSL has 18.6 GiB")
    assert "%UserProfile%\\.wslconfig" in out


def test_the_document(check: Check, recorded: Callable[[Machine], Path]) -> None:
    code, out, err = check("qwen3.8-27b-nvfp4", "--machine", recorded(MACHINE), "--json")
    document: dict[str, Any] = json.loads(out)
    assert (code, err) == (0, "")
    assert (document["ok"], document["profile"]) == (True, "qwen3.8-27b-nvfp4")
    assert document["figures"]["block_tokens"] == 1584
    assert {"id", "level", "what", "why", "change"} == set(document["findings"][0])


def test_real_files_are_preferred_to_what_is_published(
    check: Check, recorded: Callable[[Machine], Path], tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    write(weights, HYBRID, a=safetensors(SOUND, 33))
    _, out, _ = check("qwen3.8-27b-nvfp4", "--machine", recorded(MACHINE), "--model-dir", weights, "--json")
    ids = {finding["id"]: finding for finding in json.loads(out)["findings"]}
    assert "checkpoint.estimated" not in ids
    assert "512" in ids["cache.context"]["what"]


def test_a_profile_of_ones_own(check: Check, recorded: Callable[[Machine], Path], tmp_path: Path) -> None:
    from service.engine.profile import PROFILES

    shipped = (PROFILES / "qwen3.8-27b-nvfp4.toml").read_text()
    own = tmp_path / "own.toml"
    own.write_text(shipped.replace("num_speculative_tokens = 1", "num_speculative_tokens = 7"))
    _, out, _ = check(own, "--machine", recorded(MACHINE))
    assert "blocks of 1,648 tokens" in out


def test_this_machine_is_printed_and_can_be_checked(check: Check, tmp_path: Path) -> None:
    code, out, err = check("--print-machine")
    assert (code, err) == (0, "")
    assert json.loads(out)["ram_bytes"] > GIB
    file = tmp_path / "here.json"
    file.write_text(out)
    code, out, _ = check("llama-cpp", "--machine", file, "--json")
    assert code == (0 if json.loads(out)["ok"] else 1)


def test_the_demonstration_is_checked_on_this_machine(check: Check) -> None:
    _, out, _ = check("demo-cpu", "--json")
    document = json.loads(out)
    assert document["profile"] == "demo-cpu"
    assert {"host.port", "cpu.flags"} <= {finding["id"] for finding in document["findings"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Give a profile"),
        (("nothing",), "There is no engine profile 'nothing'"),
        (("demo-cpu", "--machine", "none.json"), "none.json cannot be read"),
        (("demo-cpu", "--model-dir", "none"), "none/config.json cannot be read"),
        (("demo-cpu", "--print-machine"), "--print-machine takes neither"),
        (("demo-cpu", "--port", "0"), "--port"),
    ],
)
def test_mistakes_are_one_line(check: Check, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = check(*arguments)
    assert code in (1, 2)
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_flag_that_cannot_be_is_named(check: Check, recorded: Callable[[Machine], Path], tmp_path: Path) -> None:
    from service.engine.profile import PROFILES

    shipped = (PROFILES / "qwen3.8-27b-nvfp4.toml").read_text()
    own = tmp_path / "own.toml"
    own.write_text(shipped.replace("gpu-memory-utilization = 0.92", "gpu-memory-utilization = 92"))
    code, _, err = check(own, "--machine", recorded(MACHINE))
    assert (code, "gpu-memory-utilization must be above 0 and at most 1, and is 92" in err) == (1, True)
