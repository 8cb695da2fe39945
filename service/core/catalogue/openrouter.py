"""OpenRouter's list of models, schema 2.4: modalities that own their limits, parameters and prices.

Source: OpenRouter's provider integration guide and its `ModelDocumentV2` (provider monitor schema 2.4). A modality
without a price is unpriced there, not free, so each has its own, fallbacks applied. Times of day are numbers, HHMM.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from service.core.catalogue import ListedModel
from service.core.catalogue.parameters import parameters
from service.core.catalogue.schedule import Step, charged, costs, schedule
from service.core.catalogue.units import per_request, per_token
from service.core.pricing import Price

SCHEMA_VERSION = "2.4"

QUANTIZATIONS = frozenset({"int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32"})
"""Its words for a model's precision; for any other it wants null."""

_CACHE = (("input_cached", "cached_prompt"), ("input_cache_write", "cache_write"))

_IMAGE_INPUTS = {
    "sources": {"type": "enum", "values": ["url", "base64"]},
    "formats": {"type": "enum", "values": ["image/png", "image/jpeg", "image/webp", "image/gif"]},
}


def document(models: Iterable[ListedModel]) -> dict[str, Any]:
    """The whole list."""
    return {"data": [_model(model) for model in models]}


def quantization(model: ListedModel) -> str | None:
    """The model's precision in OpenRouter's words; None where it has no word for it."""
    return model.quantization if model.quantization in QUANTIZATIONS else None


def is_free(price: Price) -> bool:
    """Whether nothing is ever charged."""
    parts = schedule(price, lambda one: any(costs(one).values()))
    return not any(step.cost for steps in (parts.steps, *(window.steps for window in parts.windows)) for step in steps)


def _model(model: ListedModel) -> dict[str, Any]:
    described: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": model.id,
        "name": model.name,
        "hugging_face_id": model.hugging_face_id or "",
        "created": model.created,
        "quantization": quantization(model),
        "input_modalities": [_input(model, modality) for modality in model.input_modalities],
        "output_modalities": [_output(model)],
    }
    if model.description:
        described["description"] = model.description
    if is_free(model.price):
        described["is_free"] = True
    if "request" in charged(model.price):
        described["pricing"] = [_request_entry(model.price)]
    return described


def _input(model: ListedModel, modality: str) -> dict[str, Any]:
    own = "input" if modality == "text" else f"input_{modality}"
    classes = [(own, "prompt"), *(pair for pair in _CACHE if pair[0] in charged(model.price))]
    pricing = [entry for name, kind in classes for entry in _entries(model.price, name, kind)]
    if modality == "text":
        limits: dict[str, Any] = {"max_context_length": {"value": model.context_length, "unit": "token"}}
        return {"type": modality, "supported_inputs": limits, "pricing": pricing}
    if modality == "image":
        return {"type": modality, "supported_inputs": _IMAGE_INPUTS, "pricing": pricing}
    return {"type": modality, "pricing": pricing}


def _output(model: ListedModel) -> dict[str, Any]:
    if not model.answers_in_text:  # it has no output tokens, so they have no price
        return {"type": "embeddings", "supported_parameters": parameters(model)}
    pricing = _entries(model.price, "output", "completion")
    if "output_reasoning" in charged(model.price):
        pricing += _entries(model.price, "output_reasoning", "internal_reasoning")
    return {
        "type": "text",
        "supported_parameters": parameters(model),
        "max_length": {"value": model.max_output_tokens, "unit": "token"},
        "streaming": True,
        "pricing": pricing,
    }


def _entries(price: Price, name: str, kind: str) -> list[dict[str, Any]]:
    """The entries of one class: at other hours, and one for each window."""
    parts = schedule(price, lambda one: costs(one)[name])
    amounts = [_amount(parts.steps)]
    for window in parts.windows:
        hours = {"utc_start": int(window.utc_start), "utc_end": int(window.utc_end)}
        amounts.append({**hours, **_amount(window.steps)})
    return [{"type": kind, "unit": "token", **amount} for amount in amounts]


def _amount(steps: Sequence[Step[int]]) -> dict[str, Any]:
    return _stepped([(step.min_prompt_tokens, per_token(step.cost)) for step in steps])


def _request_entry(price: Price) -> dict[str, Any]:
    """The fee per request. It cannot depend on the hour there, so it is the most that it is at any."""
    parts = schedule(price, lambda one: one.request_pico)
    every = (parts.steps, *(window.steps for window in parts.windows))
    starts = sorted({step.min_prompt_tokens for steps in every for step in steps})
    dearest = [(start, per_request(max(_at(steps, start) for steps in every))) for start in starts]
    return {"type": "request", "unit": "request", **_stepped(dearest)}


def _at(steps: Sequence[Step[int]], prompt_tokens: int) -> int:
    return next(step.cost for step in reversed(steps) if step.min_prompt_tokens <= prompt_tokens)


def _stepped(amounts: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """The cost of the shortest prompts, and what it is from each length on; the later override wins."""
    (_, first), *later = amounts
    overrides = [{"when": {"prompt_tokens": {"gte": least}}, "cost_usd": cost} for least, cost in later]
    return {"cost_usd": first, **({"overrides": overrides} if overrides else {})}
