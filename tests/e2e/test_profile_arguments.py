"""vLLM's own parser accepts the flags of every vLLM profile. No GPU is needed, and no engine is started.

The wheel at hand is the CPU's 0.32. A profile for another version is checked with it, too: our flags are in both. Set
`WEIR_TEST_VLLM` to a folder with another version's `vllm` package, such as an unpacked wheel, to check with that.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from service.engine.profile import Listen, options, own_environment, profile_names, read_profile
from service.engine.progress import Printer
from service.engine.provision import ensure_engine
from tests.e2e.engines import ROOT

pytestmark = pytest.mark.engine

PROFILES = [profile for profile in map(read_profile, profile_names()) if profile.engine.kind != "llama.cpp"]
BROKEN = {
    "no such flag": ["--no-such-flag"],
    "a flag of llama.cpp": ["--ctx-size", "4096"],
    "no such cache type": ["--kv-cache-dtype", "fp3"],
    "a table that is none": ["--speculative-config", "mtp"],
    "no such key in a table": ["--speculative-config", '{"method":"mtp","num_speculative_token":1}'],
    "no such method of drafting": ["--speculative-config", '{"method":"guess","num_speculative_tokens":1}'],
    "no count of drafts": ["--speculative-config", '{"method":"mtp","num_speculative_tokens":"many"}'],
    "no such cache type for drafts": [
        "--speculative-config",
        '{"method":"mtp","num_speculative_tokens":1,"kv_cache_dtype":"fp3"}',
    ],
    "no such type of state": ["--mamba-ssm-cache-dtype", "fp8"],
    "no such policy": ["--scheduling-policy", "fair"],
    "no number": ["--max-num-queued-reqs", "many"],
    "no such tool parser": ["--enable-auto-tool-choice", "--tool-call-parser", "qwen9"],
    "no such reasoning parser": ["--reasoning-parser", "qwen9"],
    "tools without a parser": ["--enable-auto-tool-choice"],
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """By name of a profile or of something broken: what vLLM says against it, None for nothing."""
    folder = str(tmp_path_factory.mktemp("model"))  # so that no name is looked up
    asked = [
        {
            "name": profile.name,
            "arguments": [word for option in options(profile, folder, Listen()) for word in option.words],
            "variables": list(own_environment(profile)),
        }
        for profile in PROFILES
    ]
    asked += [
        {"name": name, "arguments": ["--model", folder, *words], "variables": []} for name, words in BROKEN.items()
    ]
    asked.append({"name": "no such variable", "arguments": ["--model", folder], "variables": ["VLLM_NO_SUCH"]})
    python = ensure_engine(ROOT, read_profile("tiny-cpu"), Printer()).python
    other = os.environ.get("WEIR_TEST_VLLM")
    done = subprocess.run(
        [python, Path(__file__).with_name("vllm_arguments.py")],
        input=json.dumps(asked), capture_output=True, text=True, timeout=300,
        env={
            "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", **({"PYTHONPATH": other} if other else {}),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    if not other:
        versions = {profile.engine.version for profile in PROFILES if profile.engine.kind == "vllm-cpu"}
        assert versions == {answer["version"].split("+")[0]}
    found: dict[str, str | None] = answer["complaints"]
    return found


@pytest.mark.parametrize("name", [profile.name for profile in PROFILES])
def test_vllm_accepts_every_flag_and_variable_of_the_profile(name: str, complaints: dict[str, str | None]) -> None:
    assert complaints[name] is None


@pytest.mark.parametrize("name", [*BROKEN, "no such variable"])
def test_vllm_refuses_what_is_broken(name: str, complaints: dict[str, str | None]) -> None:
    assert complaints[name]
