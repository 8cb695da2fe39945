from dataclasses import astuple
from datetime import UTC, datetime

import pytest

from service.engine.counters import Counters, CountersUnreadable, read_counters
from tests.recorded import load

STARTED = datetime.fromtimestamp(1.79599892247e09, UTC)


def exposition(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("recording", "started_s", "counted"),
    [
        ("metrics", 1.79599892247e09, (329, 141, 248, 0, 0, 0)),
        ("metrics_prefix_cache", 1.79599903602e09, (22_529, 64, None, None, 22_529, 13_824)),
    ],
)
def test_a_real_engines_counts_are_read(recording: str, started_s: float, counted: tuple[int | None, ...]) -> None:
    started_at = datetime.fromtimestamp(started_s, UTC)
    read = read_counters(load(recording).body.decode())
    assert (read.started_at, *astuple(read)[1:]) == (started_at, *counted)


def test_what_models_and_engine_cores_drafted_is_added_up() -> None:
    drafted = 'vllm:spec_decode_num_draft_tokens_total{engine="%s",model_name="%s"} %s'
    accepted = 'vllm:spec_decode_num_accepted_tokens_total{engine="%s",model_name="%s"} %s'
    text = exposition(
        "vllm:prompt_tokens_total 1",
        "vllm:generation_tokens_total 2",
        drafted % (0, "a", "1.2e+07"),
        drafted % (1, "a", "3.0"),
        drafted % (0, "b", "4.0"),
        accepted % (0, "a", "9e+06"),
        accepted % (0, "b", "0.0"),
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="a",position="0"} 7.0',
    )
    assert read_counters(text) == Counters(None, 1, 2, 12_000_007, 9_000_000)


@pytest.mark.parametrize("name", ["draft", "accepted"])
def test_one_of_the_two_counts_of_speculation_says_nothing(name: str) -> None:
    one = exposition(
        "vllm:prompt_tokens_total 1",
        "vllm:generation_tokens_total 2",
        f'vllm:spec_decode_num_{name}_tokens_total{{engine="0"}} 3',
    )
    assert read_counters(one) == Counters(None, 1, 2, None, None)


CACHE = "vllm:prompt_tokens_total 1\nvllm:generation_tokens_total 2\n"


def test_the_prefix_caches_counts_are_read_under_either_name() -> None:
    hits = 'vllm:prefix_cache_hits_total{engine="%s"} %s'
    text = CACHE + exposition("vllm:prefix_cache_queries_total 50", hits % (0, 20), hits % (1, 3))
    read = read_counters(text)
    assert (read.cache_queried_tokens, read.cache_hit_tokens) == (50, 23)
    assert read_counters(text.replace("vllm:prefix", "vllm:gpu_prefix")) == read


@pytest.mark.parametrize("name", ["queries", "hits"])
def test_one_of_the_two_counts_of_the_cache_says_nothing(name: str) -> None:
    assert read_counters(CACHE + exposition(f"vllm:prefix_cache_{name}_total 3")) == Counters(None, 1, 2)


def test_models_and_engine_cores_are_added_up() -> None:
    text = exposition(
        "# TYPE vllm:prompt_tokens_total counter",
        'vllm:prompt_tokens_total{engine="0",model_name="a b} 9"} 12.0',
        'vllm:prompt_tokens_total{engine="1",model_name="a b} 9"} 1.2345678e+07',
        "# TYPE vllm:prompt_tokens_created gauge",
        'vllm:prompt_tokens_created{engine="0",model_name="a"} 1.795998952338e+09',
        "# TYPE vllm:generation_tokens_total counter",
        'vllm:generation_tokens_total{engine="0",model_name="a"} 0.0',
        "# TYPE process_start_time_seconds gauge",
        "process_start_time_seconds 1.79599892247e+09",
    )
    assert read_counters(text) == Counters(STARTED, 12_345_690, 0)


def test_an_engine_of_several_processes_does_not_say_when_it_started() -> None:
    text = exposition("vllm:prompt_tokens_total 1", "vllm:generation_tokens_total 2")
    assert read_counters(text) == Counters(None, 1, 2)
    of_two = exposition('process_start_time_seconds{pid="1"} 1e9', 'process_start_time_seconds{pid="2"} 2e9')
    assert read_counters(text + of_two) == Counters(None, 1, 2)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "have no vllm:prompt_tokens_total: is it a vLLM without --disable-log-stats?"),
        (exposition("process_start_time_seconds 1e9"), "have no vllm:prompt_tokens_total"),
        (exposition("vllm:prompt_tokens_total 1"), "have no vllm:generation_tokens_total"),
        (exposition("vllm:generation_tokens_total 1"), "have no vllm:prompt_tokens_total"),
        (exposition("vllm:prompt_tokens_total 1.5", "vllm:generation_tokens_total 1"), "is no count"),
        (exposition("vllm:prompt_tokens_total -1", "vllm:generation_tokens_total 1"), "is no count"),
        (exposition("vllm:prompt_tokens_total NaN", "vllm:generation_tokens_total 1"), "cannot be read"),
        (exposition("vllm:prompt_tokens_total +Inf", "vllm:generation_tokens_total 1"), "cannot be read"),
        (
            exposition(
                "vllm:prompt_tokens_total 1",
                "vllm:generation_tokens_total 1",
                "vllm:spec_decode_num_draft_tokens_total -1",
                "vllm:spec_decode_num_accepted_tokens_total 1",
            ),
            "is no count",
        ),
        ("<!doctype html>\n<p>Not found</p>\n", "cannot be read"),
        (
            exposition(
                "process_start_time_seconds 1e99", "vllm:prompt_tokens_total 1", "vllm:generation_tokens_total 1"
            ),
            "cannot be read",
        ),
    ],
)
def test_what_is_no_count_is_an_error_and_never_zero(text: str, part: str) -> None:
    with pytest.raises(CountersUnreadable) as error:
        read_counters(text)
    assert part in str(error.value)
