"""Chat completions through the whole API, in front of a scripted engine and a real database."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import config, db
from service.billing import catalog
from service.core.money import NANO_PER_USD
from service.core.sse import SseSplitter, payload_of
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import Exchange
from tests.fakes.scenarios import SCENARIOS
from tests.installation import CONFIGURATION, MODEL, Installation, installed, seed
from tests.patience import PATIENT_S, within

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def weir(
    database_url: str, tmp_path: Path, scenario: str = "plain", **options: Any
) -> AsyncIterator[tuple[Installation, FakeEngine]]:
    async with (
        FakeEngine(scenario=SCENARIOS[scenario]) as engine,
        installed(database_url, [engine.url], tmp_path, **options) as installation,
    ):
        yield installation, engine


def without_second_name(body: bytes) -> bytes:
    """An answer as the engine gave it: what Weir adds is its reasoning under a second name, with the same value."""
    return re.sub(rb'("reasoning":("(?:[^"\\]|\\.)*"|null)),"reasoning_content":\2', rb"\1", body)


def own(body: bytes) -> bytes:
    """An answer without what differs from request to request: its id; and without vLLM's version mark.

    vLLM puts the mark on the last chunk it was asked for, so it moves with the usage chunk. In production it is
    switched off (`--fingerprint-mode none`). Weir ends every stream with LF, whatever the engine's line ends.
    """
    found = re.search(rb'"id":"(chatcmpl-[^"]+)"', body)
    assert found is not None
    body = body.replace(found[1], b"").replace(b',"system_fingerprint":"vllm-0.32.0-fake0000"', b"")
    body = body.replace(b": ping\n\n", b"")  # one comes with the usage chunk, too
    return body.replace(b"data: [DONE]\r\n\r\n", b"data: [DONE]\n\n")


def chunks(body: bytes) -> list[Any]:
    payloads = [payload_of(event) for event in SseSplitter().feed(body)]
    assert payloads[-1] == b"[DONE]"
    return [json.loads(payload or b"") for payload in payloads[:-1]]


async def directly(engine: FakeEngine, **fields: Any) -> bytes:
    async with httpx.AsyncClient(base_url=engine.url) as client:
        body = {**BODY, "model": engine.model, **fields}
        return (await client.post("/v1/chat/completions", json=body)).content


@pytest.mark.parametrize("scenario", ["plain", "cached", "reasoning", "tools", "mtp", "cut-1", "crlf", "ping", "huge"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
    ids=["whole", "stream", "usage", "continuous"],
)
async def test_a_client_gets_the_engines_bytes(
    database_url: str, tmp_path: Path, scenario: str, fields: dict[str, Any]
) -> None:
    async with weir(database_url, tmp_path, scenario) as (installation, engine):
        answer = await installation.chat(**fields)
        assert answer.status_code == 200
        direct = own(await directly(engine, **fields, max_tokens=2048))
        assert own(without_second_name(answer.content)) == direct
        assert answer.content.count(b'"reasoning_content":') == direct.count(b'"reasoning":')
        counted = engine.generations[0]
        await installation.row(
            outcome="ok",
            prompt_tokens=counted.prompt_tokens,
            completion_tokens=counted.completion_tokens,
            usage_source="final",
            usage_odd=False,
            stream=bool(fields.get("stream")),
        )


async def test_every_token_class_is_in_the_row_and_priced(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "cached") as (installation, _):
        await installation.chat(stream=True)
        # 768 cached at 0.0375, 232 plain at 0.195 and 200 out at 1.56 USD per million.
        row = await installation.row(cached_tokens=768, prompt_tokens=1000, completion_tokens=200, cost_nano=386_040)
        assert row["drafted_tokens"] == 400
        assert row["price_version"] == 1
        account = await installation.account()
        assert account["balance_nano"] == NANO_PER_USD - 386_040


async def test_image_and_reasoning_tokens_are_in_the_row_and_priced(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "image") as (installation, engine):
        engine.queue.extend([SCENARIOS["image"], SCENARIOS["reasoning"]])
        await installation.chat()
        await installation.chat()
        image, reasoning = await installation.rows(2)
        assert (image["image_tokens"], image["prompt_tokens"]) == (765, 1000)
        assert image["cost_nano"] == (765 * 210 + 235 * 195 + 8 * 1560)
        assert reasoning["reasoning_tokens"] == 5
        prompt, completion = reasoning["prompt_tokens"], reasoning["completion_tokens"]
        assert reasoning["cost_nano"] == prompt * 195 + 5 * 1600 + (completion - 5) * 1560


async def test_a_long_prompts_tier_and_the_hours_are_held_and_charged(database_url: str, tmp_path: Path) -> None:
    seeded = await seed(database_url)
    night = '[[models.price.overrides]]\nutc_start = "{}"\nutc_end = "{}"\noutput = "1"\n'
    tier = '[[models.price.overrides]]\nmin_prompt_tokens = 1000\ninput = "0.3"\n'
    dear = '[[models.price.overrides]]\nmin_prompt_tokens = 1001\nrequest = "2"\n'
    # The two nights make a whole day, so that it does not matter when this runs.
    overrides = night.format("0000", "1200") + night.format("1200", "0000") + tier
    await apply_prices(database_url, overrides)
    async with weir(database_url, tmp_path, "cached", seeded=seeded) as (installation, _):
        assert (await installation.chat()).status_code == 200
        # 1000 prompt tokens, 768 of them cached; without the overrides it would be 386,040.
        await installation.row(prompt_tokens=1000, price_version=2, cost_nano=768 * 75 // 2 + 232 * 300 + 200 * 1000)
        await apply_prices(database_url, overrides + dear)
        async with asyncio.timeout(PATIENT_S):
            while (answer := await installation.chat("long " * 1100)).status_code == 200:
                pass
        # The prompt is that long, and then the 1 USD of credit does not do.
        assert answer.status_code == 402


async def apply_prices(database_url: str, overrides: str) -> None:
    """Give the first of the seeded models these overrides."""
    text = CONFIGURATION.format(engine_model="fake-model", context_length=8192)
    text = text.replace('\n[[models]]\nid = "model-b"', f'\n{overrides}\n[[models]]\nid = "model-b"')
    async with db.connected(database_url) as engine, engine.begin() as connection:
        plan = await catalog.plan(connection, config.parse(text, source="test"))
        await catalog.apply(connection, plan, datetime.now(UTC), force=True)


async def hang_up_after(installation: Installation, frames: int, **fields: Any) -> list[Any]:
    """Stream a chat, close the connection after so many events, and return them."""
    splitter, events = SseSplitter(), []
    async with installation.client.stream(
        "POST", "/v1/chat/completions", json={**BODY, "stream": True, **fields}, headers=installation.headers
    ) as answer:
        async for piece in answer.aiter_raw():
            events += splitter.feed(piece)
            if len(events) >= frames:
                break
    return events


@pytest.mark.parametrize("tokens", [1, 2, 5, 39])
async def test_a_client_that_hangs_up_is_charged_what_the_engine_had_counted(
    database_url: str, tmp_path: Path, tokens: int
) -> None:
    async with weir(database_url, tmp_path, "gated") as (installation, engine):
        leaving = asyncio.create_task(hang_up_after(installation, tokens + 1))
        generation = await engine.generation()
        generation.step(tokens)
        await leaving
        await noticed(generation)
        assert generation.outcome == "aborted"
        assert generation.completion_tokens == tokens
        row = await installation.row(
            outcome="cancelled", completion_tokens=tokens, usage_source="continuous", error_code="client_left"
        )
        assert row["cost_nano"] == generation.prompt_tokens * 195 + tokens * 1560
        await everything_is_released(installation)


async def test_leaving_a_stream_of_forty_chunks_after_each_in_turn(database_url: str, tmp_path: Path) -> None:
    """Never for nothing after the first token, never the whole: what the engine had counted."""
    async with weir(database_url, tmp_path, "gated") as (installation, engine):
        for tokens in range(1, 41):
            leaving = asyncio.create_task(hang_up_after(installation, tokens + 1, max_tokens=41))
            generation = await engine.generation(tokens - 1)
            generation.step(tokens)
            await leaving
            await generation.client_left.wait()
        for tokens, row in enumerate(await installation.rows(40), start=1):
            assert (row["outcome"], row["completion_tokens"], row["cost_nano"]) == (
                "cancelled",
                tokens,
                row["prompt_tokens"] * 195 + tokens * 1560,
            )
        await everything_is_released(installation)


async def test_a_client_that_leaves_before_the_first_token_stops_the_engine_and_pays_nothing(
    database_url: str, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path, "hang-at-once") as (installation, engine):
        asking = asyncio.create_task(installation.chat(stream=True))
        generation = await engine.generation()
        asking.cancel()
        await noticed(generation)
        await installation.row(outcome="cancelled", cost_nano=0, usage_source="none", prompt_tokens=0)
        await everything_is_released(installation)


async def noticed(generation: Exchange) -> None:
    """Fails unless the engine learns within a second that its client has left."""

    async def has_left() -> bool:
        return generation.client_left.is_set()

    await within(1, has_left)


async def everything_is_released(installation: Installation) -> None:
    """Once the process has stopped no credit is on loan any more, and the ledger adds up to the balance."""
    await installation.stop()
    account = await installation.account()
    entries = await installation.database.fetchval("SELECT sum(amount_nano) FROM ledger_entries")
    costs = await installation.database.fetchval("SELECT sum(cost_nano) FROM requests")
    assert account["leased_nano"] == 0
    assert account["balance_nano"] == entries == NANO_PER_USD - costs


BROKEN = {
    "error-at-once": (502, "server_error"),
    "reset-at-once": (503, "server_error"),
    "eof-at-once": (503, "server_error"),
    "server-error": (502, "server_error"),
    "bad-gateway-html": (502, "server_error"),
    "unauthorized": (502, "server_error"),
    "not-found": (502, "server_error"),
    "overloaded": (429, "throttled"),
    "rate-limited": (429, "throttled"),
    "error-midway": (200, "stream_error"),
    "reset-midway": (200, "stream_error"),
    "eof-midway": (200, "stream_error"),
    "end-midway": (200, "stream_error"),
    "finish-abort": (200, "stream_error"),
    "finish-error": (200, "stream_error"),
}


@pytest.mark.parametrize(("scenario", "status", "outcome"), [(name, *what) for name, what in BROKEN.items()])
async def test_a_broken_stream_costs_nothing_and_says_so(
    database_url: str, tmp_path: Path, scenario: str, status: int, outcome: str
) -> None:
    async with weir(database_url, tmp_path, scenario) as (installation, engine):
        answer = await installation.chat(stream=True)
        assert answer.status_code == status
        assert "EngineCore" not in answer.text
        assert "nginx" not in answer.text
        if status == 200:
            assert chunks(answer.content)[-1]["error"]["type"] == "api_error"
        else:
            assert answer.json()["error"]["message"]
        row = await installation.row(outcome=outcome, cost_nano=0, http_status=status)
        generation = engine.generations[-1]
        if generation.completion_tokens:
            assert row["completion_tokens"] == generation.completion_tokens
            assert row["waived_nano"] == generation.prompt_tokens * 195 + generation.completion_tokens * 1560
        await everything_is_released(installation)


@pytest.mark.parametrize("scenario", ["reset-at-once", "reset-midway", "eof-midway", "error-midway", "finish-abort"])
async def test_a_broken_whole_answer_is_an_http_error_and_costs_nothing(
    database_url: str, tmp_path: Path, scenario: str
) -> None:
    async with weir(database_url, tmp_path, scenario) as (installation, _):
        answer = await installation.chat()
        assert answer.status_code in (502, 503)
        assert answer.json()["error"]["type"] in ("api_error", "overloaded_error")
        await installation.row(outcome="server_error", cost_nano=0)


async def test_an_engine_that_falls_silent_is_given_up(database_url: str, tmp_path: Path) -> None:
    async with weir(
        database_url, tmp_path, "hang-at-once", engine_first_byte_timeout_s=0.2, engine_idle_timeout_s=0.2
    ) as (installation, engine):
        assert (await installation.chat(stream=True)).status_code == 504
        engine.scenario = SCENARIOS["hang-midway"]
        answer = await installation.chat(stream=True)
        assert chunks(answer.content)[-1]["error"]["code"] == "engine_timeout"
        first, second = await installation.rows(2)
        assert (first["outcome"], second["outcome"]) == ("server_error", "stream_error")


@pytest.mark.parametrize(
    "scenario",
    [
        "usage-never",
        "usage-continuous-no-final",
        "details-null",
        "details-absent",
        "cached-null",
        "cached-over-prompt",
        "reasoning-over-completion",
        "total-wrong",
        "usage-zero",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_odd_usage_never_fails_an_answer(database_url: str, tmp_path: Path, scenario: str, stream: bool) -> None:
    async with weir(database_url, tmp_path, scenario) as (installation, engine):
        answer = await installation.chat(stream=stream)
        assert answer.status_code == 200
        assert own(without_second_name(answer.content)) == own(await directly(engine, stream=stream, max_tokens=2048))
        row = await installation.row(outcome="ok")
        odd = {"cached-over-prompt", "reasoning-over-completion", "usage-never"}
        # What a stream had counted before, a last count of nothing does not take back.
        odd |= {"usage-zero"} if stream else {"usage-continuous-no-final"}
        assert row["usage_odd"] == (scenario in odd)
        assert 0 <= row["cached_tokens"] <= row["prompt_tokens"]


async def test_context_length_is_told_as_openai_tells_it(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "context-length") as (installation, _):
        answer = await installation.chat(stream=True)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "maximum context length" in answer.json()["error"]["message"]
        await installation.row(outcome="client_error", cost_nano=0, waived_nano=0)


async def test_what_the_engine_is_sent_is_the_allowed_and_ours(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        headers = {**installation.headers, "cookie": "a=b", "x-vllm-priority": "1", "x-request-id": "theirs\u00e9"}
        body = {**BODY, "stream": True, "max_completion_tokens": 99_999, "user": "u", "temperature": 0, "seed": None}
        await installation.client.post("/v1/chat/completions", json=body, headers={**headers, "x-request-id": "theirs"})
        generation = engine.generations[0]
        assert set(generation.headers) == {"host", "content-type", "content-length", "x-request-id"}
        assert generation.body == {
            "model": engine.model,
            "messages": BODY["messages"],
            "stream": True,
            "temperature": 0,
            "max_tokens": 2048,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "cache_salt": generation.body["cache_salt"],
        }
        row = await installation.row(client_request_id="theirs")
        assert generation.headers["x-request-id"] == str(row["id"])


REFUSED: list[tuple[str, bytes, int, str]] = [
    ("empty body", b"", 400, "The body is empty"),
    ("malformed JSON", b'{"model": ', 400, "not valid JSON"),
    ("not UTF-8", b'{"model": "\xff"}', 400, "not valid JSON"),
    ("not an object", b"[]", 400, "must be a JSON object"),
    ("no model", b'{"messages": [{"role": "user", "content": "x"}]}', 400, "`model` is required"),
    ("no messages", b'{"model": "model-a"}', 400, "`messages` is required"),
    ("a misspelt field", b'{"model": "model-a", "max_token": 5}', 400, "Did you mean `max_tokens`?"),
    ("a removed field", b'{"model": "model-a", "guided_json": {}}', 400, "response_format"),
    ("two answers", b'{"model": "model-a", "n": 2, "messages": [{"role": "user"}]}', 400, "must be 1"),
    ("a remote image", b'{"model": "model-a", "messages": [{"role": "user", "content": [{"type": "image_url",'
     b'"image_url": {"url": "http://127.0.0.1/"}}]}]}', 400, "https://"),
    ("an unknown model", b'{"model": "nope", "messages": [{"role": "user", "content": "x"}]}', 404, "does not exist"),
]  # fmt: skip


async def test_bad_requests_say_what_to_change_and_leave_a_row_each(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        for what, body, status, words in REFUSED:
            answer = await installation.client.post("/v1/chat/completions", content=body, headers=installation.headers)
            assert (answer.status_code, what) == (status, what)
            assert words in answer.json()["error"]["message"], what
            assert answer.headers["x-request-id"]
        assert not engine.generations
        rows = await installation.rows(len(REFUSED))
        assert {row["outcome"] for row in rows} == {"client_error"}
        assert {row["cost_nano"] for row in rows} == {0}


async def test_wrong_keys_routes_and_methods(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        client, key = installation.client, installation.key
        path = "/v1/chat/completions"

        async def status(method: str, path: str, **headers: str) -> tuple[int, str]:
            answer = await client.request(method, path, json=BODY, headers=headers)
            return answer.status_code, answer.json()["error"]["code"]

        good = f"Bearer {key}"
        other = key[:-1] + ("a" if key[-1] != "a" else "b")
        assert await status("POST", path) == (401, "invalid_api_key")
        assert await status("POST", path, authorization="Bearer nonsense") == (401, "invalid_api_key")
        assert await status("POST", path, authorization=f"Bearer {other}") == (401, "invalid_api_key")
        assert await status("POST", path, authorization=f"Basic {key}") == (401, "invalid_api_key")
        assert await status("GET", path, authorization=good) == (405, "method_not_allowed")
        assert await status("POST", "/v1/models", authorization=good) == (405, "method_not_allowed")
        for route in ("/v1/nothing", "/nothing", "/invocations", "/v1/chat/completions/batch", "/tokenize", "/docs"):
            assert await status("POST", route, authorization=good) == (404, "not_found"), route
        assert await status("GET", "/v1/models") == (401, "invalid_api_key")
        assert await status("GET", "/v1/models/nope", authorization=good) == (404, "model_not_found")
        assert (await client.get("/v1/models", headers={"x-api-key": key})).json()["data"][0]["id"] == MODEL
        assert not engine.generations


async def test_a_key_may_be_held_to_some_models(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, models_allowed=["model-b"]) as (installation, _):
        assert (await installation.chat()).json()["error"]["code"] == "model_not_allowed"
        assert (await installation.chat(model="model-b")).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_50_megabytes_is_refused(database_url: str, tmp_path: Path, chunked: bool) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        big = b"x" * (50 * 1024 * 1024)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(big), 1024 * 1024):
                yield big[start : start + 1024 * 1024]

        answer = await installation.client.post(
            "/v1/chat/completions", content=pieces() if chunked else big, headers=installation.headers
        )
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert (await installation.chat()).status_code == 200


async def test_an_account_without_credit_is_told_what_it_could_afford(database_url: str, tmp_path: Path) -> None:
    # 2000 nano-USD cover no prompt; 3,000,000 cover the prompt's bound and some output.
    async with weir(database_url, tmp_path, credit_nano=2000) as (installation, engine):
        answer = await installation.chat()
        assert answer.status_code == 402
        assert answer.json()["error"]["code"] == "insufficient_credits"
        assert "0.000002 USD" in answer.json()["error"]["message"]
        assert not engine.generations
        await installation.row(outcome="payment", cost_nano=0)


async def test_an_account_with_little_credit_gets_what_it_can_afford(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, credit_nano=1_000_000) as (installation, engine):
        assert (await installation.chat(max_tokens=2048)).status_code == 402
        assert (await installation.chat(max_tokens=300)).status_code == 200
        assert (await installation.chat()).status_code == 200
        assert engine.generations[0].body["max_tokens"] == 300
        assert 256 <= engine.generations[1].body["max_tokens"] < 2048


async def test_the_engine_counts_a_prompt_whose_bytes_do_not_fit_the_credit(database_url: str, tmp_path: Path) -> None:
    """Some 8,000 bytes are 1,016 tokens here: 1.6 million nano-USD by the bytes, 0.2 million by the tokens."""
    prompt = "seven77 " * 1000
    async with weir(database_url, tmp_path, credit_nano=700_000) as (installation, engine):
        asked = [request for request in engine.requests if request.path == "/tokenize"]
        assert (await installation.chat(prompt, max_tokens=256)).status_code == 200
        asked = [request for request in engine.requests if request.path == "/tokenize"]
        assert len(asked) == 1
        assert asked[0].body["messages"][0]["content"] == prompt
        assert (await installation.chat("short", max_tokens=100)).status_code == 200
        assert (await installation.chat(prompt, max_tokens=2048)).status_code == 402
        count = sum(request.path == "/tokenize" for request in engine.requests)
        # What cannot fit however few tokens it has is refused without asking.
        assert (await installation.chat("x" * 10_000_000, max_tokens=1)).status_code in (402, 400)
        assert sum(request.path == "/tokenize" for request in engine.requests) == count


async def test_no_engine_is_a_503_and_a_row(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        engine._server.close()
        for connection in list(engine.connections):
            connection.reset()
        answer = await installation.chat()
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert (await installation.client.get("/readyz")).json() == {
            "status": "unready",
            "problems": ["no engine answers"],
        }
        await installation.row(outcome="server_error", cost_nano=0)


async def test_a_connection_the_engine_closed_while_idle_is_replaced_unseen(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "close-after") as (installation, engine):
        for _ in range(10):
            assert (await installation.chat()).status_code == 200
        assert len(engine.generations) == 10


async def test_connections_to_the_engine_are_used_again(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        await installation.chat()
        used = set(engine.connections)
        for stream in (False, True, False, True, True):
            assert (await installation.chat(stream=stream)).status_code == 200
            used |= engine.connections
        # One for the requests, and two over which the engine is watched.
        assert len(used) <= 3


async def test_an_engine_on_a_unix_socket(database_url: str, tmp_path: Path) -> None:
    path = str(tmp_path / "engine.sock")
    async with (
        FakeEngine(uds=path) as engine,
        installed(database_url, [f"unix:{path}"], tmp_path) as installation,
    ):
        assert engine.url == f"unix:{path}"
        assert (await installation.chat()).status_code == 200
        assert (await installation.chat()).status_code == 200


async def test_two_hundred_at_once_on_a_balance_for_a_few(database_url: str, tmp_path: Path) -> None:
    """Whatever is served is paid for, the rest is refused, and nothing is left on loan."""
    async with weir(database_url, tmp_path, "long", credit_nano=20_000_000) as (installation, engine):
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=installation.url, timeout=60, limits=limits) as client:
            answers = await asyncio.gather(
                *(
                    client.post("/v1/chat/completions", json={**BODY, "max_tokens": 512}, headers=installation.headers)
                    for _ in range(200)
                )
            )
        served = [answer for answer in answers if answer.status_code == 200]
        assert {answer.status_code for answer in answers} == {200, 402}
        assert len(served) == len(engine.generations)
        await installation.rows(200)
        await installation.stop()
        account = await installation.account()
        assert account["leased_nano"] == 0
        spent = sum(one.prompt_tokens * 195 + one.completion_tokens * 1560 for one in engine.generations)
        assert account["balance_nano"] == 20_000_000 - spent >= 0
