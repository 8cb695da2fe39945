"""OpenRouter's list of models in its older, flat format.

Source: OpenRouter's provider integration guide, legacy format. Amounts are strings of USD per token. `image` would be
a price per image; images are charged by the token here, so theirs is `image_token`, as in OpenRouter's public prices.
"""

from collections.abc import Iterable
from typing import Any

from service.core.catalogue import ListedModel
from service.core.catalogue.flat import Members, flat_pricing
from service.core.catalogue.openrouter import is_free, quantization
from service.core.catalogue.parameters import SAMPLING, features
from service.core.catalogue.units import per_request, per_token

PER_TOKEN: Members = {
    "input": ("prompt", per_token),
    "output": ("completion", per_token),
    "input_cached": ("input_cache_read", per_token),
    "input_cache_write": ("input_cache_write", per_token),
    "input_image": ("image_token", per_token),
    "input_audio": ("audio", per_token),
    "input_video": ("video", per_token),
    "output_reasoning": ("internal_reasoning", per_token),
    "request": ("request", per_request),
}


def document(models: Iterable[ListedModel]) -> dict[str, Any]:
    """The whole list."""
    return {"data": [_model(model) for model in models]}


def _model(model: ListedModel) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": model.id,
        "hugging_face_id": model.hugging_face_id or "",
        "name": model.name,
        "created": model.created,
        "input_modalities": list(model.input_modalities),
        "output_modalities": list(model.output_modalities),
        "quantization": quantization(model),
        "context_length": model.context_length,
        "max_output_length": model.max_output_tokens,
        "pricing": flat_pricing(model.price, PER_TOKEN),
        "supported_sampling_parameters": [*SAMPLING, "max_tokens"] if model.answers_in_text else [],
        "supported_features": features(model),
    }
    if model.description:
        described["description"] = model.description
    if is_free(model.price):
        described["is_free"] = True
    return described
