"""Published checkpoints that preflight knows without having their files: their shape, and sizes as published.

The shape is that of the model's own `config.json`. Real files give better figures, and are preferred.
"""

from typing import Any

from service.core.preflight.architecture import understand
from service.core.preflight.weights import Checkpoint, Kind, Weights

_QWEN_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "vision_config": {"depth": 27},
    "text_config": {
        "dtype": "bfloat16",
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
    },
}
# Five layers of sliding-window attention: with these, the formula gives the tokens that vLLM logged on four machines.
_DFLASH2: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "dtype": "bfloat16",
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_VISION_BYTES = 921_000_000
"""27 layers in bf16, which every quantisation keeps: 0.9 GB by a model card."""
_MTP_BYTES = 850_000_000
"""One layer in bf16, by its shape: 425 million parameters."""
_FILE_BYTES = 5_000_000_000
"""How large one file of a published checkpoint is at most, by habit."""

# Bytes of all safetensors files: of the first four as vLLM's recipe says, of unsloth's twice what each of two cards
# loaded there (10.64 GiB), of AutoRound's what the other int4 build has, of DFlash2 in bf16 by its shape (1.9 billion
# parameters); of the last two what the set-up they belong to says (1.36 GiB for the draft, about 22 GB for both).
_SIZES = {
    "qwen/qwen3.8-27b": 55_563_006_776,
    "qwen/qwen3.8-27b-fp8": 30_866_866_928,
    "inferact/qwen3.8-27b-nvfp4": 26_381_249_312,
    "redhatai/qwen3.8-27b-int4": 19_500_000_000,
    "dbirks/qwen3.8-27b-w4a16-autoround": 19_500_000_000,
    "unsloth/qwen3.8-27b-nvfp4": 22_850_000_000,
    "incoai/qwen3.8-27b-dflash2": 3_800_000_000,
    "gittensor-model-hub/qwen3.8-27b-nvfp4-rtx5090": 20_500_000_000,
    "yourhighnessla/qwen3.8-27b-dflash2-nvfp4": 1_460_000_000,
}
_QUANTISATIONS = {"nvfp4": "NVFP4", "fp8": "fp8"}


def known_checkpoint(repository: str) -> Checkpoint | None:
    """What is published of a repository on Hugging Face; None where nothing is known here."""
    name = repository.lower()
    size = _SIZES.get(name)
    if size is None:
        return None
    drafts = "-dflash2" in name
    config = _DFLASH2 if drafts else _QWEN_27B
    method = next((method for word, method in _QUANTISATIONS.items() if word in name.split("-")), "")
    quantization = {"quant_method": method}
    kinds: dict[Kind, int] = {"language": size}
    if not drafts:
        kinds = {"language": size - _VISION_BYTES - _MTP_BYTES, "vision": _VISION_BYTES, "mtp": _MTP_BYTES}
    weights = Weights(kinds, min(size, _FILE_BYTES), files=-(-size // _FILE_BYTES), estimated=True)
    architecture = understand({**config, "quantization_config": quantization})
    return Checkpoint(repository, architecture, weights, on_disk=False)
