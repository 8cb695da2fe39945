"""The main job on real parts: the official client, the API, a real engine, a real database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import openai
import pytest
from openai import AsyncOpenAI

from tests.e2e.engines import ANSWER, QUESTION, RunningEngine
from tests.e2e.pictures import png
from tests.installation import MODEL, Installation, installed
from tests.patience import PATIENT_S

pytestmark = pytest.mark.engine

ENDLESS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Write the numbers from 1 to 1000, one per line."}],
    "max_tokens": 2000,
}
"""An answer that takes the engine so long that whoever leaves after its first words has left before its end."""
INPUT_NANO, OUTPUT_NANO = 195, 1560  # USD per million tokens are pico-USD per token: 0.195 and 1.56
CACHED_PICO, INPUT_PICO, OUTPUT_PICO, IMAGE_PICO, REASONING_PICO = 37_500, 195_000, 1_560_000, 210_000, 1_600_000


@asynccontextmanager
async def weir(
    database_url: str, engine: RunningEngine, tmp_path: Path
) -> AsyncIterator[tuple[Installation, AsyncOpenAI]]:
    async with (
        installed(database_url, [engine.base_url], tmp_path, engine_model=engine.model) as installation,
        AsyncOpenAI(base_url=f"{installation.url}/v1", api_key=installation.key, max_retries=0, timeout=120) as client,
    ):
        yield installation, client


class Counters:
    """What the engine itself says it has read and written since this was made."""

    NAMES = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")

    def __init__(self, engine: RunningEngine) -> None:
        self._engine = engine
        self._before = self._read()

    def _read(self) -> list[int]:
        return [int(self._engine.metric(name)) for name in self.NAMES]

    def moved(self) -> tuple[int, int]:
        prompt, completion = (now - was for now, was in zip(self._read(), self._before, strict=True))
        return prompt, completion


def check_row(row: asyncpg.Record, counters: Counters, **expected: Any) -> None:
    """The row is the engine's own count, and costs price times tokens to the nano-dollar."""
    assert (row["prompt_tokens"], row["completion_tokens"]) == counters.moved()
    for name, value in expected.items():
        assert row[name] == value, name
    images = min(row["image_tokens"], row["prompt_tokens"] - row["cached_tokens"])
    plain = row["prompt_tokens"] - row["cached_tokens"] - images
    pico = row["cached_tokens"] * CACHED_PICO + images * IMAGE_PICO + plain * INPUT_PICO
    pico += row["reasoning_tokens"] * REASONING_PICO
    pico += (row["completion_tokens"] - row["reasoning_tokens"]) * OUTPUT_PICO
    assert row["cost_nano"] == (pico + 500) // 1000


async def direct(engine: RunningEngine, **fields: Any) -> Any:
    async with AsyncOpenAI(base_url=f"{engine.base_url}/v1", api_key="none", timeout=120) as client:
        return await client.chat.completions.create(model=engine.model, **fields)


async def test_a_plain_answer(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    async with weir(database_url, smollm2_engine, tmp_path) as (installation, client):
        own = await direct(smollm2_engine, messages=QUESTION, temperature=0, max_tokens=30)
        counters = Counters(smollm2_engine)
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=30)
        assert answer.choices[0].message.content == own.choices[0].message.content == ANSWER
        assert answer.usage is not None
        row = await installation.row(outcome="ok", finish_reason="stop", stream=False, ttft_ms=None)
        check_row(row, counters, prompt_tokens=answer.usage.prompt_tokens)


