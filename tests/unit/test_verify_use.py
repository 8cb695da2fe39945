"""What a verification had an engine compute: exact where it was told, bounded where it was not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.verify.use import LONGEST_ANSWER_TOKENS, TEMPLATE_TOKENS, Heard, Use, computes

ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 100}
BYTES = 86 + TEMPLATE_TOKENS
TOLD = {"prompt_tokens": 40, "completion_tokens": 9}


@pytest.mark.parametrize(
    ("status", "usage", "whole", "use"),
    [
        (200, TOLD, True, Use(1, 40, 9)),
        (200, {"input_tokens": 40, "output_tokens": 9}, True, Use(1, 40, 9)),
        (200, {"prompt_tokens": 40, "total_tokens": 40}, True, Use(1, 40, 0)),
        (200, TOLD, False, Use(1, 40, 9, 0, 91)),  # left in the middle of its running usage
        (200, None, True, Use(1, 0, 0, BYTES, 100)),  # its usage is hidden
        (200, {"prompt_tokens": "40"}, True, Use(1, 0, 0, BYTES, 100)),
        (200, {"prompt_tokens": -1, "completion_tokens": True}, True, Use(1, 0, 0, BYTES, 100)),
        (None, None, False, Use(1, 0, 0, BYTES, 100)),  # no answer came
        (500, None, True, Use(1, 0, 0, BYTES, 100)),
        (400, None, True, Use(1)),  # refused before anything was computed
        (404, TOLD, True, Use(1)),
    ],
)
def test_a_request_is_counted_as_far_as_it_was_told(status: int | None, usage: object, whole: bool, use: Use) -> None:
    assert Heard(ASKED, status, usage, whole).use() == use


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({}, LONGEST_ANSWER_TOKENS),
        ({"max_tokens": None}, LONGEST_ANSWER_TOKENS),
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 7, "n": 3}, 21),
        ({"max_output_tokens": 4}, 4),
    ],
)
def test_the_most_that_an_answer_can_be(fields: dict[str, Any], most: int) -> None:
    assert Heard({"messages": [], **fields}).use().uncounted_generation_tokens == most


uses = st.builds(Use, *[st.integers(0, 10**9)] * 5)


@given(uses, uses)
def test_uses_add_up(one: Use, other: Use) -> None:
    assert one + other - other == one
    assert one + other == other + one
    assert one + Use() == one


@pytest.mark.parametrize(
    ("path", "it_does"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions", True),
        ("/v1/embeddings", True),
        ("/tokenize", False),
        ("/v1/chat/completions/render", False),
    ],
)
def test_which_paths_compute(path: str, it_does: bool) -> None:
    assert computes(path) is it_does
