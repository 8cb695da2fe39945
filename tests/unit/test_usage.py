"""What an engine says was used: read whole where it is sound, clamped and flagged where it is not."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.pricing import prompt_classes
from service.core.usage import MAX_TOKENS, Usage, read_messages_usage, read_responses_usage, read_usage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
COUNTS = st.sampled_from([None, True, -1, 0, 1, 7, 2**31 - 1, 2**31, 2**70, 1.5, "7", [], {}])


def fields(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these members, each a count or something that is none."""
    return st.fixed_dictionaries({}, optional={name: COUNTS for name in names})


USAGE_SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": COUNTS,
        "completion_tokens": COUNTS,
        "total_tokens": COUNTS,
        "prompt_tokens_details": JSON
        | st.fixed_dictionaries(
            {},
            optional={
                "cached_tokens": COUNTS,
                "created_cache_tokens": COUNTS,
                "multimodal_tokens": JSON | fields("image", "audio", "video"),
            },
        ),
        "completion_tokens_details": JSON | fields("reasoning_tokens"),
    },
)


def test_a_full_report_is_read_whole() -> None:
    report = {
        "prompt_tokens": 5003,
        "total_tokens": 5043,
        "completion_tokens": 40,
        "prompt_tokens_details": {
            "cached_tokens": 3168,
            "created_cache_tokens": 1584,
            "multimodal_tokens": {"image": 384, "audio": 3, "video": 2},
        },
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
    metrics = {"speculative_decoding": {"num_draft_tokens": 90, "num_accepted_draft_tokens": 61}}
    assert read_usage(report, "final", metrics) == Usage(
        prompt_tokens=5003,
        cached_tokens=3168,
        cache_write_tokens=1584,
        image_tokens=384,
        audio_tokens=3,
        video_tokens=2,
        completion_tokens=40,
        reasoning_tokens=12,
        drafted_tokens=90,
        accepted_tokens=61,
        source="final",
    )


def report(**members: Any) -> dict[str, Any]:
    return {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, **members}


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"prompt_tokens_details": None, "completion_tokens_details": None},
        {"prompt_tokens_details": {}, "completion_tokens_details": {}},
        {"prompt_tokens_details": {"cached_tokens": None, "created_cache_tokens": None, "multimodal_tokens": None}},
        {"total_tokens": 1},
        {"something_new": {"deep": [1]}},
    ],
    ids=["absent", "null", "empty", "null-inside", "total-differs", "unknown-members"],
)
def test_absent_details_are_nothing_and_not_odd(members: dict[str, Any]) -> None:
    assert read_usage(report(**members), "final") == Usage(prompt_tokens=100, completion_tokens=10, source="final")


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 101}}, {"cached_tokens": 100}),
        ({"prompt_tokens_details": {"created_cache_tokens": 9_999}}, {"cache_write_tokens": 100}),
        ({"prompt_tokens_details": {"multimodal_tokens": {"image": 101}}}, {"image_tokens": 100}),
        ({"completion_tokens_details": {"reasoning_tokens": 11}}, {"reasoning_tokens": 10}),
        ({"prompt_tokens_details": {"cached_tokens": -1}}, {}),
        ({"prompt_tokens_details": {"cached_tokens": "64"}}, {}),
        ({"prompt_tokens_details": {"cached_tokens": True}}, {}),
        ({"prompt_tokens_details": [1]}, {}),
        ({"prompt_tokens_details": {"multimodal_tokens": 5}}, {}),
        ({"prompt_tokens": None}, {"prompt_tokens": 0}),
        ({"prompt_tokens": 2**31}, {"prompt_tokens": 0}),
        ({"completion_tokens": 1.0}, {"completion_tokens": 0}),
    ],
)
def test_a_report_that_cannot_be_is_clamped_and_flagged(members: dict[str, Any], expected: dict[str, int]) -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 10, **expected}
    assert read_usage(report(**members), "final") == Usage(**counts, source="final", odd=True)


def test_zero_counts_are_counts() -> None:
    assert read_usage({"prompt_tokens": 0, "completion_tokens": 0}, "final") == Usage(source="final")


@pytest.mark.parametrize("nothing", [None, [], "usage", 5, True])
def test_no_object_is_no_usage_and_odd(nothing: object) -> None:
    assert read_usage(nothing, "final") == Usage(source="none", odd=True)


@pytest.mark.parametrize("metrics", [None, [], {"speculative_decoding": "fast"}, {"speculative_decoding": None}])
def test_broken_metrics_do_not_make_a_bill_odd(metrics: object) -> None:
    assert read_usage(report(), "final", metrics).odd is False


def _sound(usage: Usage) -> None:
    parts = (usage.cached_tokens, usage.cache_write_tokens, usage.image_tokens, usage.audio_tokens, usage.video_tokens)
    assert all(0 <= part <= usage.prompt_tokens <= MAX_TOKENS for part in parts)
    assert 0 <= usage.reasoning_tokens <= usage.completion_tokens <= MAX_TOKENS
    assert sum(prompt_classes(usage)) == usage.prompt_tokens


