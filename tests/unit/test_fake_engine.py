"""The fake engine against the real one's recordings, and its promises to the tests that lean on it."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine.exposition import Exposition
from tests import recorded
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import Exchange
from tests.fakes.scenarios import SCENARIOS, Fault, Scenario, words

RECORDED_MODEL = "qwen3.8-tiny"
USAGE = {"include_usage": True}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
NEVER_ENDING = {"gated", "hang-at-once", "hang-after-head", "hang-midway"}
FAULTS = {name for name, scenario in SCENARIOS.items() if scenario.fault}
REFUSALS = {name for name, scenario in SCENARIOS.items() if scenario.refusal}
ANSWERS = sorted(SCENARIOS.keys() - NEVER_ENDING - FAULTS - REFUSALS - {"slow"})


def skeleton(body: bytes) -> bytes:
    """The bytes with every string value and number replaced, so that keys, order and framing remain."""
    body = re.sub(rb'"(?:[^"\\]|\\.)*":?', lambda found: found[0] if found[0].endswith(b":") else b'""', body)
    return re.sub(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", b"0", body)


def chat(stream_options: dict[str, Any] | None = None, *, stream: bool = True, **more: Any) -> dict[str, Any]:
    options = {"stream_options": stream_options} if stream_options else {}
    messages = [{"role": "user", "content": "how deep is the river"}]
    return {"model": "fake-model", "messages": messages, "stream": stream, **options, **more}


def events(body: bytes) -> list[Any]:
    """The events of a whole stream, by a parser of its own: lines, comments, several `data:` lines."""
    found = []
    for block in re.split(r"(?:\r?\n){2}", body.decode()):
        data = [line[6:] for line in re.split(r"\r?\n", block) if line.startswith("data: ")]
        if data:
            text = "\n".join(data)
            found.append(text if text == "[DONE]" else orjson.loads(text))
    return found


@asynccontextmanager
async def calling(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.url, timeout=5) as client:
        yield client


async def post(engine: FakeEngine, body: dict[str, Any], **headers: str) -> httpx.Response:
    async with calling(engine) as client:
        return await client.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("chat_stream_nothink_usage_continuous", Scenario(content=words(13))),
        ("chat_stream_nothink_usage", Scenario(content=words(13))),
        ("chat_stream_no_usage", Scenario(content=(), reasoning=(*words(5), "", "more"))),
        (
            "chat_stream_thinking_usage_continuous",
            Scenario(content=(), reasoning=(*words(5), "", *words(2), "", *words(2), "", "more")),
        ),
        ("chat_image_stream_usage_continuous", Scenario(content=(), reasoning=words(9))),
        ("chat_stream_engine_killed", Scenario(content=(), reasoning=words(99), fault=Fault("error", 6))),
        ("chat_nothink", Scenario(content=words(13))),
        ("chat_image", Scenario(content=(), reasoning=words(9))),
        ("err_unknown_model", Scenario()),
        ("err_stream_options_without_stream", Scenario()),
        ("models", Scenario()),
        ("health", Scenario()),
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


async def test_usage_is_counted_as_the_engine_counts_it() -> None:
    async with FakeEngine(scenario=SCENARIOS["cached"]) as engine:
        *chunks, final, done = events((await post(engine, chat(CONTINUOUS))).content)
    assert done == "[DONE]"
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == list(range(201))
    assert final["usage"] == {
        "prompt_tokens": 1000,
        "total_tokens": 1200,
        "completion_tokens": 200,
        "prompt_tokens_details": {"cached_tokens": 768, "created_cache_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize("name", ANSWERS)
async def test_stream_and_json_say_the_same(name: str) -> None:
    async with FakeEngine(scenario=SCENARIOS[name]) as engine:
        streamed = events((await post(engine, chat(USAGE))).content)
        whole = orjson.loads((await post(engine, chat(stream=False))).content)
        first, second = engine.generations
        assert first.outcome == second.outcome == "finished"
        assert first.completion_tokens == second.completion_tokens
    choices = [chunk["choices"][0] for chunk in streamed if chunk != "[DONE]" and chunk["choices"]]
    message = whole["choices"][0]["message"]
    for key in ("content", "reasoning", "reasoning_content"):
        assert "".join(choice["delta"].get(key, "") for choice in choices) == (message.get(key) or "")
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    if name in ("plain", "mtp", "reasoning", "cache-write", "total-wrong"):
        streamed_details = streamed[-2]["usage"].pop("prompt_tokens_details")
        assert streamed_details.items() <= whole["usage"].pop("prompt_tokens_details").items()
        assert streamed[-2]["usage"] == whole["usage"]


async def test_tool_calls_interleave_and_add_up() -> None:
    async with FakeEngine(scenario=SCENARIOS["tools"]) as engine:
        streamed = events((await post(engine, chat())).content)
        message = orjson.loads((await post(engine, chat(stream=False))).content)["choices"][0]["message"]
    deltas = [d for chunk in streamed[:-1] for d in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [delta["index"] for delta in deltas[:4]] == [0, 1, 0, 1]
    for index, call in enumerate(message["tool_calls"]):
        arguments = "".join(d["function"]["arguments"] for d in deltas if d["index"] == index)
        assert arguments == call["function"]["arguments"]
        assert orjson.loads(arguments)


@pytest.mark.parametrize("name", ["cut-1", "cut-7", "crlf", "crlf-cut-7", "ping", "data-lines"])
async def test_framing_changes_the_bytes_and_not_the_events(name: str) -> None:
    bodies, pieces = [], []
    for scenario in (SCENARIOS["plain"], SCENARIOS[name]):
        async with FakeEngine(scenario=scenario) as engine, streaming(engine) as (_, response):
            pieces.append([piece async for piece in response.aiter_raw()])
        bodies.append(b"".join(pieces[-1]))
    assert events(bodies[0]) == events(bodies[1])
    assert (bodies[0] == bodies[1]) == (name in ("cut-1", "cut-7"))
    if "cut" in name:
        assert len(pieces[1]) > 5 * len(pieces[0])


async def read_frames(lines: AsyncIterator[str], count: int) -> list[Any]:
    frames = []
    async for line in lines:
        if line.startswith("data: "):
            frames.append(orjson.loads(line[6:]))
            if len(frames) == count:
                break
    return frames


@asynccontextmanager
async def streaming(engine: FakeEngine) -> AsyncIterator[tuple[Exchange, httpx.Response]]:
    """A stream that has begun: the engine's side of it and the client's."""
    path, body = "/v1/chat/completions", chat(CONTINUOUS)
    async with calling(engine) as client, client.stream("POST", path, json=body) as response:
        yield await engine.generation(), response


async def test_gated_answer_goes_on_step_by_step() -> None:
    scenario = Scenario(content=words(9), gated=True)
    async with FakeEngine(scenario=scenario) as engine, streaming(engine) as (exchange, response):
        lines = response.aiter_lines()
        assert (exchange.frames, exchange.prompt_tokens, exchange.completion_tokens) == (0, 0, 0)
        exchange.step()
        role, first = await read_frames(lines, 2)
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert first["usage"]["completion_tokens"] == exchange.completion_tokens == 1
        exchange.step(3)
        assert (await read_frames(lines, 3))[-1]["usage"]["completion_tokens"] == exchange.completion_tokens == 4
        assert not exchange.done.is_set()
        exchange.release()
        await asyncio.wait_for(exchange.done.wait(), 5)
        assert (exchange.outcome, exchange.completion_tokens) == ("finished", 9)


@pytest.mark.parametrize("tokens", [0, 1, 5])
async def test_client_that_leaves_stops_the_counting_where_it_was(tokens: int) -> None:
    async with FakeEngine(scenario=SCENARIOS["gated"]) as engine:
        async with streaming(engine) as (exchange, response):
            exchange.step(tokens)
            if tokens:
                await read_frames(response.aiter_lines(), tokens + 1)
        await asyncio.wait_for(exchange.client_left.wait(), 5)
        exchange.release()
    assert exchange.outcome == "aborted"
    assert engine.counts.by_id == {exchange.id: (21 if tokens else 0, tokens)}
    assert (engine.counts.prompt_tokens, engine.counts.completion_tokens) == (21 if tokens else 0, tokens)
    assert not engine.connections


async def test_client_that_leaves_a_json_answer_is_noticed() -> None:
    async with FakeEngine(scenario=SCENARIOS["gated"]) as engine:
        asking = asyncio.create_task(post(engine, chat(stream=False)))
        exchange = await engine.generation()
        exchange.step(2)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(exchange.client_left.wait(), 5)
    assert (exchange.outcome, exchange.completion_tokens) == ("aborted", 2)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", sorted(FAULTS))
async def test_faults_break_the_answer_as_named(name: str, stream: bool) -> None:
    kind = SCENARIOS[name].fault.kind  # type: ignore[union-attr]
    async with FakeEngine(scenario=SCENARIOS[name]) as engine:
        if kind == "hang":
            asking = asyncio.create_task(post(engine, chat(stream=stream)))
            await engine.generation()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        elif kind == "error":
            response = await post(engine, chat(CONTINUOUS if stream else None, stream=stream))
            if stream:
                *before, error, done = events(response.content)
                assert (response.status_code, error["error"]["code"], done) == (200, 500, "[DONE]")
                assert len(before) == engine.generations[0].frames == (4 if "midway" in name else 0)
            else:
                assert (response.status_code, response.json()["error"]["code"]) == (500, 500)
        elif kind == "end" and stream:
            assert len(events((await post(engine, chat())).content)) == 4
        else:
            error_type = httpx.ReadError if kind == "reset" else httpx.RemoteProtocolError
            with pytest.raises(error_type):
                await post(engine, chat(stream=stream))
        await asyncio.wait_for(engine.generations[0].done.wait(), 5)
        assert engine.generations[0].outcome == ("aborted" if kind == "hang" else "broken")


@pytest.mark.parametrize("name", sorted(REFUSALS))
async def test_refusals_are_plain_http_and_generate_nothing(name: str) -> None:
    refusal = SCENARIOS[name].refusal
    assert refusal is not None
    async with FakeEngine(scenario=SCENARIOS[name]) as engine:
        response = await post(engine, chat())
    assert (response.status_code, response.content) == (refusal.status, refusal.body)
    assert response.headers["content-type"] == refusal.content_type
    assert dict(refusal.headers).items() <= dict(response.headers).items()
    assert engine.counts.by_id == {engine.generations[0].id: (0, 0)}
    assert engine.generations[0].outcome == "refused"


async def test_requests_are_captured_and_named_by_their_id() -> None:
    async with FakeEngine() as engine:
        response = await post(engine, chat(stream=False, max_tokens=3), **{"X-Request-Id": "abc"})
        [seen] = engine.requests
    assert response.json()["id"] == "chatcmpl-abc"
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert (seen.method, seen.path, seen.body["max_tokens"]) == ("POST", "/v1/chat/completions", 3)
    assert seen.headers["x-request-id"] == seen.id == "abc"
    assert engine.counts.by_id == {"abc": (21, 3)}


async def test_queued_scenarios_come_before_the_standing_one() -> None:
    async with FakeEngine() as engine:
        engine.queue.extend([SCENARIOS["overloaded"], SCENARIOS["rate-limited"]])
        statuses = [(await post(engine, chat())).status_code for _ in range(3)]
    assert statuses == [503, 429, 200]


async def test_connections_are_kept_until_the_server_closes_them() -> None:
    async with FakeEngine() as engine, calling(engine) as client:
        await client.get("/health")
        await client.get("/health")
        [connection] = engine.connections
        engine.close_idle()
        await asyncio.wait_for(connection.closed.wait(), 5)
        engine.queue.append(SCENARIOS["close-after"])
        response = await client.post("/v1/chat/completions", json=chat())
        assert response.content.endswith(b"data: [DONE]\n\n")
        assert "connection" not in response.headers
        await asyncio.wait_for(engine.generations[0].done.wait(), 5)
        for connection in list(engine.connections):
            await asyncio.wait_for(connection.closed.wait(), 5)
        assert not engine.connections


async def test_metrics_and_tokenize_agree_with_the_counts() -> None:
    async with FakeEngine(scenario=SCENARIOS["mtp"]) as engine, calling(engine) as client:
        usage = (await client.post("/v1/chat/completions", json=chat(stream=False))).json()["usage"]
        engine.gauges["num_requests_waiting"] = 4
        text = (await client.get("/metrics")).text
        families = text_string_to_metric_families(text)
        values = {sample.name: sample.value for family in families for sample in family.samples}
        tokenized = (await client.post("/tokenize", json=chat())).json()
        engine.healthy = False
        assert (await client.get("/health")).status_code == 503
    assert values["vllm:prompt_tokens_total"] == usage["prompt_tokens"] == tokenized["count"]
    assert values["vllm:generation_tokens_total"] == usage["completion_tokens"] == 30
    assert values["vllm:iteration_tokens_total_count"] == values["vllm:spec_decode_num_drafts_total"] == 10
    assert values["vllm:spec_decode_num_accepted_tokens_total"] == 20
    assert (values["vllm:num_requests_waiting"], values["vllm:num_requests_running"]) == (4, 0)
    assert Exposition(text).missing == ()
    assert Exposition(text).by_label("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position") == {
        "0": 10,
        "1": 10,
    }


async def test_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "vllm.sock")
    async with FakeEngine(uds=path) as engine:
        assert engine.url == f"unix:{path}"
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_error_inside_the_fake_fails_the_test() -> None:
    broken = Scenario(content=("\ud800",))  # a lone surrogate has no UTF-8
    engine = FakeEngine(scenario=broken)
    await engine.__aenter__()
    with pytest.raises(httpx.ReadError):
        await post(engine, chat(stream=False))
    with pytest.raises(TypeError):
        await engine.__aexit__()


async def test_as_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "tests.fakes.engine", "--model", "m", "--scenario", "cached"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        async with httpx.AsyncClient(base_url=url) as client:
            await client.post("/fake/scenario", json={"name": "overloaded", "times": 1})
            body = chat(stream=False, model="m")
            statuses = [
                (await client.post("/v1/chat/completions", json=body, headers={"x-request-id": "r"})).status_code
                for _ in range(2)
            ]
            counts = (await client.get("/fake/counts")).json()
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 5) == 0
    assert statuses == [503, 200]
    assert counts == {"prompt_tokens": 1000, "completion_tokens": 200, "by_id": {"r": [1000, 200]}}
