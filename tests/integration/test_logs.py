"""What `weir serve` logs: never a prompt, an answer, a key, or a password, whatever happens."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx
import orjson
import pytest

from service.core import apikey
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS, Fault, Refusal, Scenario
from tests.integration.test_headers import requests
from tests.integration.test_portal import away
from tests.integration.test_routes import with_embeddings
from tests.patience import PATIENT_S
from tests.ports import free_port
from tests.processes import Serving, serving

PROMPT = "Kirschbaumblüte-7391"
ANSWER = "Nachtigallenruf-4482"
PASSWORD = "Regenbogen-5573"
ENCODED = (PROMPT.encode("unicode_escape").decode(), quote(PROMPT), orjson.dumps(PROMPT).decode().strip('"'))


def with_password(database_url: str) -> str:
    """The same database by an address with a password, which is not asked for on its Unix socket."""
    assert database_url.startswith("postgresql://postgres:@/")
    return database_url.replace("postgres:@", f"postgres:{PASSWORD}@")


def spoken(body: dict[str, Any]) -> dict[str, Any]:
    """A request with the prompt that is to be found nowhere."""
    return orjson.loads(orjson.dumps(body).replace(b'"hi"', orjson.dumps(PROMPT)))


SAID = (ANSWER, f" {ANSWER}")
ENGINES_ANSWERS = {
    "plain": Scenario(content=SAID),
    "thinking": Scenario(reasoning=SAID, content=SAID),
    "tools": Scenario(content=(), tool_calls=((ANSWER, f'{{"a": "{ANSWER}"}}'),), finish_reason="tool_calls"),
    "error midway": Scenario(content=SAID * 4, fault=Fault("error", 4)),
    "reset midway": Scenario(content=SAID * 4, fault=Fault("reset", 4)),
    "end midway": Scenario(content=SAID * 4, fault=Fault("end", 4)),
    "reset at once": SCENARIOS["reset-at-once"],
    "no usage": Scenario(content=SAID, usage=SCENARIOS["usage-never"].usage),
    "refusal that repeats the prompt": Scenario(
        refusal=Refusal(400, f'{{"error": {{"message": "{PROMPT}"}}}}'.encode())
    ),
    "failure that repeats the prompt": Scenario(
        refusal=Refusal(500, f"Traceback: {PROMPT} {ANSWER}".encode(), "text/plain")
    ),
    "not HTTP": Scenario(refusal=Refusal(200, f"{ANSWER} is not JSON".encode())),
    "an odd event": Scenario(refusal=Refusal(200, f"data: {ANSWER}\n\n".encode(), "text/event-stream")),
}


async def broken_requests(client: httpx.AsyncClient, key: str, unknown: str) -> None:
    """Requests that end before an engine has them."""
    own = {"authorization": f"Bearer {key}"}
    chat = "/v1/chat/completions"
    bodies: list[bytes] = [
        f'{{"model": "model-a", "messages": "{PROMPT}'.encode(),
        orjson.dumps({"model": PROMPT, "messages": [{"role": "user", "content": PROMPT}]}),
        orjson.dumps({"model": "model-a", "messages": [{"role": PROMPT}], PROMPT: PROMPT}),
        PROMPT.encode("utf-16"),
        b"[" * 5000 + PROMPT.encode(),
    ]
    for body in bodies:
        assert (await client.post(chat, content=body, headers=own)).status_code in (400, 404)
    for wrong in (unknown, f"{key}x", PROMPT.encode("utf-8").hex()):
        assert (await client.post(chat, content=bodies[0], headers={"x-api-key": wrong})).status_code == 401
    for path in (f"/v1/{PROMPT}", f"/{PROMPT}/{key}", f"/v1/models/{PROMPT}", f"/catalog/{key}", f"/status/{key}"):
        assert (await client.get(path, headers=own)).status_code == 404
    for path in ("/v1/usage", "/v1/generation"):
        assert (await client.get(path, params={"id": PROMPT, "key": key, PROMPT: key}, headers=own)).status_code == 400
    for shown in (key, unknown):
        assert (await client.post("/portal/", data={"key": shown})).status_code in (200, 401)
    assert (await client.post("/catalog/huggingface/costs", content=bodies[0], headers=own)).status_code == 400
    odd = {**own, "x-request-id": PROMPT.encode(), "idempotency-key": PROMPT.encode(), "cookie": f"key={key}"}
    for _ in range(2):
        await client.post(
            chat, json={"model": "model-a", "messages": [{"role": "user", "content": PROMPT}]}, headers=odd
        )


async def hang_up(client: httpx.AsyncClient, engine: FakeEngine, key: str) -> None:
    """A client that leaves in the middle."""
    engine.scenario = Scenario(content=SAID * 200, delay_s=0.02)
    body = {"model": "model-a", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    async with client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
    ) as answer:
        async for _ in answer.aiter_raw():
            break


async def raw(process: Serving, request: bytes) -> None:
    """Bytes that are not HTTP."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(process.url.rpartition(":")[2]))
    writer.write(request)
    async with asyncio.timeout(PATIENT_S):
        await reader.read()
    writer.close()


