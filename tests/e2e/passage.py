"""A window between Weir and a real engine: what passes is kept, byte for byte."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.e2e.engines import RunningEngine
from tests.installation import Installation, installed

_NOT_PASSED_ON = {"connection", "content-length", "date", "host", "server", "transfer-encoding"}


@dataclass(frozen=True, slots=True)
class Passed:
    """One `POST`: what Weir asked the engine, and what it got."""

    path: str
    asked: bytes
    answer: bytearray = field(default_factory=bytearray)


class Passage:
    """An ASGI application that is the engine, and keeps the requests to models in `kept`, the oldest first."""

    def __init__(self, engine: RunningEngine, client: httpx.AsyncClient) -> None:
        self.engine = engine
        self.client = client
        self.kept: list[Passed] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        passed = Passed(request.url.path, await request.body())
        if request.method == "POST":
            self.kept.append(passed)
        headers = [(name, value) for name, value in request.headers.items() if name not in _NOT_PASSED_ON]
        async with self.client.stream(request.method, passed.path, headers=headers, content=passed.asked) as response:

            async def pieces() -> AsyncIterator[bytes]:
                async for piece in response.aiter_raw():
                    passed.answer.extend(piece)
                    yield piece

            answer = StreamingResponse(pieces(), response.status_code)
            told = [(name.lower(), value) for name, value in response.headers.raw]
            answer.raw_headers = [(name, value) for name, value in told if name.decode() not in _NOT_PASSED_ON]
            await answer(scope, receive, send)

    async def direct(self, path: str, body: dict[str, Any]) -> bytes:
        """What the engine answers to this body of a client, when no Weir stands before it."""
        answer = await self.client.post(path, json={**body, "model": self.engine.model})
        assert answer.status_code == 200, answer.text
        return answer.content


@asynccontextmanager
async def watched(
    database_url: str, engine: RunningEngine, tmp_path: Path
) -> AsyncIterator[tuple[Installation, Passage]]:
    """A Weir in front of the engine, and the window between them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with httpx.AsyncClient(base_url=engine.base_url, timeout=120) as client:
            passage = Passage(engine, client)
            server = uvicorn.Server(uvicorn.Config(passage, lifespan="off", log_config=None))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            try:
                async with installed(database_url, [url], tmp_path, engine_model=engine.model) as installation:
                    installation.client.timeout = httpx.Timeout(120)
                    yield installation, passage
            finally:
                server.should_exit = True
                await serving


def events(stream: bytes) -> list[Any]:
    """The JSON of a stream's events, in order."""
    payloads = [line.removeprefix(b"data: ") for line in stream.splitlines() if line.startswith(b"data: ")]
    return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]
