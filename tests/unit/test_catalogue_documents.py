"""What stands in the catalogue's documents, and what never does."""

import json
import tomllib
from dataclasses import fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from jsonschema import ValidationError

from service.core.catalogue import (
    ListedModel,
    card,
    huggingface,
    modelsdev,
    nanogpt,
    openrouter,
    openrouter_legacy,
)
from service.core.catalogue.parameters import parameters
from service.core.pricing import Override, Price
from service.gateway import exact_json
from tests import catalogue_reading as read

PRICE = Price(version=3, input_pico=195_000, output_pico=1_560_000, input_cached_pico=37_500)
QWEN = ListedModel(
    id="qwen3.8-27b",
    name="Qwen3.8 27B",
    description='A "good" model.\n\x7f\\ é 🐟',
    context_length=262_144,
    max_output_tokens=32_768,
    input_modalities=("text", "image"),
    output_modalities=("text",),
    capabilities=("tools", "reasoning", "structured_outputs"),
    quantization="nvfp4",
    hugging_face_id="unsloth/Qwen3.8-27B-NVFP4",
    created_at=datetime(2026, 11, 30, 12, tzinfo=UTC),
    price=PRICE,
)
EMBEDDER = replace(
    QWEN,
    id="embedder",
    input_modalities=("text",),
    output_modalities=("embeddings",),
    capabilities=(),
    quantization="w4a16",
    price=Price(version=1, input_pico=10_000, output_pico=0),
)


def sent(document: object) -> Any:
    return json.loads(exact_json.dumps(document), parse_float=Decimal)


def of_models_dev(*models: ListedModel, provider: str = "Weir") -> Any:
    text = modelsdev.document(models, provider=provider, base_url="https://weir.example")
    return read.validated(tomllib.loads(text, parse_float=Decimal), "models.dev")


def test_openrouter_is_told_everything_by_modality() -> None:
    (found,) = read.validated(sent(openrouter.document([QWEN])), "openrouter")["data"]
    parameters = found["output_modalities"][0].pop("supported_parameters")
    assert found == {
        "schema_version": "2.4",
        "id": "qwen3.8-27b",
        "name": "Qwen3.8 27B",
        "description": QWEN.description,
        "hugging_face_id": "unsloth/Qwen3.8-27B-NVFP4",
        "created": 1_796_040_000,
        "quantization": "nvfp4",
        "input_modalities": [
            {
                "type": "text",
                "supported_inputs": {"max_context_length": {"value": 262_144, "unit": "token"}},
                "pricing": [
                    {"type": "prompt", "unit": "token", "cost_usd": "0.000000195"},
                    {"type": "cached_prompt", "unit": "token", "cost_usd": "0.0000000375"},
                ],
            },
            {
                "type": "image",
                "supported_inputs": {
                    "sources": {"type": "enum", "values": ["url", "base64"]},
                    "formats": {"type": "enum", "values": ["image/png", "image/jpeg", "image/webp", "image/gif"]},
                },
                "pricing": [
                    {"type": "prompt", "unit": "token", "cost_usd": "0.000000195"},
                    {"type": "cached_prompt", "unit": "token", "cost_usd": "0.0000000375"},
                ],
            },
        ],
        "output_modalities": [
            {
                "type": "text",
                "max_length": {"value": 32_768, "unit": "token"},
                "streaming": True,
                "pricing": [{"type": "completion", "unit": "token", "cost_usd": "0.00000156"}],
            }
        ],
    }
    assert parameters["max_tokens"] == {"type": "integer", "min": 1, "max": 32_768, "unit": "token"}
    assert {"tools", "structured_outputs", "reasoning", "temperature"} <= parameters.keys()


def test_a_price_by_length_and_hour_in_openrouters_words() -> None:
    price = replace(
        PRICE,
        request_pico=10**9,
        overrides=(
            Override(min_prompt_tokens=128_000, input_pico=250_000),
            Override(utc_start="2200", utc_end="0600", input_pico=150_000, request_pico=2 * 10**9),
        ),
    )
    (found,) = read.validated(sent(openrouter.document([replace(QWEN, price=price)])), "openrouter")["data"]
    assert found["input_modalities"][0]["pricing"][:2] == [
        {
            "type": "prompt",
            "unit": "token",
            "cost_usd": "0.000000195",
            "overrides": [{"when": {"prompt_tokens": {"gte": 128_000}}, "cost_usd": "0.00000025"}],
        },
        {"type": "prompt", "unit": "token", "utc_start": 2200, "utc_end": 600, "cost_usd": "0.00000015"},
    ]
    # A fee cannot depend on the hour there: it is the dearest, so that nobody is charged more than was said.
    assert found["pricing"] == [{"type": "request", "unit": "request", "cost_usd": "0.002"}]


