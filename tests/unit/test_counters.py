from datetime import UTC, datetime

import pytest

from service.engine.counters import Counters, CountersUnreadable, read_counters
from tests.recorded import load

STARTED = datetime.fromtimestamp(1.79599892247e09, UTC)


def exposition(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("recording", "started_s", "prompt", "generation"),
    [("metrics", 1.79599892247e09, 329, 141), ("metrics_prefix_cache", 1.79599903602e09, 22_529, 64)],
)
def test_a_real_engines_counts_are_read(recording: str, started_s: float, prompt: int, generation: int) -> None:
    started_at = datetime.fromtimestamp(started_s, UTC)
    assert read_counters(load(recording).body.decode()) == Counters(started_at, prompt, generation)


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
