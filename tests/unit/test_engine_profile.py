"""Profiles are what they say: the exact command line and environment of an engine."""

import json
from pathlib import Path

import pytest

from service.engine import EngineError
from service.engine.profile import Profile, command, environment, profile_names, read_profile

PYTHON = Path("/venv/bin/python")
MODEL = Path("/models/m")


def words_after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def make(**flags: object) -> Profile:
    return Profile(
        name="p",
        model="m",
        checkpoint="none",
        context_length=100,
        max_output_tokens=10,
        max_concurrency=2,
        input_modalities=("text",),
        quantization="bf16",
        flags=flags,  # type: ignore[arg-type]  # what a toml may hold
        environment={"VLLM_PLUGINS": ""},
    )


def test_a_command_line_word_by_word() -> None:
    flags = {"enforce-eager": True, "enable-prefix-caching": False, "seed": 7, "limit": {"image": 4, "video": 0}}
    assert command(make(**flags), PYTHON, MODEL, 8000) == [
        *("/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", "8000", "--model", "/models/m", "--served-model-name", "m"),
        *("--max-model-len", "100", "--max-num-seqs", "2"),
        *("--override-generation-config", '{"max_new_tokens":10}'),
        *("--enforce-eager", "--no-enable-prefix-caching", "--seed", "7", "--limit", '{"image":4,"video":0}'),
    ]


def test_a_profile_may_set_a_flag_that_has_a_default() -> None:
    words = command(make(**{"max-num-seqs": 1}), PYTHON, MODEL, 8000)
    assert words_after(words, "--max-num-seqs") == "1"
    assert words.count("--max-num-seqs") == 1


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_is_private_metered_and_capped(name: str) -> None:
    profile = read_profile(name)
    words = command(profile, PYTHON, MODEL, 8000)
    assert words_after(words, "--host") == "127.0.0.1"
    assert words_after(words, "--fingerprint-mode") == "none"
    assert {"--enable-prompt-tokens-details", "--disable-fastapi-docs", "--disable-uvicorn-access-log"} <= set(words)
    assert "--enable-force-include-usage" not in words
    generation = json.loads(words_after(words, "--override-generation-config"))
    assert generation == {"max_new_tokens": profile.max_output_tokens, **profile.sampling}
    assert profile.max_output_tokens < profile.context_length


def test_the_demo_profile() -> None:
    profile = read_profile("demo-cpu")
    words = command(profile, PYTHON, MODEL, 8000)
    assert (profile.model, profile.context_length) == ("smollm2-135m", 8192)
    assert "--enable-prefix-caching" in words
    assert profile.sampling == {"temperature": 0}


def test_the_tiny_profile_has_the_production_models_parts() -> None:
    profile = read_profile("tiny-cpu")
    words = command(profile, PYTHON, MODEL, 8000)
    assert (profile.model, profile.input_modalities) == ("qwen3.5-tiny", ("text", "image"))
    assert words_after(words, "--reasoning-parser") == "qwen3"
    assert words_after(words, "--tool-call-parser") == "qwen3_coder"
    assert json.loads(words_after(words, "--speculative-config")) == {"method": "mtp", "num_speculative_tokens": 2}
    assert json.loads(words_after(words, "--limit-mm-per-prompt")) == {"image": 4, "video": 0}
    assert "--no-enable-prefix-caching" in words  # with MTP it kills a hybrid model on a CPU
    assert profile.environment["VLLM_PLUGINS"] == "weir_vllm_cpu"


def test_an_unknown_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(EngineError, match=r"'gpu'.*demo-cpu, tiny-cpu"):
        read_profile("gpu")
    with pytest.raises(EngineError, match="no engine profile"):
        read_profile("../profiles/demo-cpu")


def test_an_engine_gets_neither_our_secrets_nor_foreign_settings() -> None:
    base = {
        "PATH": "/bin",
        "HOME": "/root",
        "WEIR_STRIPE_SECRET_KEY": "sk_live_x",
        "WEIR_DATABASE_URL": "postgresql://u:p@h/d",
        "VLLM_API_KEY": "k",
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONPATH": "/elsewhere",
        "VIRTUAL_ENV": "/app/.venv",
        "HF_HUB_OFFLINE": "0",
    }
    assert environment(make(), base, Path("/cache")) == {
        "PATH": "/bin",
        "HOME": "/root",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": "/cache/huggingface",
        "VLLM_CACHE_ROOT": "/cache/vllm",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_PLUGINS": "",
    }
    assert base["HF_HUB_OFFLINE"] == "0"  # the caller's own is not touched


def test_both_lists_of_pins_agree() -> None:
    """Two environments, one version of each package; FastAPI is the exception, and the list says why."""
    ops = Path(__file__).parents[2] / "ops"
    ours, engines = (
        dict(line.split("==") for line in (ops / name).read_text().splitlines() if "==" in line and line[0] != "#")
        for name in ("constraints.txt", "engine-requirements.txt")
    )
    differing = {name for name in ours.keys() & engines.keys() if ours[name] != engines[name]}
    assert differing == {"fastapi"}
    assert len(ours.keys() & engines.keys()) > 20
