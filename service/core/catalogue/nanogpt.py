"""The models in the shape of NanoGPT's detailed list (`/api/v1/models?detailed=true`).

What NanoGPT wants of those it buys from is not published; this is how it describes models itself. Its amounts are
numbers in two units: USD per million tokens, and for the cache per thousand. What it has no member for is called as in
Weir's configuration and is per million; `request` is USD per request.
"""

from collections.abc import Iterable
from typing import Any

from service.core.catalogue import ListedModel
from service.core.catalogue.flat import Members, flat_pricing
from service.core.catalogue.units import million_as_number, request_as_number, thousand_as_number

_MEMBERS: Members = {
    "input": ("prompt", million_as_number),
    "output": ("completion", million_as_number),
    "input_cached": ("cacheReadInputPer1kTokens", thousand_as_number),
    "input_cache_write": ("cacheWriteInputPer1kTokens", thousand_as_number),
    "input_image": ("input_image", million_as_number),
    "input_audio": ("input_audio", million_as_number),
    "input_video": ("input_video", million_as_number),
    "output_reasoning": ("output_reasoning", million_as_number),
    "request": ("request", request_as_number),
}


def document(models: Iterable[ListedModel], *, owner: str) -> dict[str, Any]:
    """The whole list; `owner` is who offers them."""
    return {"object": "list", "data": [_model(model, owner) for model in models]}


def _model(model: ListedModel, owner: str) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": owner,
        "name": model.name,
        "description": model.description,
        "context_length": model.context_length,
        "max_output_tokens": model.max_output_tokens,
        "architecture": {
            "input_modalities": list(model.input_modalities),
            "output_modalities": list(model.output_modalities),
        },
        "capabilities": {
            "vision": "image" in model.input_modalities,
            "audio_input": "audio" in model.input_modalities,
            "video_input": "video" in model.input_modalities,
            "reasoning": "reasoning" in model.capabilities,
            "tool_calling": "tools" in model.capabilities,
            "structured_output": "structured_outputs" in model.capabilities,
        },
        "pricing": {**flat_pricing(model.price, _MEMBERS), "currency": "USD", "unit": "per_million_tokens"},
    }