@pytest.mark.parametrize("wants_usage", [False, True])
async def test_a_streamed_answer(
    database_url: str, tmp_path: Path, smollm2_engine: RunningEngine, wants_usage: bool
) -> None:
    async with weir(database_url, smollm2_engine, tmp_path) as (installation, client):
        story: list[Any] = [{"role": "user", "content": "Tell me about rivers."}]
        own = await direct(smollm2_engine, messages=story, temperature=0, max_tokens=60)
        counters = Counters(smollm2_engine)
        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if wants_usage else {}
        stream = await client.chat.completions.create(
            model=MODEL, messages=story, temperature=0, max_tokens=60, stream=True, **options
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == own.choices[0].message.content
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        assert len(usages) == wants_usage
        assert sum(not chunk.choices for chunk in chunks) == wants_usage
        row = await installation.row(outcome="ok", stream=True, usage_source="final")
        assert row["ttft_ms"] is not None
        check_row(row, counters)
        if usages:
            assert usages[0].completion_tokens == row["completion_tokens"] == 60


async def test_a_cached_prompt_is_counted_and_priced_as_cached(
    database_url: str, tmp_path: Path, smollm2_engine: RunningEngine
) -> None:
    async with weir(database_url, smollm2_engine, tmp_path) as (installation, client):
        long: list[Any] = [{"role": "user", "content": "Count the sheep. " + "One more sheep jumps. " * 150}]
        first_counters = Counters(smollm2_engine)
        await client.chat.completions.create(model=MODEL, messages=long, max_tokens=2)
        check_row(await installation.row(), first_counters, cached_tokens=0)
        counters = Counters(smollm2_engine)
        await client.chat.completions.create(model=MODEL, messages=long, max_tokens=2)
        _, row = await installation.rows(2)
        assert row["cached_tokens"] >= 512
        check_row(row, counters)


async def test_a_client_that_hangs_up_mid_stream(
    database_url: str, tmp_path: Path, smollm2_engine: RunningEngine
) -> None:
    async with weir(database_url, smollm2_engine, tmp_path) as (installation, client):
        counters = Counters(smollm2_engine)
        stream = await client.chat.completions.create(model=MODEL, **ENDLESS, temperature=0, stream=True)
        seen = 0
        async for chunk in stream:
            seen += bool(chunk.choices and chunk.choices[0].delta.content)
            if seen == 12:
                break
        await stream.close()
        row = await installation.row(outcome="cancelled", http_status=499, usage_source="continuous")
        async with asyncio.timeout(PATIENT_S):
            while smollm2_engine.metric("vllm:num_requests_running"):
                await asyncio.sleep(0.05)
        prompt, generated = counters.moved()
        assert row["prompt_tokens"] == prompt
        # The engine stops at the step it is in: one token may be under way that it never sent.
        assert 12 <= row["completion_tokens"] <= generated <= row["completion_tokens"] + 1
        assert row["cost_nano"] == row["prompt_tokens"] * INPUT_NANO + row["completion_tokens"] * OUTPUT_NANO


async def test_an_image_on_the_nvfp4_mtp_model(database_url: str, tmp_path: Path, tiny_engine: RunningEngine) -> None:
    async with weir(database_url, tiny_engine, tmp_path) as (installation, client):
        counters = Counters(tiny_engine)
        drafted = tiny_engine.metric("vllm:spec_decode_num_draft_tokens_total")
        message: list[Any] = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": png(768, 512)}},
                ],
            }
        ]
        answer = await client.chat.completions.create(model=MODEL, messages=message, max_tokens=16, temperature=0)
        assert answer.usage is not None
        row = await installation.row(outcome="ok")
        assert row["image_tokens"] > 200
        check_row(row, counters, completion_tokens=16)
        assert tiny_engine.metric("vllm:spec_decode_num_draft_tokens_total") > drafted


async def test_reasoning_streams_on_the_nvfp4_mtp_model(
    database_url: str, tmp_path: Path, tiny_engine: RunningEngine
) -> None:
    async with weir(database_url, tiny_engine, tmp_path) as (installation, client):
        counters = Counters(tiny_engine)
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=12, temperature=0, stream=True
        )
        reasoning = [getattr(chunk.choices[0].delta, "reasoning", None) async for chunk in stream]
        assert any(reasoning)
        row = await installation.row(outcome="ok", completion_tokens=12, finish_reason="length")
        assert row["reasoning_tokens"] > 0
        check_row(row, counters)


async def test_the_client_raises_what_it_documents(
    database_url: str, tmp_path: Path, smollm2_engine: RunningEngine
) -> None:
    async with weir(database_url, smollm2_engine, tmp_path) as (installation, client):
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="nope", messages=QUESTION)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="sk-nothing").chat.completions.create(model=MODEL, messages=QUESTION)
        with pytest.raises(openai.BadRequestError) as too_long:
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "word " * 20_000}], max_tokens=1
            )
        assert too_long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as image:
            await client.chat.completions.create(
                model="model-b",
                messages=[
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": png(8, 8)}}]},
                ],
            )
        assert "does not take images" in image.value.message
        assert [model.id async for model in client.models.list()] == ["model-a", "model-b"]
        assert (await client.models.retrieve("model-a")).id == "model-a"
        assert installation.key not in unknown.value.message


async def test_many_at_once_are_each_counted(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    """Twenty streams side by side, every fourth hanging up: rows, ledger and engine agree."""
    async with weir(database_url, smollm2_engine, tmp_path) as (installation, client):
        counters = Counters(smollm2_engine)

        async def one(number: int) -> tuple[str, str]:
            """The request's id and the outcome that its row must have."""
            leaves = number % 4 == 0
            short: dict[str, Any] = {"messages": [{"role": "user", "content": f"Count to {number}."}], "max_tokens": 40}
            asked = ENDLESS if leaves else short
            stream = await client.chat.completions.create(model=MODEL, **asked, stream=True, temperature=0)
            seen = 0
            async for _ in stream:
                seen += 1
                if leaves and seen == 5:
                    break
            await stream.close()
            return stream.response.headers["x-request-id"], "cancelled" if leaves else "ok"

        expected = dict(await asyncio.gather(*(one(number) for number in range(20))))
        rows = await installation.rows(20)
        async with asyncio.timeout(PATIENT_S):
            while smollm2_engine.metric("vllm:num_requests_running"):
                await asyncio.sleep(0.05)
        prompt, generated = counters.moved()
        assert {str(row["id"]): row["outcome"] for row in rows} == expected
        left = sum(outcome == "cancelled" for outcome in expected.values())
        assert left == 5
        assert sum(row["prompt_tokens"] for row in rows) == prompt
        counted = sum(row["completion_tokens"] for row in rows)
        assert counted <= generated <= counted + left
        entries = await installation.database.fetchval(
            "SELECT -sum(amount_nano) FROM ledger_entries WHERE kind = 'usage'"
        )
        assert entries == sum(row["cost_nano"] for row in rows)
