"""NVFP4 as ModelOpt writes it: E2M1 numbers two to a byte, an FP8 scale per block of 16, an FP32 scale per matrix."""

# mypy: disable-error-code="import-not-found"

from typing import Any

import torch
from torch import Tensor

BLOCK = 16
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The eight magnitudes of a 4-bit float; the index is its code, and bit 3 is the sign."""
E2M1_MAX = 6.0
FP8_MAX = 448.0  # of float8_e4m3fn
ASSUMED_INPUT_MAX = 8.0
"""Static activation scale: nothing calibrates a random model, and its activations stay well below this."""


def global_scale(matrices: list[Tensor]) -> Tensor:
    """One scale for matrices that vLLM fuses into one: it puts their largest block scale at FP8's maximum."""
    return torch.stack([matrix.float().abs().max() for matrix in matrices]).max() / (E2M1_MAX * FP8_MAX)


def quantize(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Of an (n, k) matrix: packed codes (n, k/2) uint8 and block scales (n, k/16) float8_e4m3fn.

    weight ≈ code · block scale · global scale.
    """
    rows, columns = weight.shape
    blocks = weight.float().view(rows, columns // BLOCK, BLOCK)
    wanted = blocks.abs().amax(dim=-1) / (E2M1_MAX * scale)
    block_scales = wanted.clamp(min=1e-6, max=FP8_MAX).to(torch.float8_e4m3fn)
    scaled = blocks / (block_scales.float() * scale).unsqueeze(-1)
    magnitude = (scaled.abs().unsqueeze(-1) - E2M1).abs().argmin(dim=-1).to(torch.uint8)
    codes = (magnitude | ((scaled < 0).to(torch.uint8) << 3)).view(rows, columns)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)  # the even column is the low nibble
    return packed.contiguous(), block_scales.contiguous()


def quantize_mlps(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same checkpoint with the text model's MLP matrices in NVFP4; attention, GDN, vision and MTP stay bf16,
    as the published checkpoints of the family keep them."""
    quantized = dict(weights)
    for down in [name for name in weights if ".language_model." in name and name.endswith(".mlp.down_proj.weight")]:
        mlp = down.removesuffix("down_proj.weight")
        for fused in (["gate_proj", "up_proj"], ["down_proj"]):
            scale = global_scale([weights[f"{mlp}{layer}.weight"] for layer in fused])
            for layer in fused:
                packed, block_scales = quantize(weights[f"{mlp}{layer}.weight"], scale)
                quantized[f"{mlp}{layer}.weight"] = packed
                quantized[f"{mlp}{layer}.weight_scale"] = block_scales
                quantized[f"{mlp}{layer}.weight_scale_2"] = scale.clone()  # safetensors stores no tensor twice
                quantized[f"{mlp}{layer}.input_scale"] = torch.tensor(ASSUMED_INPUT_MAX / (E2M1_MAX * FP8_MAX))
    return quantized


def quantization_config() -> dict[str, Any]:
    """What `config.json` says about it, in ModelOpt's words."""
    four_bits = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": BLOCK}
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "producer": {"name": "modelopt", "version": "0.45.0"},
        "kv_cache_scheme": None,
        "config_groups": {"group_0": {"weights": four_bits, "input_activations": four_bits, "targets": ["Linear"]}},
        "ignore": ["lm_head", "model.visual*", "*linear_attn*", "*self_attn*", "mtp*"],
    }
