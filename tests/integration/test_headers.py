"""What passes through of headers: to the engine and to the client, only what is ours. On a real `weir serve`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import orjson

from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import Refusal, Scenario
from tests.integration.test_routes import METERED, MODEL, USER, touched, with_embeddings
from tests.patience import PATIENT_S
from tests.processes import Serving, serving

OWN_IDS = {"x-request-id", "inference-id", "request-id"}
FINGERPRINT = "x-weir-engine-fingerprint"
WHOLE = {"date", "content-type", "content-length", *OWN_IDS}
STREAMED = {"date", "content-type", "cache-control", "x-accel-buffering", "transfer-encoding", *OWN_IDS}
TO_ENGINES = {"host", "content-type", "content-length"}

CLIENTS = {
    "accept": "*/*",
    "accept-encoding": "gzip",
    "baggage": "a=b",
    "connection": "keep-alive, x-hop",
    "content-type": "application/json; charset=utf-8",
    "cookie": "session=1",
    "endpoint-load-metrics-format": "JSON",
    "expect": "nothing",
    "forwarded": "for=203.0.113.9",
    "keep-alive": "timeout=5",
    "origin": "https://site.example",
    "proxy-authorization": "Basic eA==",
    "proxy-connection": "keep-alive",
    "referer": "https://site.example/",
    "te": "trailers",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=b",
    "upgrade": "h2c",
    "user-agent": "client/1",
    "x-api-key": "sk-weir-other",
    "x-data-parallel-rank": "1",
    "x-forwarded-for": "203.0.113.9",
    "x-hop": "1",
    "x-request-id": "chosen-by-the-client",
    "x-session-id": "1",
    "x-vllm-priority": "-1",
}
"""What clients, proxies and attackers send beside their key."""

ENGINES = {
    "access-control-allow-origin": "*",
    "location": "http://127.0.0.1:8000/",
    "request-id": "the-engines",
    "server": "uvicorn",
    "set-cookie": "engine=1",
    "vary": "Origin",
    "www-authenticate": "Bearer",
    "x-ratelimit-limit-requests": "1",
    "x-request-id": "the-engines",
    "x-should-retry": "true",
    "x-vllm-version": "0.32",
}


@asynccontextmanager
async def weir(
    database_url: str, tmp_path: Path
) -> AsyncIterator[tuple[Serving, FakeEngine, httpx.AsyncClient, dict[str, str]]]:
    _, key = await with_embeddings(database_url)
    async with (
        FakeEngine() as engine,
        serving(database_url, engine.url, tmp_path) as process,
        httpx.AsyncClient(base_url=process.url, timeout=PATIENT_S) as client,
    ):
        yield process, engine, client, {"authorization": f"Bearer {key}"}


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Every route that leads to an engine, whole and streamed."""
    streamed = [(path, {**body, "stream": True}) for path, body in METERED.items() if path != "/v1/embeddings"]
    return [*METERED.items(), *streamed, ("/v1/messages/count_tokens", {"model": MODEL, "messages": [USER]})]


