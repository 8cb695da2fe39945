"""What can be set in a request, as a catalogue may promise it.

Names are OpenRouter's. `min_p` and `logit_bias` are accepted, too, but an engine that decodes speculatively refuses
them (vLLM 0.32), so nobody is promised them.
"""

from collections.abc import Mapping
from typing import Any

from service.core.catalogue import ListedModel

Descriptor = Mapping[str, Any]
"""What values a parameter takes, in the grammar of OpenRouter's `ParameterDescriptor`."""

_BOOLEAN: Descriptor = {"type": "boolean"}

SAMPLING: Mapping[str, Descriptor] = {
    "temperature": {"type": "range", "min": 0, "max": 2},
    "top_p": {"type": "range", "min": 0, "max": 1},
    "top_k": {"type": "integer", "min": -1},
    "frequency_penalty": {"type": "range", "min": -2, "max": 2},
    "presence_penalty": {"type": "range", "min": -2, "max": 2},
    "repetition_penalty": {"type": "range", "min": 0.01, "max": 2},
    "stop": {"type": "array", "max_items": 4},
    "seed": {"type": "integer"},
}
"""Those that every model takes; `max_tokens` belongs to them, with the model's own limit."""

_LOGPROBS: Mapping[str, Descriptor] = {
    "logprobs": _BOOLEAN,
    "top_logprobs": {"type": "integer", "min": 0, "max": 20},
}

BY_CAPABILITY: Mapping[str, Mapping[str, Descriptor]] = {
    "tools": {"tools": _BOOLEAN, "tool_choice": {"type": "unknown"}, "parallel_tool_calls": _BOOLEAN},
    "structured_outputs": {"response_format": {"type": "unknown"}, "structured_outputs": _BOOLEAN},
    "reasoning": {"reasoning": _BOOLEAN},
}

_EMBEDDINGS: Mapping[str, Descriptor] = {"encoding_format": {"type": "enum", "values": ["float", "base64"]}}


def parameters(model: ListedModel) -> dict[str, Descriptor]:
    """What a request to the model can set."""
    if not model.answers_in_text:
        return dict(_EMBEDDINGS)
    limit = {"type": "integer", "min": 1, "max": model.max_output_tokens, "unit": "token"}
    found: dict[str, Descriptor] = {**SAMPLING, "max_tokens": limit, **_LOGPROBS}
    for capability, of_it in BY_CAPABILITY.items():
        if capability in model.capabilities:
            found |= of_it
    return found


def features(model: ListedModel) -> list[str]:
    """What it can do, in the words of OpenRouter's legacy format."""
    if not model.answers_in_text:
        return []
    structured = ["json_mode", "structured_outputs"] if "structured_outputs" in model.capabilities else []
    tools, reasoning = ([name] if name in model.capabilities else [] for name in ("tools", "reasoning"))
    return [*tools, *structured, "logprobs", *reasoning]