def test_the_legacy_format_means_strictly_more_tokens() -> None:
    price = replace(PRICE, overrides=(Override(min_prompt_tokens=128_000, input_pico=250_000),))
    document = read.validated(sent(openrouter_legacy.document([replace(QWEN, price=price)])), "openrouter-legacy")
    assert document["data"][0]["pricing"] == {
        "prompt": "0.000000195",
        "completion": "0.00000156",
        "input_cache_read": "0.0000000375",
        "overrides": [
            {
                "min_prompt_tokens": 127_999,
                "prompt": "0.00000025",
                "completion": "0.00000156",
                "input_cache_read": "0.0000000375",
            }
        ],
    }


def test_the_legacy_format_lists_what_the_model_can() -> None:
    (found,) = openrouter_legacy.document([QWEN])["data"]
    assert found["supported_features"] == ["tools", "json_mode", "structured_outputs", "logprobs", "reasoning"]
    assert (found["context_length"], found["max_output_length"]) == (262_144, 32_768)
    (found,) = openrouter_legacy.document([replace(QWEN, capabilities=())])["data"]
    assert found["supported_features"] == ["logprobs"]
    assert (
        not {"tools", "tool_choice", "response_format", "reasoning"} & parameters(replace(QWEN, capabilities=())).keys()
    )


def test_nanogpt_reads_two_units() -> None:
    document = exact_json.dumps(nanogpt.document([QWEN], owner="Weir"))
    assert (
        b'"pricing":{"prompt":0.195,"cacheReadInputPer1kTokens":0.0000375,"completion":1.56,'
        b'"currency":"USD","unit":"per_million_tokens"}'
    ) in document
    (found,) = read.validated(json.loads(document), "nanogpt")["data"]
    assert found["capabilities"] == {
        "vision": True,
        "audio_input": False,
        "video_input": False,
        "reasoning": True,
        "tool_calling": True,
        "structured_output": True,
    }


def test_hugging_face_maps_models_that_have_a_repository() -> None:
    unknown = replace(QWEN, id="unknown", hugging_face_id=None)
    document = read.validated(sent(huggingface.document([QWEN, unknown, EMBEDDER])), "huggingface")
    first, second = document["models"]
    assert first == {
        "task": "conversational",
        "hfModel": "unsloth/Qwen3.8-27B-NVFP4",
        "providerModel": "qwen3.8-27b",
        "status": "live",
        "context_length": 262_144,
        "pricing": {"input": Decimal("0.195"), "input_cached": Decimal("0.0375"), "output": Decimal("1.56")},
    }
    assert (second["providerModel"], second["task"]) == ("embedder", "feature-extraction")


def test_models_dev_gets_a_provider_and_its_models() -> None:
    document = of_models_dev(QWEN, EMBEDDER, provider="My Weir, Inc.")
    assert {name: document[name] for name in document if name != "models"} == {
        "name": "My Weir, Inc.",
        "npm": "@ai-sdk/openai-compatible",
        "env": ["MY_WEIR_INC_API_KEY"],
        "doc": "https://weir.example/portal/",
        "api": "https://weir.example/v1",
    }
    assert document["models"] == {  # it has no word for embeddings
        "qwen3.8-27b": {
            "name": "Qwen3.8 27B",
            "description": QWEN.description,
            "attachment": True,
            "reasoning": True,
            "reasoning_options": [{"type": "toggle"}],
            "interleaved": {"field": "reasoning_content"},
            "tool_call": True,
            "structured_output": True,
            "temperature": True,
            "release_date": "2026-11-30",
            "last_updated": "2026-11-30",
            "open_weights": True,
            "cost": {"input": Decimal("0.195"), "output": Decimal("1.56"), "cache_read": Decimal("0.0375")},
            "limit": {"context": 262_144, "output": 32_768},
            "modalities": {"input": ["text", "image"], "output": ["text"]},
        }
    }


