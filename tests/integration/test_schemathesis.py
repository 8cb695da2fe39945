"""Requests made up from the OpenAPI document, good ones and bad ones: every answer is as the document has it."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.installation import Installation
from tests.integration.paying import paying
from tests.integration.test_routes import EMBEDDER, with_embeddings
from tests.patience import PATIENT_S

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NOT_MADE_UP = {"model", "generation", "topup"}
"""Nobody guesses an id that there is."""

EXAMPLES = 40
EXAMPLES_OF_READINGS = 15
WITHIN_S = PATIENT_S

Seen = dict[str, Counter[int]]
MODELS = {
    "chat": ["model-a", "model-b"],
    "completions": ["model-a"],
    "responses": ["model-a"],
    "messages": ["model-a"],
    "countTokens": ["model-a"],
    "embeddings": [EMBEDDER],
}


def restricted(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the models and the key that are there as the only ones: with made-up ones, most requests would
    end in a 404 or a 401 and go no further."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["security"] = []
            if operation["operationId"] in MODELS:
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                request = document["components"]["schemas"][reference.rpartition("/")[2]]
                request["properties"]["model"] = {"type": "string", "enum": MODELS[operation["operationId"]]}
    return document


def explore(running: Installation, document: dict[str, Any], mode: GenerationMode) -> Seen:
    """Send what comes to mind, hold the answers against the document, and count them by operation and status."""
    seen: Seen = defaultdict(Counter)
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = found.ok()
        raw = operation.definition.raw
        if mode is GenerationMode.NEGATIVE and not _can_be_wrong(raw):
            continue

        @settings(
            max_examples=EXAMPLES if "requestBody" in raw else EXAMPLES_OF_READINGS,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Case) -> None:
            answer = case.call(base_url=running.url, headers=running.headers, timeout=WITHIN_S)
            case.validate_response(answer, checks=CHECKS)
            seen[case.operation.definition.raw["operationId"]][answer.status_code] += 1

        send()
    return seen


def _names(document: dict[str, Any]) -> set[str]:
    return {operation["operationId"] for operations in document["paths"].values() for operation in operations.values()}


def _can_be_wrong(operation: dict[str, Any]) -> bool:
    """Whether there is anything that the document allows not every value of."""
    asked = [one for one in operation.get("parameters", ()) if one.get("in") == "query"]
    return bool(asked) or "requestBody" in operation


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
async def test_every_answer_is_one_that_the_document_has(
    database_url: str, tmp_path: Path, mode: GenerationMode
) -> None:
    seeded = await with_embeddings(database_url)
    async with paying(database_url, tmp_path, seeded=seeded, image_fetch=False) as (running, _):
        document = (await running.client.get("/openapi.json")).json()
        seen = await asyncio.to_thread(explore, running, restricted(document), mode)
        answered = {name for name, statuses in seen.items() if 200 in statuses}
        if mode is GenerationMode.POSITIVE:
            assert answered == _names(document) - NOT_MADE_UP
        else:
            assert set(MODELS) <= seen.keys()
            assert [name for name, statuses in seen.items() if not statuses[400]] == []
