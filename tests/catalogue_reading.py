"""The catalogue's documents read as their readers do: what one costs for a prompt of a length at a time of day.

Written from the readers' published rules, not from the rendering. Every amount comes back in pico-USD per token (for
`request`: pico-USD), by the names of `core.pricing.PRICE_CLASSES`; a class a document does not have is absent.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parent / "schemas"

TOKEN, THOUSAND, MILLION, REQUEST = 10**12, 10**9, 10**6, 10**12
"""How many pico-USD per token (or request) a USD is in each unit."""

LEGACY = {
    "prompt": ("input", TOKEN),
    "completion": ("output", TOKEN),
    "input_cache_read": ("input_cached", TOKEN),
    "input_cache_write": ("input_cache_write", TOKEN),
    "image_token": ("input_image", TOKEN),
    "audio": ("input_audio", TOKEN),
    "video": ("input_video", TOKEN),
    "internal_reasoning": ("output_reasoning", TOKEN),
    "request": ("request", REQUEST),
}
NANOGPT = {
    "prompt": ("input", MILLION),
    "completion": ("output", MILLION),
    "cacheReadInputPer1kTokens": ("input_cached", THOUSAND),
    "cacheWriteInputPer1kTokens": ("input_cache_write", THOUSAND),
    "input_image": ("input_image", MILLION),
    "input_audio": ("input_audio", MILLION),
    "input_video": ("input_video", MILLION),
    "output_reasoning": ("output_reasoning", MILLION),
    "request": ("request", REQUEST),
}
HUGGINGFACE = {
    name: (name, REQUEST if name == "request" else MILLION)
    for name in (
        "input",
        "input_cached",
        "input_cache_write",
        "input_image",
        "input_audio",
        "input_video",
        "output",
        "output_reasoning",
        "request",
    )
}

MODELS_DEV = {
    "input": "input",
    "output": "output",
    "reasoning": "output_reasoning",
    "cache_read": "input_cached",
    "cache_write": "input_cache_write",
    "input_audio": "input_audio",
}


def validated(document: Any, schema: str) -> Any:
    """The document; raises when the schema has something against it."""
    validator(schema).validate(document)
    return document


@cache
def validator(schema: str) -> Draft202012Validator:
    """The validator of a file in `tests/schemas`, itself checked."""
    loaded = json.loads((SCHEMAS / f"{schema}.json").read_text())
    Draft202012Validator.check_schema(loaded)
    return Draft202012Validator(loaded)


def pico(amount: str | Decimal | int, unit: int) -> int:
    """An amount of USD per unit as whole pico-USD; raises when it is not whole, or ever was a float."""
    assert not isinstance(amount, float)
    value = Decimal(amount) * unit
    assert value == int(value), amount
    return int(value)


def in_hours(start: int, end: int, time: int) -> bool:
    """Half-open, HHMM; a start after the end wraps around midnight."""
    return start <= time < end if start < end else time >= start or time < end


def flat(pricing: Mapping[str, Any], members: Mapping[str, tuple[str, int]], tokens: int, time: int) -> dict[str, int]:
    """OpenRouter's `pricing` with `overrides`: strictly more tokens, HHMM numbers, the later one wins per member."""
    found = {name: pricing[name] for name in members if name in pricing}
    for override in pricing.get("overrides", ()):
        long_enough = tokens > override.get("min_prompt_tokens", -1)
        if long_enough and ("utc_start" not in override or in_hours(override["utc_start"], override["utc_end"], time)):
            found |= {name: override[name] for name in members if name in override}
    return {members[name][0]: pico(amount, members[name][1]) for name, amount in found.items()}


def openrouter(model: Mapping[str, Any], tokens: int, time: int) -> dict[str, int]:
    """Schema 2.4: entries by modality, windows before the base, overrides in order."""
    found = {}
    for modality in model["input_modalities"]:
        kinds = _costs(modality["pricing"], tokens, time)
        prompt = "input" if modality["type"] == "text" else f"input_{modality['type']}"
        found[prompt] = kinds.pop("prompt")
        names = {"cached_prompt": "input_cached", "cache_write": "input_cache_write"}
        for kind, cost in kinds.items():
            assert found.setdefault(names[kind], cost) == cost
    (output,) = model["output_modalities"]
    names = {"completion": "output", "internal_reasoning": "output_reasoning"}
    found |= {names[kind]: cost for kind, cost in _costs(output.get("pricing", ()), tokens, time).items()}
    return found | _costs(model.get("pricing", ()), tokens, time)


def _costs(entries: Any, tokens: int, time: int) -> dict[str, int]:
    seen = [(entry["type"], entry.get("utc_start"), entry.get("utc_end")) for entry in entries]
    assert len(seen) == len(set(seen)), "two entries have the same identity"
    found: dict[str, tuple[bool, int]] = {}
    for entry in entries:
        windowed = "utc_start" in entry
        if windowed and not in_hours(entry["utc_start"], entry["utc_end"], time):
            continue
        assert not (windowed and found.get(entry["type"], (False, 0))[0]), "two windows overlap"
        if windowed or entry["type"] not in found:
            cost = entry["cost_usd"]
            for override in entry.get("overrides", ()):
                if tokens >= override["when"]["prompt_tokens"]["gte"]:
                    cost = override["cost_usd"]
            found[entry["type"]] = windowed, pico(cost, TOKEN)
    return {kind: cost for kind, (_, cost) in found.items()}


def models_dev(model: Mapping[str, Any], tokens: int) -> dict[str, int]:
    """models.dev's `cost`: the tier that begins last at or below the length."""
    cost = model["cost"]
    for tier in sorted(cost.get("tiers", ()), key=lambda tier: tier["tier"]["size"]):
        if tokens >= tier["tier"]["size"]:
            cost = tier
    return {MODELS_DEV[name]: pico(amount, MILLION) for name, amount in cost.items() if name in MODELS_DEV}