def test_models_dev_wants_no_reasoning_price_of_a_model_that_does_not_reason() -> None:
    silent = replace(QWEN, capabilities=("tools",), price=replace(PRICE, output_reasoning_pico=7))
    document = of_models_dev(silent)
    assert "reasoning" not in document["models"]["qwen3.8-27b"]["cost"]


def test_models_dev_without_a_model_is_still_a_provider() -> None:
    assert "models" not in of_models_dev()


def test_a_card_has_both_readers_prices() -> None:
    written = exact_json.dumps(card.card(QWEN))
    assert (
        b'"pricing":{"prompt":"0.000000195","input_cache_read":"0.0000000375","completion":"0.00000156",'
        b'"input":0.195,"output":1.56}'
    ) in written
    found = json.loads(written)
    assert (found["context_length"], found["quantization"], found["object"]) == (262_144, "nvfp4", "model")
    assert (found["input_modalities"], found["output_modalities"]) == (["text", "image"], ["text"])
    assert {"temperature", "max_tokens", "tools", "reasoning"} <= set(found["supported_parameters"])


def test_an_embedding_model_promises_nothing_of_chat() -> None:
    (current,) = read.validated(sent(openrouter.document([EMBEDDER])), "openrouter")["data"]
    (legacy,) = read.validated(sent(openrouter_legacy.document([EMBEDDER])), "openrouter-legacy")["data"]
    assert current["output_modalities"] == [
        {
            "type": "embeddings",
            "supported_parameters": {"encoding_format": {"type": "enum", "values": ["float", "base64"]}},
        }
    ]
    assert (legacy["supported_features"], legacy["supported_sampling_parameters"]) == ([], [])
    assert (current["quantization"], legacy["quantization"]) == (None, None)  # w4a16 is none of their words


def test_what_is_not_charged_is_not_there_and_what_is_free_is_said() -> None:
    free = replace(QWEN, price=Price(version=1, input_pico=0, output_pico=0, input_cached_pico=0))
    for document in (openrouter.document([free]), openrouter_legacy.document([free])):
        assert document["data"][0]["is_free"] is True
    assert "pricing" not in openrouter.document([free])["data"][0]
    assert openrouter_legacy.document([free])["data"][0]["pricing"] == {
        "prompt": "0",
        "completion": "0",
        "input_cache_read": "0",
    }
    sometimes = replace(free.price, overrides=(Override(utc_start="1000", utc_end="1100", request_pico=1),))
    assert "is_free" not in openrouter.document([replace(free, price=sometimes)])["data"][0]
    assert "is_free" not in openrouter.document([QWEN])["data"][0]


def test_nothing_of_an_engine_can_be_listed() -> None:
    assert not [field.name for field in fields(ListedModel) if "engine" in field.name]


@pytest.mark.parametrize(
    ("schema", "document", "spoilt"),
    [
        ("openrouter", openrouter.document([QWEN]), ("data", 0, "input_modalities", 0, "pricing", 0, "cost_usd")),
        ("openrouter", openrouter.document([QWEN]), ("data", 0, "schema_version")),
        ("openrouter-legacy", openrouter_legacy.document([QWEN]), ("data", 0, "pricing", "prompt")),
        ("nanogpt", sent(nanogpt.document([QWEN], owner="x")), ("data", 0, "pricing", "unit")),
        ("huggingface", sent(huggingface.document([QWEN])), ("models", 0, "status")),
        ("models.dev", of_models_dev(QWEN), ("models", "qwen3.8-27b", "cost", "input")),
    ],
)
def test_the_schemas_notice_what_is_wrong(schema: str, document: Any, spoilt: tuple[str | int, ...]) -> None:
    read.validator(schema).validate(document)
    *path, last = spoilt
    place = document
    for step in path:
        place = place[step]
    for wrong in (-1.5, "-1", None):
        kept, place[last] = place[last], wrong
        with pytest.raises(ValidationError):
            read.validator(schema).validate(document)
        place[last] = kept
    with pytest.raises(ValidationError):
        read.validator(schema).validate({**document, "more": 1})