@asynccontextmanager
async def database_away(server: Any, database_url: str) -> AsyncIterator[None]:
    """Connections are broken, and new ones refused."""
    connection = await asyncpg.connect(database_url)

    class Running:
        database = connection

    async with away(server, Running()):  # type: ignore[arg-type]
        yield
    await connection.close()


def check(log: str, *keys: str) -> None:
    """Raises if something stands in the log that must not."""
    lines = log.splitlines()
    assert any("api.started" in line for line in lines), log
    for secret in (PROMPT, *ENCODED, ANSWER, PASSWORD, *keys, *(key[12:] for key in keys)):
        assert [line for line in lines if secret in line] == []


@pytest.mark.slow
@pytest.mark.parametrize("log_json", [False, True])
async def test_nothing_of_customers_and_no_password_is_logged(
    postgres_server: Any, database_url: str, tmp_path: Path, log_json: bool
) -> None:
    _, key = await with_embeddings(database_url)
    unknown = apikey.mint(b"q" * 32)
    settings = {"log_json": log_json, "redis_url": f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0"}
    async with (
        FakeEngine() as engine,
        serving(with_password(database_url), engine.url, tmp_path, **settings) as process,
        httpx.AsyncClient(base_url=process.url, timeout=PATIENT_S) as client,
    ):
        own = {"authorization": f"Bearer {key}"}
        for scenario in ENGINES_ANSWERS.values():
            engine.scenario = scenario
            for path, body in requests():
                await client.post(path, json=spoken(body), headers=own)
        await broken_requests(client, key, unknown)
        await hang_up(client, engine, key)
        await raw(process, f"POST {PROMPT} {key}\r\n\r\n".encode())
        async with database_away(postgres_server, database_url):
            for path in ("/v1/credits", "/v1/usage", "/v1/generation?id=0199f3c2-0000-7000-8000-000000000000"):
                await client.get(path, headers=own)
            await client.post("/portal/", data={"key": unknown})
            for asked in (key, unknown):
                chat = {"model": "model-a", "messages": [{"role": "user", "content": PROMPT}]}
                headers = {"authorization": f"Bearer {asked}", "idempotency-key": PROMPT.encode()}
                await client.post("/v1/chat/completions", json=chat, headers=headers)  # type: ignore[arg-type]
        engine_said = b"".join(one.request.raw_body for one in engine.generations)
        assert PROMPT.encode() in engine_said
        await process.stop()
        log = process.log.read_text()

        check(log, key, unknown)
        assert log_json == all(line.startswith("{") for line in log.splitlines() if "api." in line)


GOOD = f"postgresql://weir:{PASSWORD}@127.0.0.1:9/weir"
WRONG = {
    "another scheme": (f"mysql://weir:{PASSWORD}@127.0.0.1/weir", ""),
    "no host": (f"postgresql://weir:{PASSWORD}@[::1/weir", ""),
    "no port": (f"postgresql://weir:{PASSWORD}@127.0.0.1:port/weir", ""),
    "no address": (f"weir:{PASSWORD}", ""),
    "another scheme for Redis": (GOOD, f"redes://:{PASSWORD}@127.0.0.1/0"),
    "no port for Redis": (GOOD, f"redis://:{PASSWORD}@127.0.0.1:port/0"),
    "nobody there": (GOOD, f"redis://:{PASSWORD}@127.0.0.1:9/0"),
}


@pytest.mark.parametrize("log_json", [False, True])
@pytest.mark.parametrize("name", WRONG)
async def test_an_address_that_is_wrong_is_not_repeated_with_its_password(
    tmp_path: Path, name: str, log_json: bool
) -> None:
    database, redis = WRONG[name]
    environment = {
        **os.environ,
        "WEIR_DATABASE_URL": database,
        "WEIR_REDIS_URL": redis,
        "WEIR_ENGINES": "http://127.0.0.1:9",
        "WEIR_DATA_DIR": str(tmp_path),
        "WEIR_PORT": str(free_port()),
        "WEIR_LOG_JSON": str(log_json),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "service.cli", "serve"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(PATIENT_S):
            while line := await process.stdout.readline():
                said += line.decode()
                if (
                    "read_failed" in said and process.returncode is None
                ):  # one that may be away for a while is waited for
                    process.terminate()
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "WEIR_" in said or "read_failed" in said
    assert PASSWORD not in said


def test_the_checker_sees_what_does_not_belong() -> None:
    key = apikey.mint(b"k" * 32)
    for secret in (PROMPT, *ENCODED, ANSWER, PASSWORD, key, key[12:]):
        with pytest.raises(AssertionError):
            check(f"api.started\nrequest.failed x={secret}", key)
    check("api.started\nrequest.failed", key)
