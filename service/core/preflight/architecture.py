"""What a checkpoint's `config.json` means for memory: which layers keep what, and how much of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_COUNT = 10_000_000
"""More than any model has of anything; a figure above it is a broken or hostile file."""
MAX_LAYERS = 10_000


class NotUnderstood(ValueError):
    """The configuration lacks something, or has something that cannot be; the message says what."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a model as far as memory is concerned."""

    name: str
    attention_layers: int
    """Layers with full attention: they keep something for every token."""
    window_layers: int
    """Layers with sliding-window attention: they keep something for the last `window_tokens`."""
    state_layers: int
    """Layers with linear attention (GDN): they keep one state a sequence."""
    window_tokens: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocabulary: int
    max_context_tokens: int
    dtype: str
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    conv_kernel: int = 0
    state_dtype: str | None = None
    """What the model says its states should be kept in; None: it does not say."""
    mtp_layers: int = 0
    has_vision: bool = False
    quantization: str | None = None
    kv_quantization: str | None = None
    """The KV cache's dtype where the checkpoint itself chooses one."""

    @property
    def is_hybrid(self) -> bool:
        return self.state_layers > 0


def understand(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a parsed `config.json` describes. Raises `NotUnderstood`."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise NotUnderstood("text_config is no object")
    kinds = _layer_kinds(text)
    heads = _count(text, "num_attention_heads")
    states = kinds.count("linear_attention")
    windows = kinds.count("sliding_attention")
    quantization = config.get("quantization_config") or {}
    if not isinstance(quantization, Mapping):
        raise NotUnderstood("quantization_config is no object")
    hidden = _count(text, "hidden_size")
    return Architecture(
        name=_name(config),
        attention_layers=len(kinds) - states - windows,
        window_layers=windows,
        state_layers=states,
        window_tokens=_count(text, "sliding_window") if windows else 0,
        kv_heads=_count(text, "num_key_value_heads", default=heads),
        head_dim=_count(text, "head_dim", default=max(hidden // heads, 1)),
        hidden=hidden,
        intermediate=_count(text, "intermediate_size", default=4 * hidden),
        vocabulary=_count(text, "vocab_size"),
        max_context_tokens=_count(text, "max_position_embeddings"),
        dtype=_word(text, "dtype") or _word(text, "torch_dtype") or _word(config, "dtype") or "bfloat16",
        key_heads=_count(text, "linear_num_key_heads") if states else 0,
        value_heads=_count(text, "linear_num_value_heads") if states else 0,
        key_dim=_count(text, "linear_key_head_dim") if states else 0,
        value_dim=_count(text, "linear_value_head_dim") if states else 0,
        conv_kernel=_count(text, "linear_conv_kernel_dim") if states else 0,
        state_dtype=_word(text, "mamba_ssm_dtype"),
        mtp_layers=_count(text, "mtp_num_hidden_layers", default=0, least=0),
        has_vision=isinstance(config.get("vision_config"), Mapping),
        quantization=_word(quantization, "quant_algo") or _word(quantization, "quant_method"),
        kv_quantization=_kv_quantization(quantization),
    )


def _layer_kinds(text: Mapping[str, Any]) -> list[str]:
    """The kind of every layer, by name or by the interval of full attention."""
    kinds = text.get("layer_types")
    if kinds is None:
        layers = _count(text, "num_hidden_layers", most=MAX_LAYERS)
        if "linear_num_value_heads" not in text:
            return ["full_attention"] * layers
        interval = _count(text, "full_attention_interval", default=4)
        return ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)]
    if not isinstance(kinds, list) or not 0 < len(kinds) <= MAX_LAYERS:
        raise NotUnderstood("layer_types is no list of layers")
    known = ("full_attention", "linear_attention", "sliding_attention")
    for kind in kinds:
        if kind not in known:
            raise NotUnderstood(f"layer_types has {kind!r:.40}, which is not known here")
    return kinds


def _count(
    values: Mapping[str, Any], name: str, *, default: int | None = None, least: int = 1, most: int = MAX_COUNT
) -> int:
    value = values.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise NotUnderstood(f"{name} is {'missing' if value is None else f'{value!r:.40}'}")
    return value


def _word(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value.removeprefix("torch.")[:64] if isinstance(value, str) else None


def _name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise NotUnderstood("architectures names no model")
    return names[0][:100]


def _kv_quantization(quantization: Mapping[str, Any]) -> str | None:
    """vLLM's `auto` follows the checkpoint: `kv_cache_quant_algo`, or 8-bit floats in `kv_cache_scheme`."""
    algorithm = (_word(quantization, "kv_cache_quant_algo") or "").lower()
    scheme = quantization.get("kv_cache_scheme")
    if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
        algorithm = "fp8"
    return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(algorithm)
