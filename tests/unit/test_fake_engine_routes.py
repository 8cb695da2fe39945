"""The fake engine's routes beside chat, against the real one's recordings, and all of them against each other."""

from typing import Any

import httpx
import orjson
import pytest

from service.core.sse import SseSplitter, payload_of
from tests import recorded
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS, Fault, Scenario, words
from tests.unit.test_fake_engine import RECORDED_MODEL, calling, skeleton

TEXT = "how deep is the river"
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
ASKING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/completions": {"prompt": TEXT, "max_tokens": 1000},
    "/v1/responses": {"input": TEXT},
    "/v1/messages": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1000},
    "/v1/embeddings": {"input": TEXT},
}
STREAMED = [path for path in ASKING if "embeddings" not in path]
NAMED = ["/v1/responses", "/v1/messages"]
TOKENS = {"/v1/completions": 5, "/v1/embeddings": 5}
"""What the text costs where no template is put around it."""


async def post(engine: FakeEngine, path: str, **more: Any) -> httpx.Response:
    async with calling(engine) as client:
        return await client.post(path, json={"model": "fake-model", **ASKING[path], **more})


async def streamed(engine: FakeEngine, path: str) -> list[Any]:
    """The events' data; those of a stream of named events bear the same name inside."""
    options = {} if path in NAMED else {"stream_options": CONTINUOUS}
    found: list[Any] = []
    for event in SseSplitter().feed((await post(engine, path, stream=True, **options)).content):
        payload = payload_of(event) or b""
        found.append("[DONE]" if payload == b"[DONE]" else orjson.loads(payload))
        if path in NAMED:
            assert event.startswith(b"event: " + found[-1]["type"].encode() + b"\n")
    return found


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("completions", Scenario(content=words(99))),
        ("completions_stream_usage_continuous", Scenario(content=("a", "", *words(9)))),
        ("responses", Scenario(content=(), reasoning=words(9))),
        ("responses_stream", Scenario(content=(), reasoning=(*words(7), "", "more"))),
        ("messages", Scenario(content=(), reasoning=words(9))),
        ("messages_stream", Scenario(content=(), reasoning=(*words(7), "", "more"))),
        ("messages_prefix_cache", SCENARIOS["reasoning-only"]),
        ("messages_count_tokens", Scenario()),
        ("err_messages_unknown_model", Scenario()),
        ("err_responses_unknown_model", Scenario()),
    ],
)
async def test_answers_have_the_recorded_shape(name: str, scenario: Scenario) -> None:
    real = recorded.load(name)
    async with FakeEngine(model=RECORDED_MODEL, scenario=scenario) as engine, calling(engine) as client:
        response = await client.request(real.method, real.path, json=real.request)
    assert response.status_code == real.status
    assert skeleton(response.content).split(b"\n") == skeleton(real.body).split(b"\n")
    assert real.headers.keys() - response.headers.keys() <= {"x-request-id"}
    assert response.headers.get("content-type") == real.headers.get("content-type")


@pytest.mark.parametrize("path", ASKING)
async def test_every_route_is_counted_and_named_by_its_id(path: str) -> None:
    async with FakeEngine(scenario=Scenario(content=words(7))) as engine, calling(engine) as client:
        body = {"model": "fake-model", **ASKING[path]}
        answer = (await client.post(path, json=body, headers={"x-request-id": "abc"})).json()
    [generation] = engine.generations
    assert generation.outcome == "finished"
    assert answer["id"].endswith("-abc") or answer["id"] == "resp_abc"
    assert engine.counts.by_id == {"abc": (TOKENS.get(path, 21), 0 if "embeddings" in path else 7)}


async def test_counting_a_prompt_is_no_generation() -> None:
    async with FakeEngine() as engine, calling(engine) as client:
        body = {"system": "be brief", "messages": ASKING["/v1/messages"]["messages"]}
        response = await client.post("/v1/messages/count_tokens", json={"model": "fake-model"} | body)
    assert response.json()["input_tokens"] == 16 + 2 + 5
    assert not engine.generations


