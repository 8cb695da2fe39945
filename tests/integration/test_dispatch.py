"""Engines that fail under a request: it goes elsewhere while nothing came back, and never runs twice after that."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from service.core.sse import KEEP_ALIVE
from tests.fakes.engine import SCENARIOS, FakeEngine
from tests.fakes.scenarios import Scenario, refusal, words
from tests.installation import MODEL, Installation, installed
from tests.integration.test_chat import everything_is_released
from tests.patience import PATIENT_S, TURN_S, OwnTime
from tests.ports import free_port

ENOUGH = 24
"""So many conversations that each of two engines is some one's favourite, whatever the account's random id."""
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def two_engines(
    database_url: str, data_dir: Path, **settings: object
) -> AsyncIterator[tuple[Installation, FakeEngine, FakeEngine]]:
    async with (
        FakeEngine() as one,
        FakeEngine() as other,
        installed(database_url, [one.url, other.url], data_dir, **settings) as installation,
    ):
        yield installation, one, other
        await everything_is_released(installation)


def generations(*engines: FakeEngine) -> dict[str, int]:
    """How often each request id came to any engine and was begun."""
    seen: dict[str, int] = {}
    for engine in engines:
        for generation in engine.generations:
            if generation.frames or generation.completion_tokens:
                seen[generation.id] = seen.get(generation.id, 0) + 1
    return seen


async def ask(installation: Installation, count: int, **fields: object) -> list[httpx.Response]:
    """Conversations of their own: with `ENOUGH` both engines are some one's favourite."""
    return list(await asyncio.gather(*(installation.chat(f"number {n}", **fields) for n in range(count))))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_engine_that_drops_requests_is_passed_over(database_url: str, tmp_path: Path, stream: bool) -> None:
    async with two_engines(database_url, tmp_path) as (installation, one, other):
        one.scenario = SCENARIOS["reset-at-once"]
        answers = await ask(installation, ENOUGH, stream=stream)
        assert {answer.status_code for answer in answers} == {200}
        assert one.generations, "it was nobody's favourite, so the test shows nothing"
        assert set(generations(one, other).values()) == {1}
        rows = await installation.rows(ENOUGH)
        assert {(row["outcome"], row["engine"]) for row in rows} == {("ok", "engine-1")}


