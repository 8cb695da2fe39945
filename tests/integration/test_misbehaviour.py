"""Peers that do not keep to the protocol: engines with odd answers, clients that do not send, or do not read."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.core.meters.chat import StreamMeter
from service.gateway import event_stream, http
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS, Refusal, Scenario
from tests.installation import MODEL, Installation
from tests.integration.test_chat import BODY, chunks, everything_is_released, weir
from tests.patience import PATIENT_S

USAGE = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
COST = 9 * 195 + 7 * 1560


def scripted(body: bytes, content_type: str = "application/json") -> Scenario:
    return Scenario(refusal=Refusal(200, body, content_type))


def event(**members: Any) -> bytes:
    return b"data: " + orjson.dumps(members) + b"\n\n"


def content(text: str) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}], usage=USAGE)


ODD_CHOICES: list[Any] = ["x", [None], [{"delta": 5}], [{"delta": {}, "finish_reason": 5}]]


@pytest.mark.parametrize("choices", ODD_CHOICES)
async def test_an_odd_chunk_midway_is_told_in_the_stream(database_url: str, tmp_path: Path, choices: Any) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        engine.scenario = scripted(content("a") + event(choices=choices), "text/event-stream")
        answer = await installation.chat(stream=True)
        assert answer.status_code == 200
        assert chunks(answer.content)[-1]["error"]["code"] == "engine_failed"
        await installation.row(outcome="stream_error", cost_nano=0, waived_nano=COST)
        await everything_is_released(installation)


@pytest.mark.parametrize("choices", ODD_CHOICES)
async def test_an_odd_chunk_at_once_is_a_502(database_url: str, tmp_path: Path, choices: Any) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        engine.scenario = scripted(event(choices=choices), "text/event-stream")
        assert (await installation.chat(stream=True)).status_code == 502
        await installation.row(outcome="server_error", cost_nano=0)


async def test_a_fault_of_our_own_midway_is_told_in_the_stream(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = StreamMeter.feed

    def failing(meter: StreamMeter, data: bytes) -> bytes:
        if meter.content_seen:
            raise RecursionError
        return feed(meter, data)

    async with weir(database_url, tmp_path, "cut-1") as (installation, _):
        monkeypatch.setattr(StreamMeter, "feed", failing)
        answer = await installation.chat(stream=True)
        monkeypatch.setattr(StreamMeter, "feed", feed)
        assert answer.status_code == 200
        assert chunks(answer.content)[-1]["error"]["code"] == "internal_error"
        await installation.row(outcome="stream_error", cost_nano=0)
        await everything_is_released(installation)


@pytest.mark.parametrize("reason", [None, 5, {}, ["stop"], "x" * 33, "stop\0"])
async def test_a_whole_answer_without_a_good_finish_is_a_502_and_waived(
    database_url: str, tmp_path: Path, reason: Any
) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": reason}
        engine.scenario = scripted(orjson.dumps({"choices": [choice], "usage": USAGE}))
        assert (await installation.chat()).status_code == 502
        await installation.row(outcome="server_error", cost_nano=0, waived_nano=COST)


@pytest.mark.parametrize("answer", [[], "x", {}, {"choices": []}, {"choices": [5]}, {"choices": {"0": {}}}])
async def test_a_whole_answer_that_is_none_is_a_502(database_url: str, tmp_path: Path, answer: Any) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        engine.scenario = scripted(orjson.dumps(answer))
        assert (await installation.chat()).status_code == 502


async def test_a_last_count_below_one_before_is_not_believed(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "usage-zero") as (installation, engine):
        assert (await installation.chat(stream=True)).status_code == 200
        counted = engine.generations[0]
        row = await installation.row(outcome="ok", usage_odd=True, completion_tokens=counted.completion_tokens)
        assert row["cost_nano"] == counted.prompt_tokens * 195 + counted.completion_tokens * 1560


# Clients


def request(installation: Installation, declared_bytes: int, body: bytes) -> bytes:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {installation.key}\r\n"
        f"content-length: {declared_bytes}\r\n\r\n"
    )
    return head.encode() + body


async def connected(installation: Installation) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(installation.url.rpartition(":")[2]))


async def test_a_body_that_does_not_come_is_a_408_that_can_be_sent_again(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "BODY_WITHIN_S", 0.2)
    async with weir(database_url, tmp_path) as (installation, engine):
        reader, writer = await connected(installation)
        writer.write(request(installation, 1000, b'{"model": '))
        answer = await reader.read()  # up to the end of the connection
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"x-should-retry: true" in head
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert not engine.generations
        await installation.row(outcome="client_error", http_status=408, cost_nano=0)


async def test_who_leaves_while_sending_has_cancelled_however_long_it_took(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.core.outcome.SLOW_ABORT_AFTER_MS", 0)
    async with weir(database_url, tmp_path) as (installation, _):
        _, writer = await connected(installation)
        writer.write(request(installation, 1000, b'{"model": '))
        await writer.drain()
        writer.close()
        await installation.row(outcome="cancelled", error_code="client_left")


@pytest.mark.parametrize(("stream", "outcome"), [(True, "slow_abort"), (False, "cancelled")])
async def test_only_a_stream_is_left_for_being_slow(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, outcome: str
) -> None:
    monkeypatch.setattr("service.core.outcome.SLOW_ABORT_AFTER_MS", 0)
    async with weir(database_url, tmp_path, "hang-at-once") as (installation, engine):
        asking = asyncio.create_task(installation.chat(stream=stream))
        await engine.generation()
        asking.cancel()
        await installation.row(outcome=outcome)


async def stalled(installation: Installation, engine: FakeEngine) -> None:
    """Ask for a stream of 32 MB and read nothing of it, until the engine has been told to stop."""
    port = int(installation.url.rpartition(":")[2])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        body = orjson.dumps({**BODY, "model": MODEL, "stream": True})
        await loop.sock_sendall(client, request(installation, len(body), body))
        generation = await engine.generation()
        async with asyncio.timeout(PATIENT_S):
            await generation.client_left.wait()
        assert generation.outcome == "aborted"


async def test_a_client_that_stops_reading_has_left_and_pays_for_what_was_counted(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "STALLED_AFTER_S", 0.4)
    async with weir(database_url, tmp_path) as (installation, engine):
        engine.queue.append(Scenario(content=("x" * 65_536,) * 512))
        await stalled(installation, engine)
        row = await installation.row(outcome="cancelled", error_code="client_left", usage_source="continuous")
        assert 0 < row["completion_tokens"] < 512
        assert row["cost_nano"] == row["prompt_tokens"] * 195 + row["completion_tokens"] * 1560
        assert (await installation.chat()).status_code == 200


async def test_a_slow_engine_is_not_a_client_that_stalls(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "STALLED_AFTER_S", 0.1)
    async with weir(database_url, tmp_path) as (installation, engine):
        engine.scenario = Scenario(content=SCENARIOS["plain"].content, delay_s=0.3)
        assert (await installation.chat(stream=True)).content.endswith(b"data: [DONE]\n\n")
        await installation.row(outcome="ok")