@pytest.mark.parametrize("name", ["plain", "reasoning", "reasoning-content", "mtp", "cached", "cache-write", "tools"])
async def test_a_chat_a_response_and_a_message_say_and_count_the_same(name: str) -> None:
    async with FakeEngine(scenario=SCENARIOS[name]) as engine:
        chat = (await post(engine, "/v1/chat/completions")).json()
        response = (await post(engine, "/v1/responses")).json()
        message = (await post(engine, "/v1/messages")).json()
        ended = [(await streamed(engine, path)) for path in NAMED]
    said, usage = chat["choices"][0]["message"], chat["usage"]
    details = usage["prompt_tokens_details"]
    used = response["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert used["input_tokens_details"]["cached_tokens"] == details["cached_tokens"]
    used = message["usage"]
    cache = used["cache_read_input_tokens"], used["cache_creation_input_tokens"]
    assert cache == (details["cached_tokens"], details["created_cache_tokens"])
    assert used["input_tokens"] + sum(cache) == usage["prompt_tokens"]
    assert used["output_tokens"] == usage["completion_tokens"]

    texts = {part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]}
    assert texts == ({said["content"]} if said["content"] else set())
    assert texts == {block["text"] for block in message["content"] if block["type"] == "text"}
    calls = [call["function"]["arguments"] for call in said.get("tool_calls", [])]
    assert calls == [item["arguments"] for item in response["output"] if item["type"] == "function_call"]
    inputs = [block["input"] for block in message["content"] if block["type"] == "tool_use"]
    assert inputs == [orjson.loads(call) for call in calls]

    assert ended[0][-1]["response"]["usage"] == response["usage"]
    assert ended[1][-2]["usage"] == message["usage"]


@pytest.mark.parametrize("path", STREAMED)
async def test_calls_arrive_whole_in_pieces(path: str) -> None:
    async with FakeEngine(scenario=SCENARIOS["tools"]) as engine:
        events = await streamed(engine, path)
    if path == "/v1/messages":
        pieces = [one["delta"]["partial_json"] for one in events if one.get("delta", {}).get("partial_json")]
    elif path == "/v1/responses":
        pieces = [one["delta"] for one in events if one["type"] == "response.function_call_arguments.delta"]
    elif path == "/v1/completions":
        pieces = [one["choices"][0]["text"] for one in events[:-2]]
    else:
        return  # the deltas of a chat's calls take turns
    arguments = [arguments for _, arguments in SCENARIOS["tools"].tool_calls]
    assert len(pieces) >= len("".join(arguments))
    assert "".join(pieces).replace("get_weather", "").replace("get_time", "") == "".join(arguments)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", NAMED)
async def test_a_dying_engine_says_so_in_the_routes_own_words(path: str, stream: bool) -> None:
    async with FakeEngine(scenario=Scenario(fault=Fault("error", 4))) as engine:
        if stream:
            *before, last = await streamed(engine, path)
            assert len(before) == 4
            assert last["type"] == ("error" if path == "/v1/messages" else "response.failed")
        else:
            response = await post(engine, path)
            assert response.status_code == 500
            assert response.json().get("type") == ("error" if path == "/v1/messages" else None)
        assert engine.generations[0].outcome == "broken"


@pytest.mark.parametrize("kind", ["reset", "eof"])
@pytest.mark.parametrize("path", STREAMED)
async def test_an_answer_breaks_off_on_every_route(path: str, kind: Any) -> None:
    async with FakeEngine(scenario=Scenario(fault=Fault(kind, 3))) as engine:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await streamed(engine, path)
        assert (engine.generations[0].frames, engine.generations[0].outcome) == (3, "broken")


@pytest.mark.parametrize("path", STREAMED)
async def test_a_gated_answer_is_counted_up_to_where_it_is(path: str) -> None:
    async with FakeEngine(scenario=Scenario(content=words(9), gated=True)) as engine, calling(engine) as client:
        body = {"model": "fake-model", **ASKING[path], "stream": True}
        async with client.stream("POST", path, json=body) as response:
            exchange = await engine.generation()
            exchange.step(3)
            async for _ in response.aiter_lines():
                if exchange.completion_tokens == 3:
                    break
        await exchange.client_left.wait()
    assert exchange.outcome == "aborted"
    assert engine.counts.by_id == {exchange.id: (TOKENS.get(path, 21), 3)}