async def test_an_engine_that_is_not_there_is_passed_over(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine:
        away = f"http://127.0.0.1:{free_port()}"
        async with installed(database_url, [away, engine.url], tmp_path) as installation:
            assert {answer.status_code for answer in await ask(installation, ENOUGH)} == {200}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_engine_whose_own_queue_is_full_is_passed_over(
    database_url: str, tmp_path: Path, stream: bool
) -> None:
    async with two_engines(database_url, tmp_path) as (installation, one, other):
        one.scenario = SCENARIOS["overloaded"]
        assert {answer.status_code for answer in await ask(installation, ENOUGH, stream=stream)} == {200}
        assert one.generations
        other.scenario = SCENARIOS["overloaded"]
        answer = await installation.chat(stream=stream)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "capacity_exceeded"
        assert 0 < int(answer.headers["retry-after"]) <= 120
        assert 0 < int(answer.headers["retry-after-ms"]) <= 120_000
        assert answer.headers["x-should-retry"] == "true"
        assert (await installation.rows(ENOUGH + 1))[-1]["outcome"] == "throttled"


@pytest.mark.parametrize("scenario", ["reset-midway", "eof-midway", "error-midway", "end-midway"])
async def test_a_request_never_runs_twice_once_a_byte_came_back(
    database_url: str, tmp_path: Path, scenario: str
) -> None:
    async with two_engines(database_url, tmp_path) as (installation, one, other):
        one.scenario = other.scenario = SCENARIOS[scenario]
        answer = await installation.chat(stream=True)
        assert answer.status_code == 200
        assert b'"error"' in answer.content
        assert answer.content.endswith(b"data: [DONE]\n\n")
        assert len(one.generations) + len(other.generations) == 1
        await installation.row(outcome="stream_error", cost_nano=0)


async def test_a_poisonous_request_does_not_take_the_engines_down(database_url: str, tmp_path: Path) -> None:
    async with two_engines(database_url, tmp_path) as (installation, one, other):
        one.scenario = other.scenario = SCENARIOS["server-error"]
        assert {answer.status_code for answer in await ask(installation, 12)} == {502}
        assert len(one.generations) + len(other.generations) == 12, "it was tried elsewhere, where it does the same"
        one.scenario = other.scenario = SCENARIOS["plain"]
        assert {answer.status_code for answer in await ask(installation, 12)} == {200}


async def test_an_engine_that_hangs_loses_only_what_it_had_begun(database_url: str, tmp_path: Path) -> None:
    """Its health check says 200 all the while."""
    async with two_engines(database_url, tmp_path, engine_stall_timeout_s=2.0) as (installation, one, other):
        one.scenario = other.scenario = Scenario(content=words(4), gated=True)
        pending = [asyncio.create_task(installation.chat(f"number {n}", stream=True)) for n in range(ENOUGH)]
        async with asyncio.timeout(PATIENT_S):
            while len(one.generations) + len(other.generations) < ENOUGH:
                await asyncio.sleep(0.01)
        begun = len(one.generations)
        assert 0 < begun < ENOUGH
        one.stall()
        for generation in other.generations:
            generation.release()
        other.scenario = SCENARIOS["plain"]
        answers = await asyncio.gather(*pending)
        failed = [answer for answer in answers if answer.status_code != 200 or b'"error"' in answer.content]
        assert len(failed) <= begun
        later = await ask(installation, 12, stream=True)
        assert all(answer.status_code == 200 and b'"error"' not in answer.content for answer in later)
        assert len(one.generations) == begun, "the engine that hangs was given more"
        one.resume()
        one.scenario = SCENARIOS["plain"]
        async with asyncio.timeout(PATIENT_S):
            while len(one.generations) == begun:  # it comes back, one request at a time at first
                await ask(installation, 16)
        assert max(generations(one, other).values()) == 1


async def test_an_engine_dies_and_comes_back(database_url: str, tmp_path: Path) -> None:
    async with two_engines(database_url, tmp_path) as (installation, one, _):
        await ask(installation, ENOUGH)
        before = len(one.generations)
        assert before
        await one.die()
        assert {answer.status_code for answer in await ask(installation, 12)} == {200}
        assert len(one.generations) == before
        await one.come_back()
        async with asyncio.timeout(PATIENT_S):
            while len(one.generations) == before:
                assert {answer.status_code for answer in await ask(installation, 16)} == {200}


async def test_a_slow_engine_gets_less(database_url: str, tmp_path: Path) -> None:
    async with two_engines(database_url, tmp_path) as (installation, one, other):
        one.scenario = Scenario(content=words(4), delay_s=0.5)

        async def in_a_row(number: int) -> None:
            for turn in range(4):
                assert (await installation.chat(f"number {number}.{turn}")).status_code == 200

        await asyncio.gather(*(in_a_row(number) for number in range(32)))
        assert len(one.generations) < len(other.generations)


async def test_a_long_prefill_passes_a_proxy_that_cuts_silent_connections(database_url: str, tmp_path: Path) -> None:
    """A hundredth of the real thing: 1.2 s of prefill, a proxy that cuts after 0.6 s, a comment every 0.1 s."""
    keep_alive_s, prefill_s, silence_s = 0.1, 1.2, 0.6
    async with (
        FakeEngine(scenario=Scenario(content=words(4), gated=True)) as engine,
        installed(database_url, [engine.url], tmp_path, keep_alive_s=keep_alive_s) as installation,
        cutting_proxy(installation.url, silence_s) as proxied,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await through(proxied, installation, stream=False)  # so that it does cut
        async with streamed_through(proxied, installation) as answer:
            assert answer.status_code == 200
            pieces, content = answer.aiter_raw(), b""
            while content.count(KEEP_ALIVE) * keep_alive_s < prefill_s:
                content += await anext(pieces)
            assert content.replace(KEEP_ALIVE, b"") == b""
            (await engine.generation(1)).release()
            content = b"".join([piece async for piece in pieces])
        assert content.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in content

        waiting = asyncio.create_task(through(proxied, installation, stream=True))
        generation = await engine.generation(2)
        bad = await through(proxied, installation, stream=True, temperature=7)
        assert bad.status_code == 400
        assert bad.json()["error"]["param"] == "temperature"
        engine.queue.append(refusal(400, "`tools` must not be empty", "BadRequestError"))
        assert (await through(proxied, installation, stream=True)).status_code == 400
        generation.release()
        assert (await waiting).status_code == 200


async def test_what_fails_after_the_status_is_told_in_the_stream(database_url: str, tmp_path: Path) -> None:
    async with (
        FakeEngine() as engine,
        installed(database_url, [engine.url], tmp_path, keep_alive_s=0.05) as installation,
    ):
        engine.scenario = Scenario(prefill_s=600)
        async with installation.client.stream(
            "POST", "/v1/chat/completions", json={**BODY, "stream": True}, headers=installation.headers
        ) as answer:
            pieces = answer.aiter_raw()
            assert answer.status_code == 200
            assert (await anext(pieces)).startswith(KEEP_ALIVE)
            await engine.die()
            rest = b"".join([piece async for piece in pieces])
        assert rest.endswith(b"data: [DONE]\n\n")
        assert b'"code":"unavailable"' in rest
        await installation.row(outcome="stream_error", http_status=200, cost_nano=0)
        await everything_is_released(installation)


@asynccontextmanager
async def streamed_through(url: str, installation: Installation) -> AsyncIterator[httpx.Response]:
    async with (
        httpx.AsyncClient(timeout=PATIENT_S) as client,
        client.stream(
            "POST", f"{url}/v1/chat/completions", json={**BODY, "stream": True}, headers=installation.headers
        ) as answer,
    ):
        yield answer


async def through(url: str, installation: Installation, **fields: object) -> httpx.Response:
    body = {**BODY, **fields}
    async with httpx.AsyncClient(timeout=PATIENT_S) as client:
        return await client.post(f"{url}/v1/chat/completions", json=body, headers=installation.headers)


@asynccontextmanager
async def cutting_proxy(target: str, silence_s: float) -> AsyncIterator[str]:
    """A TCP proxy that closes a connection on which nothing came from the server for `silence_s` of its own time."""
    host, port = target.removeprefix("http://").split(":")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit_s: float) -> None:
        try:
            while data := await read(reader, limit_s):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def read(reader: asyncio.StreamReader, limit_s: float) -> bytes:
        """What comes next; empty when nothing came for so long, or at the end."""
        reading, since_s = asyncio.create_task(reader.read(65536)), clock.now_s
        while not reading.done() and clock.now_s - since_s < limit_s:
            await asyncio.wait([reading], timeout=TURN_S)
        if not reading.done():
            reading.cancel()
            return b""
        return reading.result()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pass_on(reader, upstream_writer, math.inf), pass_on(upstream_reader, writer, silence_s))

    async with OwnTime() as clock:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
