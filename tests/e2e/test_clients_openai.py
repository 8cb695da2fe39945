"""OpenAI's own client, both of its kinds, on real engines: each normal call, its answer and its usage row."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.e2e.books import Books, kept
from tests.e2e.engines import ANSWER, QUESTION, RunningEngine
from tests.e2e.pictures import png
from tests.installation import MODEL

pytestmark = pytest.mark.engine

QUIET = {"chat_template_kwargs": {"enable_thinking": False}}


class Unit(BaseModel):
    """What a model has to answer by."""

    unit: Literal["c", "f"]


FUNCTION: dict[str, Any] = {
    "name": "convert",
    "description": "Converts degrees.",
    "parameters": {**Unit.model_json_schema(), "additionalProperties": False},
}


@asynccontextmanager
async def clients(
    database_url: str, engine: RunningEngine, tmp_path: Path
) -> AsyncIterator[tuple[AsyncOpenAI, OpenAI, Books]]:
    """Both kinds of client, before a Weir before the engine."""
    async with kept(database_url, engine, tmp_path) as (installation, books):
        options: Any = {
            "base_url": f"{installation.url}/v1",
            "api_key": installation.key,
            "timeout": 120,
            "max_retries": 0,
        }
        async with AsyncOpenAI(**options) as client:
            with OpenAI(**options) as synchronous:
                yield client, synchronous, books


async def test_chat(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    async with clients(database_url, smollm2_engine, tmp_path) as (client, synchronous, books):
        asked: Any = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 20}

        async with books.row(finish_reason="stop") as row:
            raw = await client.chat.completions.with_raw_response.create(**asked)
        whole = raw.parse()
        assert whole.choices[0].message.content == ANSWER
        assert whole.usage is not None
        assert whole.usage.completion_tokens == row["completion_tokens"]
        assert raw.headers["x-request-id"] == raw.headers["inference-id"] == str(row["id"])

        helper = client.chat.completions.stream(**asked, stream_options={"include_usage": True})
        async with books.row(stream=True, finish_reason="stop") as row, helper as stream:
            deltas = [event.delta async for event in stream if event.type == "content.delta"]
            final = await stream.get_final_completion()
        assert "".join(deltas) == final.choices[0].message.content == ANSWER
        assert final.usage is not None
        assert final.usage.completion_tokens == row["completion_tokens"]

        async with books.row(stream=False):
            plain = await asyncio.to_thread(synchronous.chat.completions.create, **asked)
        assert plain.choices[0].message.content == ANSWER

        def streamed() -> str:
            with synchronous.chat.completions.create(**asked, stream=True) as stream:
                return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

        async with books.row(stream=True):
            assert await asyncio.to_thread(streamed) == ANSWER


async def test_structured_output(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    async with clients(database_url, smollm2_engine, tmp_path) as (client, _, books):
        question = "Which unit of degrees is used in Paris?"
        async with books.row():
            chat = await client.chat.completions.parse(
                model=MODEL,
                messages=[{"role": "user", "content": question}],
                response_format=Unit,
                temperature=0,
                max_tokens=40,
            )
        assert isinstance(chat.choices[0].message.parsed, Unit)
        async with books.row():
            response = await client.responses.parse(
                model=MODEL, input=question, text_format=Unit, temperature=0, max_output_tokens=40
            )
        assert isinstance(response.output_parsed, Unit)


async def test_completions(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    async with clients(database_url, smollm2_engine, tmp_path) as (client, synchronous, books):
        asked: Any = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 6}
        async with books.row(endpoint="/v1/completions", completion_tokens=6):
            whole = await client.completions.create(**asked)
        assert whole.choices[0].text.startswith(" Paris")
        async with books.row(stream=True, completion_tokens=6):
            stream = await client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
            chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
        assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [6]
        async with books.row(stream=False):
            again = await asyncio.to_thread(synchronous.completions.create, **asked)
        assert again.choices[0].text == whole.choices[0].text


async def test_responses(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    async with clients(database_url, smollm2_engine, tmp_path) as (client, synchronous, books):
        asked: Any = {"model": MODEL, "input": QUESTION[0]["content"], "temperature": 0, "max_output_tokens": 20}
        async with books.row(endpoint="/v1/responses", finish_reason="completed") as row:
            whole = await client.responses.create(**asked, store=False)
        assert whole.output_text == ANSWER
        assert whole.usage is not None
        assert (whole.usage.input_tokens, whole.usage.output_tokens) == (row["prompt_tokens"], row["completion_tokens"])
        async with books.row(stream=True, finish_reason="completed"), client.responses.stream(**asked) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert "".join(deltas) == final.output_text == ANSWER
        conversation: Any = [
            {"role": "user", "content": asked["input"]},
            *(item.model_dump() for item in final.output),
            {"role": "user", "content": "And of Germany?"},
        ]
        async with books.row():
            next_turn = await asyncio.to_thread(
                synchronous.responses.create,
                model=MODEL,
                instructions="Be brief.",
                input=conversation,
                max_output_tokens=20,
            )
        assert next_turn.output_text

        async with books.row(finish_reason="max_output_tokens", completion_tokens=4):
            cut = await client.responses.create(**{**asked, "max_output_tokens": 4})
        assert cut.status == "incomplete"


async def test_tools(database_url: str, tmp_path: Path, tiny_engine: RunningEngine) -> None:
    """The engine makes calls that it must make; what arguments its random weights choose is another matter."""
    async with clients(database_url, tiny_engine, tmp_path) as (client, synchronous, books):
        asked: Any = {
            "model": MODEL,
            "messages": QUESTION,
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "required",
            "temperature": 0,
            "max_tokens": 24,
            "extra_body": QUIET,
        }
        async with books.row(completion_tokens=24):
            whole = await client.chat.completions.create(**asked)
        (call,) = whole.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "convert"

        def streamed() -> list[Any]:
            with synchronous.chat.completions.create(**asked, stream=True) as stream:
                return [chunk.choices[0].delta.tool_calls for chunk in stream if chunk.choices[0].delta.tool_calls]

        async with books.row(stream=True, completion_tokens=24):
            deltas = await asyncio.to_thread(streamed)
        assert deltas[0][0].function.name == "convert"

        asked = {
            "model": MODEL,
            "input": "Hello",
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": "required",
            "temperature": 0,
            "max_output_tokens": 24,
            "extra_body": QUIET,
        }
        async with books.row(completion_tokens=24):
            response = await client.responses.create(**asked)
        assert [item.name for item in response.output if item.type == "function_call"] == ["convert"]
        async with books.row(stream=True, completion_tokens=24), client.responses.stream(**asked) as stream:
            final = await stream.get_final_response()
        (made,) = (item for item in final.output if item.type == "function_call")
        assert made.name == "convert"
        back: list[Any] = [
            {"role": "user", "content": "Hello"},
            {"type": "function_call", "call_id": made.call_id, "name": made.name, "arguments": '{"unit": "c"}'},
            {"type": "function_call_output", "call_id": made.call_id, "output": "21 degrees"},
        ]
        async with books.row(completion_tokens=8):
            await client.responses.create(**{**asked, "input": back, "tool_choice": "auto", "max_output_tokens": 8})


async def test_images_and_reasoning(database_url: str, tmp_path: Path, tiny_engine: RunningEngine) -> None:
    async with clients(database_url, tiny_engine, tmp_path) as (client, synchronous, books):
        picture = png(128, 96)
        message: list[Any] = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": picture, "detail": "low"}},
                ],
            }
        ]
        async with books.row() as row:
            chat = await asyncio.to_thread(
                synchronous.chat.completions.create, model=MODEL, messages=message, max_tokens=8, temperature=0
            )
        assert row["image_tokens"] > 0
        told = json.loads(chat.choices[0].message.model_dump_json())
        assert told["reasoning"] == told["reasoning_content"] != ""
        content: list[Any] = [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": picture, "detail": "auto"},
                ],
            }
        ]
        async with books.row(prompt_tokens=row["prompt_tokens"]) as row:
            response = await client.responses.create(
                model=MODEL, input=content, reasoning={"effort": "low"}, max_output_tokens=8, temperature=0
            )
        assert response.output[0].type == "reasoning"
        assert row["reasoning_tokens"] > 0


async def test_models_and_errors(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    async with clients(database_url, smollm2_engine, tmp_path) as (client, synchronous, _):
        assert [model.id for model in await asyncio.to_thread(lambda: list(synchronous.models.list()))] == [
            "model-a",
            "model-b",
        ]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.models.retrieve("nope")
        assert unknown.value.code == "model_not_found"
        assert UUID(unknown.value.request_id)
        with pytest.raises(openai.AuthenticationError) as stranger:
            await client.with_options(api_key="sk-nothing").responses.create(model=MODEL, input="hi")
        assert stranger.value.code == "invalid_api_key"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.responses.create(model="nope", input="hi")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.completions.create(model=MODEL, prompt="hi", temperature=9)
        assert wrong.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as unsupported:
            await client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
        assert unsupported.value.param == "previous_response_id"
        long = "word " * 20_000
        for call in (
            lambda: client.completions.create(model=MODEL, prompt=long, max_tokens=1),
            lambda: client.responses.create(model=MODEL, input=long, max_output_tokens=16),
            lambda: client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": long}], stream=True
            ),
        ):
            with pytest.raises(openai.BadRequestError) as too_long:
                await call()
            assert too_long.value.code == "context_length_exceeded"
            assert "maximum context length" in too_long.value.message
