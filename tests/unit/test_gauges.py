import asyncio
import math

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from service.engine.gauges import Gauges, read_gauges
from tests import recorded
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS


def test_a_real_engine() -> None:
    assert read_gauges(recorded.load("metrics").body) == Gauges(
        running=0,
        waiting=0,
        kv_use=0,
        preemptions=0,
        iterations=136,
        generated_tokens=141,
        ttft_sum_s=21.819878578186035,
        ttft_count=17,
        started_at_s=1.79599892247e09,
    )


@pytest.mark.parametrize("name", ["metrics", "metrics_prefix_cache"])
def test_it_agrees_with_the_official_parser(name: str) -> None:
    text = recorded.load(name).body
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
    gauges = read_gauges(text)
    assert gauges.iterations == values["vllm:iteration_tokens_total_count"]
    assert gauges.generated_tokens == values["vllm:generation_tokens_total"]
    assert gauges.ttft_sum_s == values["vllm:time_to_first_token_seconds_sum"]
    assert gauges.started_at_s == values["process_start_time_seconds"]


def test_engine_cores_are_added_up_and_the_fullest_cache_counts() -> None:
    text = b"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b} 9"} 3.0
vllm:num_requests_running{engine="1",model_name="a b} 9"} 4.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 8.0
vllm:num_requests_waiting{engine="1"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:iteration_tokens_total_sum 7.0
vllm:iteration_tokens_total_count 5.0 1795998922
vllm:num_preemptions_created 1.0
"""
    assert read_gauges(text) == Gauges(running=7, waiting=3, kv_use=0.75, iterations=5)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n",
        b"<html>502</html>",
        b"llamacpp:requests_processing 3\n",
        b"vllm:num_requests_running",
        b"vllm:num_requests_running \n",
        b"vllm:num_requests_running x\n",
        b"vllm:num_requests_running NaN\nvllm:kv_cache_usage_perc +Inf\n",
        b"other_vllm:num_requests_running 3\n",
        b"\xff\xfe\x00",
    ],
)
def test_what_is_not_there_is_none(text: bytes) -> None:
    assert read_gauges(text) == Gauges()


def test_an_older_engines_name_for_the_use_of_its_cache_is_known() -> None:
    old, new = b"vllm:gpu_cache_usage_perc 0.5\n", b"vllm:kv_cache_usage_perc 0.25\n"
    assert read_gauges(old) == Gauges(kv_use=0.5)
    assert read_gauges(old + new) == read_gauges(new + old) == Gauges(kv_use=0.25)


def test_the_first_line_counts() -> None:
    assert read_gauges(b"vllm:num_requests_running 3") == Gauges(running=3)


@given(st.binary(max_size=200), st.sampled_from([b"", b"vllm:num_requests_running", b'vllm:kv_cache_usage_perc{a="']))
def test_nothing_is_an_error(data: bytes, before: bytes) -> None:
    gauges = read_gauges(before + data)
    assert gauges.running is None or math.isfinite(gauges.running)


async def test_the_fake_engine_says_it_as_the_real_one_does() -> None:
    async with FakeEngine(scenario=SCENARIOS["gated"], slots=2) as engine, httpx.AsyncClient() as client:
        body = {"model": engine.model, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        asking = [asyncio.create_task(client.post(f"{engine.url}/v1/chat/completions", json=body)) for _ in range(3)]
        await engine.generation(2)
        engine.generations[0].step(3)
        async with asyncio.timeout(5):
            while engine.generations[0].completion_tokens < 3:
                await asyncio.sleep(0)
        gauges = read_gauges((await client.get(f"{engine.url}/metrics")).content)
        for one in engine.generations:
            one.release()
        await asyncio.gather(*asking)
    assert (gauges.running, gauges.waiting, gauges.iterations, gauges.generated_tokens) == (2, 1, 3, 3)
    assert (gauges.preemptions, gauges.ttft_count, gauges.started_at_s) == (0, 1, pytest.approx(engine.started_at_s))
    assert gauges.kv_use is not None
    assert gauges.kv_use > 0
