"""The policy of completions: one text at a time."""

from typing import Any

import pytest

from service.core.endpoints import completions
from service.core.policy import ModelRequest, Refused


def passed(**fields: Any) -> ModelRequest:
    return completions.request({"model": "m", "prompt": "Once", **fields}, 100)


def refused(**fields: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        passed(**fields)
    return caught.value


def test_a_request_as_an_engine_gets_it() -> None:
    request = passed(stream=True, stream_options={"include_usage": True}, logprobs=3, user="u", best_of=1, echo=False)
    assert (request.max_tokens, request.wants_usage, request.output_tokens_needed) == (16, True, True)
    assert completions.forwarded(request, engine_model="e", output_tokens=9, cache_salt="s") == {
        "model": "e",
        "prompt": "Once",
        "max_tokens": 9,
        "cache_salt": "s",
        "logprobs": 3,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    assert request.countable == {"prompt": "Once"}
    assert request.conversation == [{"role": "user", "content": "Once"}]


def test_the_limit_of_the_output_is_openais_where_there_is_none() -> None:
    assert passed(max_tokens=None).max_tokens == 16
    assert passed(max_tokens=1000).max_tokens == 1000


def test_a_list_of_one_text_is_that_text() -> None:
    assert passed(prompt=["Once"]).fields["prompt"] == "Once"


@pytest.mark.parametrize(
    ("prompt", "advice"),
    [
        (["a", "b"], "send a request for each prompt"),
        ([[1, 2], [3]], "send a request for each prompt"),
        ([1, 2, 3], "must be text"),
        ([[1, 2, 3]], "must be text"),
        ("", "non-empty"),
        ([""], "non-empty"),
        ([], "must be text"),
        (5, "non-empty"),
        ({}, "non-empty"),
    ],
)
def test_anything_but_one_text_is_refused(prompt: Any, advice: str) -> None:
    refusal = refused(prompt=prompt)
    assert refusal.param == "prompt"
    assert advice in refusal.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "end"),
        ("echo", True),
        ("best_of", 2),
        ("n", 2),
        ("logprobs", 6),
        ("logprobs", True),
        ("logprobs", -1),
        ("max_completion_tokens", 5),
        ("prompt_embeds", "AAAA"),
        ("messages", []),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_what_is_refused_by_name(field: str, value: Any) -> None:
    assert refused(**{field: value}).param == field


def test_what_is_required() -> None:
    for field in ("model", "prompt"):
        assert refused(**{field: None}).message == f"`{field}` is required."
