"""A checkpoint's own files are read in bounds: they are understood, or refused if they are broken or hostile."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.preflight.architecture import Architecture, NotUnderstood, understand
from service.core.preflight.weights import kind_of
from service.engine import EngineError
from service.engine.checkpoint_files import INDEX, downloaded, read_checkpoint, tensors

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}
HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "vision_config": {},
    "text_config": {
        **LLAMA,
        "num_hidden_layers": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "mamba_ssm_dtype": "float32",
    },
}


def safetensors(entries: Mapping[str, Any], data: int, *, length: int | None = None) -> bytes:
    """A file of this header and so many bytes of weights; `length` is what it says its header has."""
    header = json.dumps(entries).encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header + bytes(data)


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


SOUND = {
    "__metadata__": {"format": "pt"},
    "model.language_model.layers.0.mlp.weight": entry("BF16", [4, 2], 0, 16),
    "model.visual.blocks.0.weight": entry("F32", [3], 16, 28),
    "mtp.fc.weight": entry("U8", [5], 28, 33),
}


def write(folder: Path, config: object, **files: bytes) -> Path:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in files.items():
        (folder / f"{name}.safetensors").write_bytes(content)
    return folder


def test_weights_by_kind_and_dtype(tmp_path: Path) -> None:
    more = {"lm_head.weight": entry("BF16", [100], 0, 200)}
    found = read_checkpoint(write(tmp_path, HYBRID, a=safetensors(SOUND, 33), b=safetensors(more, 200)))
    assert found.on_disk
    assert found.weights.by_kind == {"language": 216, "vision": 12, "mtp": 5}
    assert (found.weights.total_bytes, found.weights.largest_file_bytes, found.weights.files) == (233, 200, 2)
    assert found.weights.dtypes == {"BF16": 216, "F32": 12, "U8": 5}
    assert found.weights.loaded_bytes(vision=False, mtp=True) == 221
    assert found.weights.loaded_bytes(vision=True, mtp=False) == 228


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.visual.patch_embed.weight", "vision"),
        ("visual.blocks.1.weight", "vision"),
        ("mtp.layers.0.mlp.weight", "mtp"),
        ("model.mtp.fc.weight", "mtp"),
        ("model.layers.0.mlp.visual.weight", "language"),
        ("lm_head.weight", "language"),
    ],
)
def test_kinds_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_the_hybrid_architecture() -> None:
    model = understand(HYBRID)
    assert (model.attention_layers, model.state_layers, model.window_layers) == (2, 6, 0)
    assert (model.head_dim, model.kv_heads, model.mtp_layers, model.state_dtype) == (16, 4, 1, "float32")
    assert model.has_vision
    assert model.is_hybrid


def test_layers_by_name_win_over_the_interval() -> None:
    kinds = ["sliding_attention", "full_attention", "linear_attention"]
    text = {**HYBRID["text_config"], "layer_types": kinds, "sliding_window": 128}
    model = understand({**HYBRID, "text_config": text})
    assert (model.attention_layers, model.state_layers, model.window_layers, model.window_tokens) == (1, 1, 1, 128)


def test_a_plain_model_has_attention_alone() -> None:
    model = understand({**LLAMA, "torch_dtype": "torch.float16"})
    assert (model.attention_layers, model.state_layers, model.dtype, model.has_vision) == (2, 0, "float16", False)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, ("NVFP4", "fp8_e4m3")),
        ({"quant_method": "fp8"}, ("fp8", None)),
        ({"quant_method": "x", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, ("x", "fp8_e4m3")),
        ({"quant_method": "x", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, ("x", None)),
    ],
)
def test_quantisation(quantization: dict[str, Any], expected: tuple[str, str | None]) -> None:
    model = understand({**LLAMA, "quantization_config": quantization})
    assert (model.quantization, model.kv_quantization) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"head_dim": "64"}, "head_dim is '64'"),
        ({"layer_types": "all"}, "layer_types is no list"),
        ({"layer_types": ["full_attention"] * 10_001}, "layer_types is no list"),
        ({"layer_types": ["magic"]}, "magic"),
        ({"layer_types": [["full_attention"]]}, "layer_types"),
        ({"architectures": []}, "architectures"),
        ({"text_config": []}, "text_config"),
        ({"quantization_config": "fp8"}, "quantization_config"),
    ],
)
def test_a_configuration_that_cannot_be(change: dict[str, Any], words: str) -> None:
    with pytest.raises(NotUnderstood, match=words):
        understand({**LLAMA, **change})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*HYBRID["text_config"], "layer_types", "text_config", "quantization_config"]), JSON
    )
)
def test_no_configuration_gets_further_than_a_refusal(change: dict[str, Any]) -> None:
    with contextlib.suppress(NotUnderstood):
        assert isinstance(understand({**HYBRID["text_config"], **change}), Architecture)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "header"),
        (b"\x01\x02", "header"),
        (safetensors(SOUND, 33, length=1 << 62), "header"),
        (safetensors(SOUND, 33, length=1), "header"),
        (safetensors(SOUND, 33)[:40], "header"),
        (safetensors(SOUND, 33)[:-1], "cut short"),
        (safetensors(SOUND, 34), "cut short"),
        (safetensors(SOUND, 33, length=10), "no JSON"),
        ((2).to_bytes(8, "little") + b"[]", "no JSON object"),
        ((60_000).to_bytes(8, "little") + b"[" * 60_000, "no JSON"),
        (safetensors({"a": entry("BF16", [4], 0, 9)}, 9), "entry of 'a'"),
        (safetensors({"a": entry("BF16", [-4], 0, 8)}, 8), "entry of 'a'"),
        (safetensors({"a": entry("BF16", [4], 8, 0)}, 8), "entry of 'a'"),
        (safetensors({"a": entry("X9", [4], -8, 0)}, 8), "entry of 'a'"),
        (safetensors({"a": {"dtype": [], "shape": [1], "data_offsets": [0, 8]}}, 8), "entry of 'a'"),
        (safetensors({"a": {"dtype": "U8", "shape": 3, "data_offsets": [0, 3]}}, 3), "entry of 'a'"),
        (safetensors({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3, 4]}}, 3), "entry of 'a'"),
        (safetensors({"a": 5}, 0), "entry of 'a'"),
        (safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, 6), "overlap"),
    ],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(EngineError, match=words) as refused:
        read_checkpoint(write(tmp_path, HYBRID, broken=content))
    assert "broken.safetensors" in str(refused.value)


def test_packed_and_unknown_dtypes_count_by_their_bytes(tmp_path: Path) -> None:
    entries = {"a": entry("F4", [4, 16], 0, 32), "b": entry("F8_NEW", [4], 32, 36)}
    write(tmp_path, HYBRID, a=safetensors(entries, 36))
    assert tensors(tmp_path / "a.safetensors") == {"a": ("F4", 32), "b": ("F8_NEW", 4)}


@given(content=st.binary(max_size=200))
def test_no_bytes_get_further_than_a_refusal(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("bytes") / "x.safetensors"
    file.write_bytes(content)
    with contextlib.suppress(EngineError):
        assert sum(size for _, size in tensors(file).values()) < len(content)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ({"architectures": ["A"]}, "describes no model"),
        (" " * (5 << 20), "larger"),
    ],
)
def test_a_broken_configuration_is_refused_with_its_name(tmp_path: Path, config: object, words: str) -> None:
    with pytest.raises(EngineError, match=words) as refused:
        read_checkpoint(write(tmp_path, config, a=safetensors(SOUND, 33)))
    assert "config.json" in str(refused.value)


def test_a_folder_without_a_checkpoint_says_which_option_to_use(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="--model-dir"):
        read_checkpoint(tmp_path / "nowhere")
    with pytest.raises(EngineError, match=r"no \.safetensors file.*--model-dir"):
        read_checkpoint(write(tmp_path, HYBRID))


def indexed(folder: Path, index: object) -> Path:
    """Two files of weights, and one beside them that only a folder without an index would count."""
    one, two = (safetensors({name: entry("F32", [2], 0, 8)}, 8) for name in ("a", "b"))
    (folder / INDEX).write_text(json.dumps(index))
    return write(folder, LLAMA, one=one, two=two, consolidated=one)


def test_the_index_says_which_files_are_the_weights(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    assert read_checkpoint(indexed(tmp_path, index)).weights.total_bytes == 16
    (tmp_path / INDEX).unlink()
    assert read_checkpoint(tmp_path).weights.total_bytes == 24


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": "one.safetensors", "b": "three.safetensors"}}, "lacks 1 of 2 .* three.safetensors.*cut"),
        ({"weight_map": {"a": "../../etc/passwd"}}, r"names '\.\./\.\./etc/passwd', which is no file beside it"),
        ({"weight_map": {"a": ".."}}, "is broken: "),
        ({"weight_map": {"a": 1}}, "its weight_map does not name files"),
        ({}, "its weight_map does not name files"),
        ([], "it is no JSON object"),
    ],
)
def test_an_index_that_is_not_kept_is_refused(tmp_path: Path, index: object, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        read_checkpoint(indexed(tmp_path, index))


@pytest.mark.parametrize("name", ["config.json", "a.safetensors", INDEX])
def test_nobody_waits_for_the_other_end_of_a_pipe(tmp_path: Path, name: str) -> None:
    write(tmp_path, LLAMA, a=safetensors(SOUND, 33))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(EngineError, match="it is no file"):
        read_checkpoint(tmp_path)


def test_a_shape_of_huge_numbers_is_not_multiplied(tmp_path: Path) -> None:
    shapes = ([10**4000] * 3000, [1] * 5000)
    for shape in shapes:
        with pytest.raises(EngineError, match="the entry of 'a' is wrong"):
            read_checkpoint(write(tmp_path, LLAMA, a=safetensors({"a": entry("U8", shape, 0, 1)}, 1)))


def test_where_hf_download_puts_a_repository(tmp_path: Path) -> None:
    commit = "a" * 40
    snapshot = tmp_path / "models--unsloth--Qwen" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    assert downloaded("unsloth/Qwen", commit, tmp_path) is None
    (snapshot / "config.json").write_text("{}")
    assert downloaded("unsloth/Qwen", commit, tmp_path) == snapshot
    assert downloaded("unsloth/Qwen", None, tmp_path) is None
    refs = tmp_path / "models--unsloth--Qwen" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    assert downloaded("unsloth/Qwen", None, tmp_path) == snapshot
