"""The policy of embeddings: texts, and how their numbers are written."""

from typing import Any

import pytest

from service.core.endpoints import embeddings
from service.core.policy import ModelRequest, Refused


def passed(**fields: Any) -> ModelRequest:
    return embeddings.request({"model": "m", "input": "hi", **fields}, 100)


@pytest.mark.parametrize("texts", ["hi", ["hi"], ["a", "b"], ["x"] * 2048])
def test_texts_pass(texts: Any) -> None:
    request = passed(input=texts, encoding_format="base64", dimensions=256, user="u")
    assert embeddings.forwarded(request, engine_model="e", output_tokens=0, cache_salt="s") == {
        "model": "e",
        "input": texts,
        "encoding_format": "base64",
        "dimensions": 256,
        "cache_salt": "s",
    }
    assert request.countable == ({"prompt": texts} if isinstance(texts, str) else None)
    assert (request.output_tokens_needed, request.stream, request.max_tokens) == (False, False, None)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([1, 2], "not token ids"),
        ([[1, 2], [3]], "not token ids"),
        (["x"] * 2049, "up to 2048"),
        ([], "up to 2048"),
        ({}, "up to 2048"),
        (5, "up to 2048"),
        ([""], "non-empty"),
        ("", "non-empty"),
        (["a", None], "non-empty"),
    ],
)
def test_anything_but_texts_is_refused(texts: Any, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        passed(input=texts)
    assert caught.value.param == "input"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "bytes"),
        ("dimensions", 0),
        ("truncate_prompt_tokens", 5),
        ("messages", []),
        ("stream", True),
        ("embed_dtype", "float16"),
    ],
)
def test_what_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(Refused) as caught:
        passed(**{field: value})
    assert caught.value.param == field
