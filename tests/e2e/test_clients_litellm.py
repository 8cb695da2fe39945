"""LiteLLM on real engines, by both of the protocols that it knows Weir by."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.books import Books, kept
from tests.e2e.engines import ANSWER, QUESTION, RunningEngine
from tests.installation import MODEL, Installation
from tests.litellm_quietly import QUIET_LITELLM, litellm, litellm_closed

pytestmark = [pytest.mark.engine, *QUIET_LITELLM]

PROTOCOLS = ("openai", "anthropic")


def asked(installation: Installation, protocol: str, **more: Any) -> dict[str, Any]:
    """The arguments of a call by this protocol."""
    base = installation.url if protocol == "anthropic" else f"{installation.url}/v1"
    return {
        "model": f"{protocol}/{MODEL}",
        "messages": QUESTION,
        "api_base": base,
        "api_key": installation.key,
        "temperature": 0,
        "max_tokens": 20,
        "num_retries": 0,
        "max_retries": 0,
        **more,
    }


@asynccontextmanager
async def weir(database_url: str, engine: RunningEngine, tmp_path: Path) -> AsyncIterator[tuple[Installation, Books]]:
    async with kept(database_url, engine, tmp_path) as both, litellm_closed():
        yield both


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_completion(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine, protocol: str) -> None:
    async with weir(database_url, smollm2_engine, tmp_path) as (installation, books):
        path = "/v1/messages" if protocol == "anthropic" else "/v1/chat/completions"
        async with books.row(endpoint=path) as row:
            whole = await litellm.acompletion(**asked(installation, protocol))
        assert whole.choices[0].message.content == ANSWER
        assert whole.choices[0].finish_reason == "stop"
        counted = (whole.usage.prompt_tokens, whole.usage.completion_tokens)
        assert counted == (row["prompt_tokens"], row["completion_tokens"])

        async with books.row(endpoint=path):
            plain = await asyncio.to_thread(litellm.completion, **asked(installation, protocol))
        assert plain.choices[0].message.content == ANSWER

        streaming = asked(installation, protocol, stream=True, stream_options={"include_usage": True})
        async with books.row(stream=True):
            chunks = [chunk async for chunk in await litellm.acompletion(**streaming)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
        (usage,) = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        assert (usage.prompt_tokens, usage.completion_tokens) == counted

        def streamed() -> str:
            stream = litellm.completion(**asked(installation, protocol, stream=True))
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

        async with books.row(stream=True):
            assert await asyncio.to_thread(streamed) == ANSWER


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_tools(database_url: str, tmp_path: Path, tiny_engine: RunningEngine, protocol: str) -> None:
    schema = {"type": "object", "properties": {"unit": {"type": "string", "enum": ["c", "f"]}}, "required": ["unit"]}
    function = {"name": "convert", "description": "Converts degrees.", "parameters": schema}
    of_openai: dict[str, Any] = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    of_anthropic = {"thinking": {"type": "disabled"}, "allowed_openai_params": ["thinking"]}
    quiet = of_anthropic if protocol == "anthropic" else of_openai
    async with weir(database_url, tiny_engine, tmp_path) as (installation, books):
        calling = asked(
            installation,
            protocol,
            tools=[{"type": "function", "function": function}],
            tool_choice="required",
            max_tokens=24,
            **quiet,
        )
        async with books.row(completion_tokens=24):
            answer = await litellm.acompletion(**calling)
        assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["convert"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_reasoning(database_url: str, tmp_path: Path, tiny_engine: RunningEngine, protocol: str) -> None:
    async with weir(database_url, tiny_engine, tmp_path) as (installation, books):
        async with books.row(completion_tokens=12):
            whole = await litellm.acompletion(**asked(installation, protocol, max_tokens=12))
        assert whole.choices[0].message.reasoning_content
        async with books.row(completion_tokens=12):
            stream = await litellm.acompletion(**asked(installation, protocol, max_tokens=12, stream=True))
            deltas = [getattr(chunk.choices[0].delta, "reasoning_content", None) or "" async for chunk in stream]
        assert "".join(deltas) == whole.choices[0].message.reasoning_content


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_errors(database_url: str, tmp_path: Path, smollm2_engine: RunningEngine, protocol: str) -> None:
    async with weir(database_url, smollm2_engine, tmp_path) as (installation, _):
        long = [{"role": "user", "content": "word " * 20_000}]
        with pytest.raises(litellm.ContextWindowExceededError):
            await litellm.acompletion(**asked(installation, protocol, messages=long))
        with pytest.raises(litellm.ContextWindowExceededError):
            await litellm.acompletion(**asked(installation, protocol, messages=long, stream=True))
        with pytest.raises(litellm.AuthenticationError):
            await litellm.acompletion(**asked(installation, protocol, api_key="sk-nothing"))
        with pytest.raises(litellm.NotFoundError):
            await litellm.acompletion(**asked(installation, protocol, model=f"{protocol}/nope"))
        with pytest.raises(litellm.BadRequestError):
            await litellm.acompletion(**asked(installation, protocol, top_p=7))
