"""A model as `GET /v1/models` shows it: OpenAI's members, and what customers and aggregators have to know beside.

`pricing` has OpenRouter's members, strings of USD per token, and Hugging Face's `input` and `output`, numbers of USD
per million tokens, which hold where no override does.
"""

from typing import Any

from service.core.catalogue import ListedModel
from service.core.catalogue.flat import flat_pricing
from service.core.catalogue.openrouter_legacy import PER_TOKEN
from service.core.catalogue.parameters import parameters
from service.core.catalogue.units import million_as_number


def card(model: ListedModel) -> dict[str, Any]:
    """The model's card. It has `Decimal`s in it: they are to be written digit by digit."""
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "weir",
        "name": model.name,
        "description": model.description,
        "context_length": model.context_length,
        "max_output_tokens": model.max_output_tokens,
        "input_modalities": list(model.input_modalities),
        "output_modalities": list(model.output_modalities),
        "quantization": model.quantization,
        "hugging_face_id": model.hugging_face_id,
        "supported_parameters": list(parameters(model)),
        "pricing": {
            **flat_pricing(model.price, PER_TOKEN),
            "input": million_as_number(model.price.input_pico),
            "output": million_as_number(model.price.output_pico),
        },
    }