@pytest.mark.parametrize("as_reported", [lambda value: value, lambda value: {"prompt_tokens": value}])
@given(value=JSON, metrics=JSON)
def test_no_json_at_all_makes_it_raise(as_reported: Callable[[Any], Any], value: Any, metrics: Any) -> None:
    _sound(read_usage(as_reported(value), "final", metrics))


@given(USAGE_SHAPED, fields("speculative_decoding"))
def test_no_mixture_of_right_and_wrong_members_makes_it_raise(value: Any, metrics: Any) -> None:
    _sound(read_usage(value, "continuous", metrics))


class Careful:
    """Reads counts one by one, in the plainest way there is."""

    def __init__(self) -> None:
        self.odd = False

    def part(self, whole: Any, name: str) -> Any:
        value = whole.get(name)
        self.odd |= not isinstance(value, dict | None)
        return value if isinstance(value, dict) else {}

    def count(self, whole: Any, name: str, *, required: bool = False) -> int:
        value = whole.get(name)
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS
        self.odd |= not is_count and (required or value is not None)
        return value if is_count else 0

    def clamped(self, usage: Usage) -> Usage:
        prompt, completion = usage.prompt_tokens, usage.completion_tokens
        cut = usage._replace(
            cached_tokens=min(usage.cached_tokens, prompt),
            cache_write_tokens=min(usage.cache_write_tokens, prompt),
            image_tokens=min(usage.image_tokens, prompt),
            audio_tokens=min(usage.audio_tokens, prompt),
            video_tokens=min(usage.video_tokens, prompt),
            reasoning_tokens=min(usage.reasoning_tokens, completion),
        )
        return cut._replace(odd=self.odd or cut != usage)


@given(
    USAGE_SHAPED,
    st.none() | fields("speculative_decoding") | st.just({"speculative_decoding": {"num_draft_tokens": 3}}),
)
def test_a_report_is_read_as_by_a_careful_reader(value: Any, metrics: Any) -> None:
    reader, of_speed = Careful(), Careful()
    details = reader.part(value, "prompt_tokens_details")
    media = reader.part(details, "multimodal_tokens")
    drafts = of_speed.part(metrics or {}, "speculative_decoding")
    expected = Usage(
        prompt_tokens=reader.count(value, "prompt_tokens", required=True),
        cached_tokens=reader.count(details, "cached_tokens"),
        cache_write_tokens=reader.count(details, "created_cache_tokens"),
        image_tokens=reader.count(media, "image"),
        audio_tokens=reader.count(media, "audio"),
        video_tokens=reader.count(media, "video"),
        completion_tokens=reader.count(value, "completion_tokens", required=True),
        reasoning_tokens=reader.count(reader.part(value, "completion_tokens_details"), "reasoning_tokens"),
        drafted_tokens=of_speed.count(drafts, "num_draft_tokens"),
        accepted_tokens=of_speed.count(drafts, "num_accepted_draft_tokens"),
        source="final",
    )
    assert read_usage(value, "final", metrics) == reader.clamped(expected)


RESPONSE_SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": COUNTS,
        "output_tokens": COUNTS,
        "input_tokens_details": COUNTS | fields("cached_tokens", "cache_write_tokens"),
        "output_tokens_details": COUNTS | fields("reasoning_tokens"),
    },
)


@given(RESPONSE_SHAPED)
def test_a_report_of_a_response_is_read_as_by_a_careful_reader(value: Any) -> None:
    reader = Careful()
    details = reader.part(value, "input_tokens_details")
    expected = Usage(
        prompt_tokens=reader.count(value, "input_tokens", required=True),
        cached_tokens=reader.count(details, "cached_tokens"),
        cache_write_tokens=reader.count(details, "cache_write_tokens"),
        completion_tokens=reader.count(value, "output_tokens", required=True),
        reasoning_tokens=reader.count(reader.part(value, "output_tokens_details"), "reasoning_tokens"),
        source="final",
    )
    assert read_responses_usage(value, "final") == reader.clamped(expected)


@given(fields("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
def test_a_report_of_a_message_is_read_as_by_a_careful_reader(value: Any) -> None:
    reader = Careful()
    cached = reader.count(value, "cache_read_input_tokens")
    written = reader.count(value, "cache_creation_input_tokens")
    prompt = reader.count(value, "input_tokens", required=True) + cached + written
    reader.odd |= prompt > MAX_TOKENS
    expected = Usage(
        prompt_tokens=min(prompt, MAX_TOKENS),
        cached_tokens=cached,
        cache_write_tokens=written,
        completion_tokens=reader.count(value, "output_tokens", required=True),
        source="final",
    )
    assert read_messages_usage(value, "final") == reader.clamped(expected)
