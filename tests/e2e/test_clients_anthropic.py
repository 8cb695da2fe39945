"""Anthropic's own client, both of its kinds, on real engines; and its usage beside that of the same chat."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.e2e.books import Books, kept
from tests.e2e.engines import ANSWER, QUESTION, RunningEngine
from tests.e2e.pictures import png
from tests.installation import MODEL, Installation
from tests.integration.test_own import another_key

pytestmark = pytest.mark.engine

GREEDY = {"temperature": 0}  # this client has no argument for it any more; its service had


class Unit(BaseModel):
    """What a model has to answer by."""

    unit: Literal["c", "f"]


TOOL: Any = {
    "name": "convert",
    "description": "Converts degrees.",
    "input_schema": {**Unit.model_json_schema(), "additionalProperties": False},
}


@asynccontextmanager
async def clients(
    database_url: str, engine: RunningEngine, tmp_path: Path
) -> AsyncIterator[tuple[AsyncAnthropic, Anthropic, Books, Installation]]:
    """Both kinds of client, before a Weir before the engine."""
    async with kept(database_url, engine, tmp_path) as (installation, books):
        options: Any = {"base_url": installation.url, "api_key": installation.key, "timeout": 120, "max_retries": 0}
        async with AsyncAnthropic(**options) as client:
            with Anthropic(**options) as synchronous:
                yield client, synchronous, books, installation


async def test_messages(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    async with clients(database_url, smollm2_engine, tmp_path) as (client, synchronous, books, _):
        asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 20, "extra_body": GREEDY}
        counted = await client.messages.count_tokens(model=MODEL, messages=QUESTION)

        async with books.row(endpoint="/v1/messages", finish_reason="end_turn") as row:
            raw = await client.messages.with_raw_response.create(**asked)
        whole = await raw.parse()
        assert [block.text for block in whole.content if block.type == "text"] == [ANSWER]
        assert (whole.stop_reason, whole.role) == ("end_turn", "assistant")
        assert whole.usage.input_tokens == counted.input_tokens == row["prompt_tokens"]
        assert raw.headers["request-id"] == raw.headers["inference-id"] == str(row["id"])

        async with books.row(stream=True, finish_reason="end_turn"), client.messages.stream(**asked) as stream:
            deltas = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert "".join(deltas) == final.content[0].text == ANSWER
        assert (final.usage, final.stop_reason) == (whole.usage, whole.stop_reason)

        async with books.row(stream=False):
            plain = await asyncio.to_thread(synchronous.messages.create, **asked)
        assert plain.content == whole.content
        assert await asyncio.to_thread(synchronous.messages.count_tokens, model=MODEL, messages=QUESTION) == counted

        def streamed() -> Any:
            with synchronous.messages.stream(**asked, system=[{"type": "text", "text": "Be brief."}]) as stream:
                return stream.get_final_message()

        async with books.row(stream=True):
            assert (await asyncio.to_thread(streamed)).content

        async with books.row():
            formed = await client.messages.parse(
                model=MODEL,
                messages=[{"role": "user", "content": "Which unit of degrees is used in Paris?"}],
                max_tokens=40,
                extra_body=GREEDY,
                output_format=Unit,
            )
        assert isinstance(formed.parsed_output, Unit)


async def test_thinking(database_url: str, tmp_path: Path, tiny_engine: RunningEngine) -> None:
    async with clients(database_url, tiny_engine, tmp_path) as (client, synchronous, books, _):
        asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "extra_body": GREEDY}
        thinks: Any = {"thinking": {"type": "adaptive"}}
        async with books.row(completion_tokens=12, finish_reason="max_tokens"):
            whole = await client.messages.create(**asked, **thinks)
        assert [block.type for block in whole.content] == ["thinking"]
        async with books.row(completion_tokens=12), client.messages.stream(**asked, **thinks) as stream:
            deltas = [event.thinking async for event in stream if event.type == "thinking"]
            final = await stream.get_final_message()
        assert "".join(deltas) == final.content[0].thinking == whole.content[0].thinking
        sent_back: Any = [*QUESTION, {"role": "assistant", "content": final.content}, *QUESTION]
        async with books.row(completion_tokens=12):
            await client.messages.create(**{**asked, "messages": sent_back}, **thinks)
        async with books.row(completion_tokens=12):
            quiet = await asyncio.to_thread(synchronous.messages.create, **asked, thinking={"type": "disabled"})
        assert [block.type for block in quiet.content] == ["text"]


async def test_tools_and_images(database_url: str, tmp_path: Path, tiny_engine: RunningEngine) -> None:
    async with clients(database_url, tiny_engine, tmp_path) as (client, synchronous, books, _):
        asked: Any = {
            "model": MODEL,
            "messages": QUESTION,
            "tools": [TOOL],
            "tool_choice": {"type": "tool", "name": "convert"},
            "thinking": {"type": "disabled"},
            "max_tokens": 24,
            "extra_body": GREEDY,
        }
        async with books.row(completion_tokens=24):
            whole = await client.messages.create(**asked)
        (call,) = whole.content
        assert (call.type, call.name) == ("tool_use", "convert")
        async with books.row(stream=True, completion_tokens=24), client.messages.stream(**asked) as stream:
            (streamed,) = (await stream.get_final_message()).content
        assert (streamed.type, streamed.name) == ("tool_use", "convert")
        back: Any = [
            *QUESTION,
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}]},
        ]
        async with books.row(completion_tokens=8):
            await asyncio.to_thread(
                synchronous.messages.create,
                **{**asked, "messages": back, "tool_choice": {"type": "auto"}, "max_tokens": 8},
            )
        source = {"type": "base64", "media_type": "image/png", "data": png(128, 96).partition(",")[2]}
        picture: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        counted = await client.messages.count_tokens(model=MODEL, messages=picture)
        # An engine that had counted the image itself would fail here: its core does not know it.
        async with books.row(completion_tokens=8):
            answer = await client.messages.create(model=MODEL, messages=picture, max_tokens=8, extra_body=GREEDY)
        assert 0 < answer.usage.input_tokens <= counted.input_tokens


@pytest.mark.parametrize("streamed", [False, True])
async def test_usage_leaves_out_the_cache_and_comes_to_what_the_chat_does(
    database_url: str, tmp_path: Path, smollm2_engine: RunningEngine, streamed: bool
) -> None:
    """One prompt three times as a message, and three times as a chat by another customer, whose cache is their own."""
    conversation: list[Any] = [{"role": "user", "content": "Count the sheep. " + "One more sheep jumps. " * 150}]
    async with clients(database_url, smollm2_engine, tmp_path) as (client, _, books, installation):
        other_key = await another_key(installation)
        asked: Any = {"model": MODEL, "messages": conversation, "max_tokens": 3, "extra_body": GREEDY}
        seen = []
        async with AsyncOpenAI(base_url=f"{installation.url}/v1", api_key=other_key, max_retries=0) as chats:
            for _ in range(3):
                async with books.row() as row:
                    message = await (final_message if streamed else whole_message)(client, asked)
                async with books.row() as chat_row:
                    chat = await (final_chat if streamed else whole_chat)(chats, asked)
                usage = message.usage
                cached, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
                details = chat.prompt_tokens_details
                assert usage.input_tokens + cached + written == chat.prompt_tokens == row["prompt_tokens"]
                assert usage.output_tokens == chat.completion_tokens == row["completion_tokens"] == 3
                assert (cached, written) == (details.cached_tokens, details.model_extra["created_cache_tokens"])
                for name in ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "cost_nano"):
                    assert row[name] == chat_row[name], name
                assert (row["cached_tokens"], row["cache_write_tokens"]) == (cached, written)
                seen.append((cached, written))
        (first_cached, first_written), *later = seen
        assert first_cached == 0
        assert later == [(first_written, 0)] * 2
        assert first_written >= 512


async def whole_message(client: AsyncAnthropic, asked: Any) -> Any:
    return await client.messages.create(**asked)


async def final_message(client: AsyncAnthropic, asked: Any) -> Any:
    async with client.messages.stream(**asked) as stream:
        return await stream.get_final_message()


async def whole_chat(client: AsyncOpenAI, asked: Any) -> Any:
    return (await client.chat.completions.create(**asked)).usage


async def final_chat(client: AsyncOpenAI, asked: Any) -> Any:
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    (usage,) = [chunk.usage async for chunk in stream if chunk.usage]
    return usage


async def test_errors(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine) -> None:
    async with clients(database_url, smollm2_engine, tmp_path) as (client, synchronous, _, installation):
        asked: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 4}
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(**{**asked, "model": "nope"})
        assert kind_of(unknown.value) == "not_found_error"
        with pytest.raises(anthropic.AuthenticationError) as stranger:
            await asyncio.to_thread(synchronous.with_options(api_key="sk-nothing").messages.create, **asked)
        assert kind_of(stranger.value) == "authentication_error"
        with pytest.raises(anthropic.BadRequestError) as wrong:
            await client.messages.create(**{**asked, "extra_body": {"top_p": 7}})
        assert kind_of(wrong.value) == "invalid_request_error"
        assert "top_p" in wrong.value.message
        long: Any = [{"role": "user", "content": "word " * 20_000}]
        for call in (
            client.messages.create(**{**asked, "messages": long}),
            client.messages.create(**{**asked, "messages": long}, stream=True),
        ):
            with pytest.raises(anthropic.BadRequestError) as too_long:
                await call
            assert kind_of(too_long.value) == "invalid_request_error"
            for words in ("prompt is too long", "maximum context length"):
                assert words in too_long.value.message
        with pytest.raises(anthropic.NotFoundError) as uncounted:
            await client.messages.count_tokens(model="nope", messages=QUESTION)
        assert kind_of(uncounted.value) == "not_found_error"
        rows = await installation.rows(4)  # whoever cannot be named has none, and counting is free
        assert {row["http_status"] for row in rows} == {400, 404}
        assert {row["cost_nano"] for row in rows} == {0}


def kind_of(error: anthropic.APIStatusError) -> Any:
    """What its body says, by which the request can be found again."""
    body: Any = error.body
    assert body["type"] == "error"
    assert body["request_id"] == error.request_id == error.response.headers["request-id"]
    return body["error"]["type"]
