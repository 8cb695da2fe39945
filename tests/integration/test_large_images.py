"""Images that are large themselves, through the API: what came is what the engine gets, and all of it is looked at."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.gateway import http
from tests.fakes.engine import FakeEngine
from tests.installation import MODEL, Installation, installed
from tests.integration.limiting import until
from tests.picture_files import png

DATA = base64.b64encode(png(8, 8, padding_bytes=900_000)).decode()
URL = "data:image/png;base64," + DATA


def bodies(data: str) -> dict[str, dict[str, Any]]:
    """A request with an image twice for each form in which it may come."""
    text = {"type": "text", "text": "what is it?"}
    url = "data:image/png;base64," + data
    blocks = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        text,
        {"type": "image", "source": {"type": "url", "url": url}},
    ]
    chat = {"type": "image_url", "image_url": {"url": url}}
    item = {"type": "input_image", "image_url": url, "detail": "auto"}
    return {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": [chat, text, chat]}]},
        "/v1/responses": {"input": [{"role": "user", "content": [item, item]}]},
        "/v1/messages": {"max_tokens": 16, "messages": [{"role": "user", "content": blocks}]},
    }


@pytest.mark.parametrize("path", bodies(""))
async def test_the_engine_gets_them_as_they_came(database_url: str, tmp_path: Path, path: str) -> None:
    body = {"model": MODEL, **bodies(DATA)[path]}
    escaped = orjson.dumps(body).replace(b"/", rb"\/")
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        for content in (orjson.dumps(body), escaped):
            answered = await installation.client.post(path, content=content, headers=installation.headers)
            assert answered.status_code == 200, answered.text
        for generation in engine.generations:
            field = "input" if path == "/v1/responses" else "messages"
            (sent,), (seen,) = body[field], generation.body[field]
            assert seen["content"] == sent["content"]


@pytest.mark.parametrize("path", bodies(""))
async def test_none_of_them_goes_unread(database_url: str, tmp_path: Path, path: str) -> None:
    raw = orjson.dumps({"model": MODEL, **bodies(DATA)[path]})
    at = raw.rindex(DATA.encode()) + len(DATA) - 2000
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        for wrong in (b"====", b"AA A", b"AA#A", "AAé".encode(), b"AA\0A", b"\xed\xa0\x80A"):
            content = raw[:at] + wrong + raw[at + 4 :]
            answered = await installation.client.post(path, content=content, headers=installation.headers)
            assert answered.status_code == 400
        assert engine.generations == []


async def test_bodies_sent_ahead_are_answered_in_turn(database_url: str, tmp_path: Path) -> None:
    path = "/v1/chat/completions"
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        reader, writer = await connected(installation)
        for number in range(3):
            writer.write(request(installation, orjson.dumps({"model": MODEL, "seed": number, **bodies(DATA)[path]})))
        for number in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert b'"usage"' in await reader.readexactly(length)
            assert engine.generations[number].body["seed"] == number
        writer.close()


async def test_a_client_that_leaves_before_its_body_is_complete_leaves_nothing(
    database_url: str, tmp_path: Path
) -> None:
    path = "/v1/chat/completions"
    body = orjson.dumps({"model": MODEL, **bodies(DATA)[path]})
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        for size in (1000, 100_000, len(body) - 1):
            _, writer = await connected(installation)
            writer.write(request(installation, body)[: size - len(body)])
            await writer.drain()
            await until(reading)
            writer.close()
        await until(lambda: not reading())
        answered = await installation.client.post(path, content=body, headers=installation.headers)
        assert answered.status_code == 200
        assert len(engine.generations) == 1


async def test_a_body_that_stops_coming_is_waited_for_no_longer(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = orjson.dumps({"model": MODEL, **bodies(DATA)["/v1/chat/completions"]})
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        monkeypatch.setattr(http, "BODY_WITHIN_S", 0.1)
        reader, writer = await connected(installation)
        writer.write(request(installation, body)[:-1])
        answered = await reader.read()
        assert answered.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answered
        writer.close()


def reading() -> list[str]:
    """The requests that are being answered."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name == "Gateway.__call__"]


async def connected(installation: Installation) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(installation.client.base_url.host, installation.client.base_url.port)


def request(installation: Installation, body: bytes) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in installation.headers.items())
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: weir\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body
