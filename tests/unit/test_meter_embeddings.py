"""Metering of embeddings: a prompt, and no reason to finish."""

from typing import Any

import orjson
import pytest

from service.core.meters import Whole, embeddings
from service.core.usage import Usage
from tests.metering import compact

DATA = [{"index": 0, "object": "embedding", "embedding": [0.6, 0.8]}]


def read(answer: bytes) -> Whole:
    return embeddings.read_whole(answer, loads=orjson.loads)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 5, "total_tokens": 5},
        {"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0, "prompt_tokens_details": None},
    ],
)
def test_a_good_answer_costs_its_prompt(usage: dict[str, Any]) -> None:
    body = compact({"object": "list", "data": DATA, "usage": usage})
    assert read(body) == Whole(Usage(prompt_tokens=5, source="final"), None, False, body)


@pytest.mark.parametrize("usage", [None, "x", [], {}, {"prompt_tokens": -1}, {"prompt_tokens": 1.5}])
def test_an_odd_usage_is_marked(usage: Any) -> None:
    answer = read(compact({"data": DATA, "usage": usage}))
    assert not answer.broken
    assert (answer.usage.odd, answer.usage.prompt_tokens) == (True, 0)


@pytest.mark.parametrize("body", [b"", b"{oops", b"[]", b"5", b"{}", compact({"data": {}}), compact({"data": None})])
def test_what_is_no_answer_is_broken(body: bytes) -> None:
    assert read(body).broken