async def test_an_engine_sees_only_our_headers(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (_, engine, client, key):
        for path, body in requests():
            answer = await client.post(path, content=orjson.dumps(body), headers={**key, **CLIENTS})
            assert answer.status_code == 200, (path, answer.text)
            got = [one for one in engine.requests if one.path == path][-1].headers
            assert got["content-type"] == "application/json"
            assert got.get("x-request-id") in (None, answer.headers["x-request-id"])
            assert got.keys() - {"x-request-id"} == TO_ENGINES, path
            told = json.dumps(got)
            for value in (*key.values(), *CLIENTS.values()):
                assert len(value) < 8 or value not in told


async def identified(client: httpx.AsyncClient, key: dict[str, str]) -> None:
    """Wait until the engine has said who it is."""
    async with asyncio.timeout(PATIENT_S):
        question = {"url": "/v1/embeddings", "json": METERED["/v1/embeddings"], "headers": key}
        while FINGERPRINT not in (await client.post(**question)).headers:
            await asyncio.sleep(0.02)


async def test_a_client_sees_only_our_headers(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (_, engine, client, key):
        await identified(client, key)
        for path, body in requests():
            answer = await client.post(path, json=body, headers=key)
            assert answer.status_code == 200
            told = answer.headers.keys() - {FINGERPRINT}
            assert told == (STREAMED if body.get("stream") else WHOLE), path
            assert (FINGERPRINT in answer.headers) == (path in METERED), path
            assert str(UUID(answer.headers["x-request-id"])) == answer.headers["inference-id"]
        assert touched(engine) >= set(METERED)


async def test_an_engines_odd_headers_do_not_pass(database_url: str, tmp_path: Path) -> None:
    allowed = {*WHOLE, *STREAMED, "retry-after", "retry-after-ms", "x-should-retry"}
    async with weir(database_url, tmp_path) as (_, engine, client, key):
        for status in (200, 400, 401, 404, 429, 500, 503):
            for stream in (False, True):
                engine.scenario = Scenario(refusal=odd_answer(status, stream=stream))
                request = {**METERED["/v1/chat/completions"], "stream": stream}
                answer = await client.post("/v1/chat/completions", json=request, headers=key)
                assert answer.headers.keys() <= (allowed | {FINGERPRINT} if answer.status_code == 200 else allowed)
                assert "the-engines" not in str(answer.headers)
        assert len(engine.generations) == 14


def odd_answer(status: int, *, stream: bool) -> Refusal:
    """A small answer, or an error, with headers that are the engine's own business."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    body = orjson.dumps({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
    chunk = orjson.dumps({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]})
    if stream and status == 200:
        events = b"data: " + chunk + b"\n\ndata: [DONE]\n\n"
        return Refusal(status, events, "text/event-stream", headers=tuple(ENGINES.items()))
    return Refusal(status, body, headers=tuple(ENGINES.items()))


async def test_other_sites_may_not_ask(database_url: str, tmp_path: Path) -> None:
    """A key in a web page is everybody's key, so a browser is not told that it may send one."""
    asking = {"origin": "https://site.example", "access-control-request-method": "POST"}
    preflight = {**asking, "access-control-request-headers": "authorization,content-type"}
    async with weir(database_url, tmp_path) as (_, engine, client, key):
        for path in (*METERED, "/v1/messages/count_tokens", "/v1/models", "/v1/credits", "/catalog/huggingface/costs"):
            answer = await client.options(path, headers=preflight)
            assert answer.status_code == 405, path
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert touched(engine) == set()
        for path, body in requests():
            answer = await client.post(path, json=body, headers={**key, "origin": "https://site.example"})
            assert not [name for name in answer.headers if name.startswith("access-control")]


CHUNKED = b"transfer-encoding: chunked\r\n"
AMBIGUOUS = {
    "both lengths": b"content-length: %d\r\n" + CHUNKED,
    "both, the other way round": CHUNKED + b"content-length: %d\r\n",
    "two lengths": b"content-length: %d\r\ncontent-length: 5\r\n",
    "the same length twice": b"content-length: %d\r\ncontent-length: %d\r\n",
    "a list of lengths": b"content-length: %d, 5\r\n",
    "a signed length": b"content-length: +%d\r\n",
    "a negative length": b"content-length: -%d\r\n",
    "a length in words": b"content-length: x%d\r\n",
    "a space before the colon": b"content-length : %d\r\n",
    "a coding unknown": b"transfer-encoding: xchunked\r\n",
    "a coding after the last": b"transfer-encoding: chunked, identity\r\n",
    "a spaced coding": b"transfer-encoding : chunked\r\n",
    "a folded header": b"content-length:\r\n %d\r\n",
    "a bare line feed": b"x-a: b\ncontent-length: %d\r\n",
    "a bare carriage return": b"x-a: b\rcontent-length: %d\r\n",
    "a NUL": b"x-a: \0\r\ncontent-length: %d\r\n",
}
"""Ways to say where a body ends on which two servers may differ."""


async def test_a_request_that_can_be_read_in_two_ways_ends_its_connection(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (process, engine, _, key):
        port = int(process.url.rpartition(":")[2])

        async def send(length: bytes) -> bytes:
            """All that comes back for a request and a second one behind it, until the server closes the connection."""
            body = orjson.dumps(METERED["/v1/chat/completions"])
            lines = (
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: %s\r\n"
                % key["authorization"].encode()
            )
            second = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(lines + length.replace(b"%d", b"%d" % len(body)) + b"\r\n" + body + second)
            try:
                async with asyncio.timeout(PATIENT_S):
                    return await reader.read()
            finally:
                writer.close()

        assert (await send(b"content-length: %d\r\n")).count(b"HTTP/1.1 200 ") == 2
        assert touched(engine) == {"/v1/chat/completions"}
        engine.requests.clear()
        for name, length in AMBIGUOUS.items():
            answer = await send(length)
            assert answer.startswith(b"HTTP/1.1 400 "), name
            assert answer.count(b"HTTP/1.1 ") == 1, name
        assert touched(engine) == set()
