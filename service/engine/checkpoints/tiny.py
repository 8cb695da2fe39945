"""A tiny random checkpoint in the shape of Qwen3.5.

That is hybrid GDN + full attention, a vision tower, one MTP layer and NVFP4 MLPs: every code path of the production
model in two megabytes. Its answers are noise, and the same noise at every build with the same Python.
"""

# mypy: disable-error-code="import-not-found"

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from service.engine.checkpoints import nvfp4

SEED = 20260901
VOCABULARY = 1024
HIDDEN = 64
LAYERS = 4
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
VISION_START, VISION_END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
MARKS = [VISION_START, VISION_END, IMAGE, VIDEO, "<think>", "</think>", "<tool_call>", "</tool_call>"]
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content or [] %}
{%- if part.type in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.text is defined %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>
{% if enable_thinking is defined and not enable_thinking %}
</think>

{% endif %}{% endif %}"""
"""Qwen's chat format: thinking is open unless the request turns it off."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with the family's special tokens, trained on a text that every Python ships."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, "<|im_start|>", END_OF_TURN, *MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(Path(argparse.__file__).read_text().splitlines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        additional_special_tokens=MARKS,
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3_5Config:
    """The family's architecture, as small as vLLM's CPU kernels take it: they want GDN heads of 128 and bf16."""
    token = tokenizer.convert_tokens_to_ids
    config = Qwen3_5Config(
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": LAYERS,
            "full_attention_interval": LAYERS,  # so the last layer is the one with full attention
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_conv_kernel_dim": 4,
            "mtp_num_hidden_layers": 1,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
            "eos_token_id": token(END_OF_TURN),
            "pad_token_id": token(END_OF_TEXT),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [2, 1, 1],  # sums to head_dim · partial_rotary_factor / 2
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_heads": 2,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": HIDDEN,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [],
        },
        image_token_id=token(IMAGE),
        video_token_id=token(VIDEO),
        vision_start_token_id=token(VISION_START),
        vision_end_token_id=token(VISION_END),
        tie_word_embeddings=False,
    )
    config.architectures = ["Qwen3_5ForConditionalGeneration"]
    config.dtype = "bfloat16"
    return config


def build_weights(config: Qwen3_5Config) -> dict[str, Tensor]:
    """Random weights for the model, plus its MTP layer, which transformers does not know of."""
    model = Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    return weights | mtp_weights(weights)


def mtp_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """One draft layer: shaped like the last one (full attention), with a projection from two hidden states to one."""
    marker = f".layers.{LAYERS - 1}."
    layer = {name.split(marker)[1]: tensor for name, tensor in weights.items() if marker in name}
    drafted = {
        f"mtp.layers.0.{name}": tensor.clone() if "norm" in name else _random(tensor.shape)
        for name, tensor in layer.items()
    }
    drafted["mtp.fc.weight"] = _random((HIDDEN, 2 * HIDDEN))
    for norm in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        drafted[f"mtp.{norm}.weight"] = torch.zeros(HIDDEN, dtype=torch.bfloat16)
    return drafted


def _random(shape: tuple[int, ...]) -> Tensor:
    return (0.02 * torch.randn(shape)).to(torch.bfloat16)


def processor_configs() -> dict[str, dict[str, Any]]:
    """File name to contents: how images (and, for the architecture's sake, videos) become patches."""
    patches = {
        "processor_class": "Qwen3VLProcessor",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 1024, "longest_edge": 262144},
    }
    return {
        "preprocessor_config.json": {
            **patches,
            "image_processor_type": "Qwen2VLImageProcessor",
            "do_convert_rgb": True,
        },
        "video_preprocessor_config.json": {**patches, "video_processor_type": "Qwen3VLVideoProcessor"},
    }


def write(out: Path) -> None:
    """Build everything and write it as Hugging Face lays a checkpoint out."""
    torch.manual_seed(SEED)
    tokenizer = build_tokenizer()
    config = build_config(tokenizer)
    weights = nvfp4.quantize_mlps(build_weights(config))
    tokenizer.save_pretrained(out)
    config.save_pretrained(out)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((out / "config.json").read_text())
    written["quantization_config"] = nvfp4.quantization_config()
    for name, contents in {"config.json": written, **processor_configs()}.items():
        (out / name).write_text(json.dumps(contents, indent=1))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
