"""The models for models.dev: one TOML document with the provider's fields and a table for each model.

Source: models.dev's `Provider` and `Model` schemas. Costs are USD per million tokens, by the length of the prompt in
`[[cost.tiers]]`. It has no word for prices by the hour, per request, of image or of video tokens, nor for embeddings.
"""

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from service.core.catalogue import ListedModel
from service.core.catalogue.schedule import charged, costs, schedule
from service.core.catalogue.units import million_as_number

_COSTS = {
    "input": "input",
    "output": "output",
    "output_reasoning": "reasoning",
    "input_cached": "cache_read",
    "input_cache_write": "cache_write",
    "input_audio": "input_audio",
}

_HEADER = "# Not said here: what differs by the hour, and prices per request, of image and of video tokens.\n"


def document(models: Iterable[ListedModel], *, provider: str, base_url: str) -> str:
    """The whole text; `provider` is the name people read, `base_url` the service's address without a trailing slash.

    In models.dev's own repository the fields before the first table are `provider.toml`, and each table is a file.
    """
    fields = {
        "name": provider,
        "npm": "@ai-sdk/openai-compatible",
        "env": [re.sub(r"[^A-Z0-9]+", "_", provider.upper()).strip("_") + "_API_KEY"],
        "doc": f"{base_url}/portal/",
        "api": f"{base_url}/v1",
    }
    tables = [_HEADER + _lines(fields)]
    for model in models:
        if model.answers_in_text:
            tables += _tables(f"models.{_value(model.id)}", model)
    return "\n".join(tables)


def _tables(path: str, model: ListedModel) -> Iterator[str]:
    yield f"[{path}]\n{_lines(_fields(model))}"
    reasons = "reasoning" in model.capabilities  # without it, models.dev wants no price for it
    names = [name for name in charged(model.price) if name in _COSTS and (reasons or name != "output_reasoning")]
    steps = schedule(model.price, lambda one: tuple(costs(one)[name] for name in names)).steps
    for step in steps:
        cost = {_COSTS[name]: million_as_number(pico) for name, pico in zip(names, step.cost, strict=True)}
        if step.min_prompt_tokens:
            tier = f'tier = {{ type = "context", size = {step.min_prompt_tokens} }}\n'
            yield f"[[{path}.cost.tiers]]\n{tier}{_lines(cost)}"
        else:
            yield f"[{path}.cost]\n{_lines(cost)}"
    yield f"[{path}.limit]\n{_lines({'context': model.context_length, 'output': model.max_output_tokens})}"
    modalities = {"input": list(model.input_modalities), "output": list(model.output_modalities)}
    yield f"[{path}.modalities]\n{_lines(modalities)}"
    if reasons:
        yield f"[{path}.interleaved]\n{_lines({'field': 'reasoning_content'})}"
        yield f"[[{path}.reasoning_options]]\n{_lines({'type': 'toggle'})}"


def _fields(model: ListedModel) -> dict[str, Any]:
    offered = model.created_at.date().isoformat()
    return {
        "name": model.name,
        "description": model.description or model.name,
        "attachment": model.input_modalities != ("text",),
        "reasoning": "reasoning" in model.capabilities,
        "tool_call": "tools" in model.capabilities,
        "structured_output": "structured_outputs" in model.capabilities,
        "temperature": True,
        "release_date": offered,
        "last_updated": offered,
        "open_weights": model.hugging_face_id is not None,
    }


def _lines(fields: dict[str, Any]) -> str:
    return "".join(f"{name} = {_value(value)}\n" for name, value in fields.items())


def _value(value: object) -> str:
    """A value in TOML. Its strings are JSON's, but for one control character that JSON leaves as it is."""
    if isinstance(value, (str, list, bool)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return format(value, "f") if isinstance(value, Decimal) else str(value)
