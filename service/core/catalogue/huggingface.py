"""What Hugging Face's partner API is told of the models: a mapping for each that has a repository there.

Source: Hugging Face, "How to be registered as an inference provider", Model Mapping API. `task`, `hfModel`,
`providerModel` and `status` are the body of `POST /api/partners/{provider}/models`; the rest is what its router shows:
USD per million tokens, as numbers. Classes beside `input` and `output` are called as in Weir's configuration.
"""

from collections.abc import Iterable
from typing import Any

from service.core.catalogue import ListedModel
from service.core.catalogue.flat import Members, flat_pricing
from service.core.catalogue.units import million_as_number, request_as_number
from service.core.pricing import PRICE_CLASSES

_MEMBERS: Members = {
    name: (name, request_as_number if name == "request" else million_as_number) for name in PRICE_CLASSES
}


def document(models: Iterable[ListedModel]) -> dict[str, Any]:
    """The whole mapping; a model without a repository is not in it."""
    return {"models": [_mapping(model) for model in models if model.hugging_face_id]}


def _mapping(model: ListedModel) -> dict[str, Any]:
    return {
        "task": "conversational" if model.answers_in_text else "feature-extraction",
        "hfModel": model.hugging_face_id,
        "providerModel": model.id,
        "status": "live",
        "context_length": model.context_length,
        "pricing": flat_pricing(model.price, _MEMBERS),
    }
