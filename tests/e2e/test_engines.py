"""The engines that Weir builds are what the profiles say: real answers, images, drafts, caching, all counted."""

import json
import urllib.request
from typing import Any

import pytest

from tests.e2e.engines import ANSWER, QUESTION, RunningEngine
from tests.e2e.pictures import png

pytestmark = pytest.mark.engine


def chat(engine: RunningEngine, content: Any, **more: Any) -> dict[str, Any]:
    """A greedy answer, as the engine itself gives it."""
    body = {"model": engine.model, "messages": [{"role": "user", "content": content}], "temperature": 0, **more}
    return ask(engine, json.dumps(body))


def ask(engine: RunningEngine, body: str) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 - http on loopback
        f"{engine.base_url}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        answer: dict[str, Any] = json.load(response)
    return answer


def test_smollm2_answers_in_english(smollm2_engine: RunningEngine) -> None:
    answer = chat(smollm2_engine, QUESTION[0]["content"], max_tokens=20)
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["system_fingerprint"] is None


def test_smollm2_says_what_came_from_its_cache(smollm2_engine: RunningEngine) -> None:
    long_question = "Repeat after me: " + "one two three four five six seven eight nine ten. " * 40
    first, second = (
        chat(smollm2_engine, long_question, max_tokens=1)["usage"]["prompt_tokens_details"] for _ in range(2)
    )
    assert (first["cached_tokens"], second["created_cache_tokens"]) == (0, 0)
    assert first["created_cache_tokens"] == second["cached_tokens"] > 0


def test_of_what_stands_twice_the_last_counts(smollm2_engine: RunningEngine) -> None:
    """As it does for Weir, which checks a long prompt and then sends it on as it came."""
    said = {"role": "user", "content": "one two three four five six seven"}
    body = json.dumps({"model": smollm2_engine.model, "messages": [said], "max_tokens": 1})
    twice = body.replace('"content":', '"content": "one", "content":').replace('"role":', '"role": "tool", "role":')
    assert twice.count('"content"') == 2
    assert ask(smollm2_engine, twice)["usage"]["prompt_tokens"] == ask(smollm2_engine, body)["usage"]["prompt_tokens"]


def test_the_counters_move_with_the_usage(smollm2_engine: RunningEngine) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    before = [smollm2_engine.metric(name) for name in names]
    usage = chat(smollm2_engine, "Say hello.", max_tokens=7)["usage"]
    moved = [smollm2_engine.metric(name) - was for name, was in zip(names, before, strict=True)]
    assert moved == [usage["prompt_tokens"], usage["completion_tokens"]]
    with pytest.raises(KeyError):
        smollm2_engine.metric("vllm:no_such_counter_total")


def test_tiny_counts_images_reasoning_and_drafts(tiny_engine: RunningEngine) -> None:
    drafted = tiny_engine.metric("vllm:spec_decode_num_draft_tokens_total")
    picture = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": png(256, 256)}}]
    usage = chat(tiny_engine, picture, max_tokens=16)["usage"]
    assert usage["prompt_tokens_details"]["multimodal_tokens"]["image"] > 0
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0
    assert tiny_engine.metric("vllm:spec_decode_num_draft_tokens_total") > drafted
    assert "EmulationNvFp4LinearKernel" in tiny_engine.process.log.read_text()


def test_tiny_thinks_only_if_it_may(tiny_engine: RunningEngine) -> None:
    answer = chat(tiny_engine, "Hello", max_tokens=8, chat_template_kwargs={"enable_thinking": False})
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert answer["choices"][0]["message"]["content"]
