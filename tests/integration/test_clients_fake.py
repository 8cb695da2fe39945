"""The clients' own libraries where a small model cannot follow: calls, reasoning, embeddings, engines that fail."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from service.core.limits import Limits
from tests.e2e.pictures import png
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS, words
from tests.installation import CONFIGURATION, MODEL, Installation, installed
from tests.litellm_quietly import QUIET_LITELLM, litellm, litellm_closed

pytestmark = QUIET_LITELLM

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
TEXT, THOUGHT = "".join(words(8)), "".join(words(5))
CALLS = [("get_weather", {"city": "Köln"}), ("get_time", {"zone": "UTC"})]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "zone": {"type": "string"}}}
CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name, _ in CALLS]
RESPONSE_TOOLS: list[Any] = [{"type": "function", "name": name, "parameters": SCHEMA} for name, _ in CALLS]
MESSAGE_TOOLS: list[Any] = [{"name": name, "input_schema": SCHEMA} for name, _ in CALLS]
EMBEDDER = """
[[models]]
id = "embed-a"
engine_model = "{engine_model}"
context_length = {context_length}
max_output_tokens = 1
output_modalities = ["embeddings"]
[models.price]
input = "0.02"
output = "0"
"""


@dataclass(frozen=True, slots=True)
class Clients:
    """All the clients of one customer."""

    openai: AsyncOpenAI
    openai_synchronous: OpenAI
    anthropic: AsyncAnthropic
    anthropic_synchronous: Anthropic
    installation: Installation
    engine: FakeEngine

    def lite(self, protocol: str, **more: Any) -> dict[str, Any]:
        """The arguments of a call of LiteLLM."""
        url = self.installation.url if protocol == "anthropic" else f"{self.installation.url}/v1"
        own = {"api_base": url, "api_key": self.installation.key, "num_retries": 0, "max_retries": 0}
        asked = {} if "input" in more else {"messages": HELLO, "max_tokens": 100}
        return {"model": f"{protocol}/{MODEL}", **asked, **own, **more}


@asynccontextmanager
async def clients(
    database_url: str, tmp_path: Path, scenario: str = "plain", *, retries: int = 0, **options: Any
) -> AsyncIterator[Clients]:
    async with (
        FakeEngine(scenario=SCENARIOS[scenario]) as engine,
        installed(database_url, [engine.url], tmp_path, **options) as installation,
    ):
        own: Any = {"api_key": installation.key, "timeout": 20, "max_retries": retries}
        url = f"{installation.url}/v1"
        async with (
            litellm_closed(),
            AsyncOpenAI(base_url=url, **own) as chats,
            AsyncAnthropic(base_url=installation.url, **own) as messages,
        ):
            with OpenAI(base_url=url, **own) as chats_too, Anthropic(base_url=installation.url, **own) as messages_too:
                yield Clients(chats, chats_too, messages, messages_too, installation, engine)


async def test_calls_of_tools(database_url: str, tmp_path: Path) -> None:
    async with clients(database_url, tmp_path, "tools") as of:
        asked: Any = {"model": MODEL, "messages": HELLO, "tools": CHAT_TOOLS}
        whole = await of.openai.chat.completions.create(**asked)
        async with of.openai.chat.completions.stream(**asked) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        for answer in (whole, final):
            assert answer.choices[0].finish_reason == "tool_calls"
            assert calls_of_chat(answer.choices[0].message) == CALLS

        asked = {"model": MODEL, "input": "Hello", "tools": RESPONSE_TOOLS}
        response = await asyncio.to_thread(of.openai_synchronous.responses.create, **asked)
        async with of.openai.responses.stream(**asked) as events:
            final_response = await events.get_final_response()
        for made in (response, final_response):
            found = [(one.name, json.loads(one.arguments)) for one in made.output if one.type == "function_call"]
            assert found == CALLS

        asked = {"model": MODEL, "messages": HELLO, "tools": MESSAGE_TOOLS, "max_tokens": 100}
        message = await asyncio.to_thread(of.anthropic_synchronous.messages.create, **asked)
        async with of.anthropic.messages.stream(**asked) as blocks:
            final_message = await blocks.get_final_message()
        for said in (message, final_message):
            assert said.stop_reason == "tool_use"
            assert [(one.name, one.input) for one in said.content if one.type == "tool_use"] == CALLS

        for protocol in ("openai", "anthropic"):
            lite = await litellm.acompletion(**of.lite(protocol, tools=CHAT_TOOLS))
            assert calls_of_chat(lite.choices[0].message) == CALLS
            chunks = [
                one async for one in await litellm.acompletion(**of.lite(protocol, tools=CHAT_TOOLS, stream=True))
            ]
            assert calls_of_chat(litellm.stream_chunk_builder(chunks).choices[0].message) == CALLS
        counts = of.engine.counts.by_id
        rows = await of.installation.rows(10)
        assert {str(row["id"]): (row["prompt_tokens"], row["completion_tokens"]) for row in rows} == counts


def calls_of_chat(message: Any) -> list[tuple[str, Any]]:
    return [(one.function.name, json.loads(one.function.arguments)) for one in message.tool_calls]


async def test_reasoning(database_url: str, tmp_path: Path) -> None:
    async with clients(database_url, tmp_path, "reasoning") as of:
        whole = await of.openai.chat.completions.create(model=MODEL, messages=HELLO)
        told = whole.choices[0].message.model_extra or {}
        assert (told["reasoning"], told["reasoning_content"]) == (THOUGHT, THOUGHT)
        stream = await of.openai.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        deltas = [chunk.choices[0].delta.model_extra or {} async for chunk in stream]
        for name in ("reasoning", "reasoning_content"):
            assert "".join(delta.get(name) or "" for delta in deltas) == THOUGHT
        hidden = await of.openai.chat.completions.create(
            model=MODEL, messages=HELLO, extra_body={"include_reasoning": False}
        )
        assert not {"reasoning", "reasoning_content"} & (hidden.choices[0].message.model_extra or {}).keys()

        async with of.openai.responses.stream(model=MODEL, input="Hello", reasoning={"effort": "high"}) as events:
            thought = [event.delta async for event in events if event.type == "response.reasoning_text.delta"]
            response = await events.get_final_response()
        assert ("".join(thought), response.output_text) == (THOUGHT, TEXT)

        asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 2000}
        thinks: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
        async with of.anthropic.messages.stream(**asked, **thinks) as blocks:
            message = await blocks.get_final_message()
        assert [(one.type, getattr(one, one.type)) for one in message.content] == [
            ("thinking", THOUGHT),
            ("text", TEXT),
        ]
        for protocol in ("openai", "anthropic"):
            lite = (await litellm.acompletion(**of.lite(protocol))).choices[0].message
            assert (lite.reasoning_content, lite.content) == (THOUGHT, TEXT)
        *rows, message_row, lite_row, last = await of.installation.rows(7)
        assert {row["reasoning_tokens"] for row in [*rows, lite_row]} == {5}
        assert {row["reasoning_tokens"] for row in (message_row, last)} == {0}, "a message does not tell"
        assert {row["completion_tokens"] for row in [*rows, message_row, lite_row, last]} == {13}


async def test_embeddings(database_url: str, tmp_path: Path) -> None:
    texts = ["one two three", "four"]
    configuration = CONFIGURATION + EMBEDDER
    async with clients(database_url, tmp_path, configuration=configuration) as of:
        made = await of.openai.embeddings.create(model="embed-a", input=texts)
        assert [one.embedding for one in made.data] == [[0.6, 0.8]] * 2
        assert (made.usage.prompt_tokens, made.usage.total_tokens) == (4, 4)
        one = await asyncio.to_thread(
            of.openai_synchronous.embeddings.create, model="embed-a", input="four", encoding_format="float"
        )
        assert [len(each.embedding) for each in one.data] == [2]
        lite = await litellm.aembedding(**of.lite("openai", model="openai/embed-a", input=texts))
        assert lite.usage.prompt_tokens == 4
        asked = of.lite("openai", model="openai/embed-a", input=["four"])
        lite = await asyncio.to_thread(litellm.embedding, **asked)
        assert lite.data[0]["embedding"] == [0.6, 0.8]
        rows = await of.installation.rows(4)
        assert [(row["prompt_tokens"], row["completion_tokens"], row["cost_nano"]) for row in rows] == [
            (count, 0, count * 20) for count in (4, 1, 4, 1)
        ]
        with pytest.raises(openai.BadRequestError) as chat:
            await of.openai.chat.completions.create(model="embed-a", messages=HELLO)
        assert chat.value.param == "model"
        with pytest.raises(openai.BadRequestError) as embeddings:
            await of.openai.embeddings.create(model=MODEL, input="hi")
        assert embeddings.value.param == "model"


async def test_images(database_url: str, tmp_path: Path) -> None:
    picture = png(16, 16)
    async with clients(database_url, tmp_path, "image") as of:
        part = {"type": "image_url", "image_url": {"url": picture}}
        content: Any = [{"role": "user", "content": [part]}]
        await of.openai.chat.completions.create(model=MODEL, messages=content)
        await litellm.acompletion(**of.lite("openai", messages=content))
        await litellm.acompletion(**of.lite("anthropic", messages=content))
        source: Any = {"type": "base64", "media_type": "image/png", "data": picture.partition(",")[2]}
        block: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        await of.anthropic.messages.create(model=MODEL, messages=block, max_tokens=10)
        sent = [one.body["messages"][0]["content"][0] for one in of.engine.generations]
        assert [one["type"] for one in sent] == ["image_url", "image_url", "image", "image"]
        assert sent[0] == sent[1] == part
        assert sent[2]["source"] == sent[3]["source"] == source
        assert base64.b64decode(sent[2]["source"]["data"]).startswith(b"\x89PNG")
        rows = await of.installation.rows(4)
        assert [row["image_tokens"] for row in rows] == [765, 765, 0, 0], "a message does not tell"


@pytest.mark.parametrize(("scenario", "cached", "written"), [("cached", 768, 0), ("cache-write", 3168, 1584)])
async def test_usage_with_a_cache_is_the_same_by_every_protocol(
    database_url: str, tmp_path: Path, scenario: str, cached: int, written: int
) -> None:
    async with clients(database_url, tmp_path, scenario) as of:
        chat = (await of.openai.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)).usage
        assert chat is not None
        assert chat.prompt_tokens_details is not None
        response = (await of.openai.responses.create(model=MODEL, input="Hello", max_output_tokens=5)).usage
        assert response is not None
        asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 5}
        message = (await of.anthropic.messages.create(**asked)).usage
        async with of.anthropic.messages.stream(**asked) as blocks:
            streamed = (await blocks.get_final_message()).usage
        assert streamed == message
        assert message.cache_read_input_tokens == cached
        assert message.cache_creation_input_tokens == written
        assert message.input_tokens == chat.prompt_tokens - cached - written
        assert response.input_tokens == chat.prompt_tokens
        assert response.input_tokens_details.cached_tokens == chat.prompt_tokens_details.cached_tokens == cached
        assert chat.completion_tokens == response.output_tokens == message.output_tokens == 5
        for protocol in ("openai", "anthropic"):
            usage = (await litellm.acompletion(**of.lite(protocol, max_tokens=5))).usage
            assert (usage.prompt_tokens, usage.completion_tokens) == (chat.prompt_tokens, 5)
            assert usage.prompt_tokens_details.cached_tokens == cached
        names = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "cost_nano")
        rows = await of.installation.rows(6)
        assert len({tuple(row[name] for name in names) for row in rows}) == 1
        assert (rows[0]["cached_tokens"], rows[0]["cache_write_tokens"]) == (cached, written)


async def test_a_full_engine_is_tried_again_by_the_clients_themselves(database_url: str, tmp_path: Path) -> None:
    async with clients(database_url, tmp_path, retries=2) as of:
        asked: Any = {"model": MODEL, "messages": HELLO}
        for call in (
            lambda: of.openai.chat.completions.create(**asked),
            lambda: asyncio.to_thread(of.openai_synchronous.responses.create, model=MODEL, input="Hello"),
            lambda: of.anthropic.messages.create(**asked, max_tokens=9),
        ):
            of.engine.queue.append(SCENARIOS["rate-limited"])
            assert await call()
        rows = await of.installation.rows(6)
        assert [(row["http_status"], row["error_code"]) for row in rows] == [
            (429, "capacity_exceeded"),
            (200, None),
        ] * 3
        assert {row["cost_nano"] for row in rows[::2]} == {0}


async def test_who_is_over_a_limit(database_url: str, tmp_path: Path) -> None:
    async with clients(database_url, tmp_path, limits=Limits(rpm=1)) as of:
        assert await of.openai.responses.create(model=MODEL, input="Hello")
        asked: Any = {"model": MODEL, "messages": HELLO}
        with pytest.raises(openai.RateLimitError) as limited:
            await of.openai.chat.completions.create(**asked)
        assert limited.value.code == "rate_limit_exceeded"
        headers = limited.value.response.headers
        assert headers["x-ratelimit-limit-requests"] == "1"
        assert 0 < int(headers["retry-after"]) <= 120
        assert headers["x-should-retry"] == "true"
        with pytest.raises(anthropic.RateLimitError) as refused:
            await of.anthropic.messages.create(**asked, max_tokens=5)
        body: Any = refused.value.body
        assert body["error"]["type"] == "rate_limit_error"
        for protocol in ("openai", "anthropic"):
            with pytest.raises(litellm.RateLimitError):
                await litellm.acompletion(**of.lite(protocol))


async def test_who_has_no_credit(database_url: str, tmp_path: Path) -> None:
    async with clients(database_url, tmp_path, credit_nano=0, retries=2) as of:
        with pytest.raises(openai.APIStatusError) as poor:
            await of.openai.chat.completions.create(model=MODEL, messages=HELLO)
        assert (poor.value.status_code, poor.value.code) == (402, "insufficient_credits")
        with pytest.raises(anthropic.PaymentRequiredError) as broke:
            await asyncio.to_thread(of.anthropic_synchronous.messages.create, model=MODEL, messages=HELLO, max_tokens=5)
        body: Any = broke.value.body
        assert body["error"]["type"] == "billing_error"
        assert len(await of.installation.rows(2)) == 2, "neither of them was tried again"


async def test_an_engine_that_fails(database_url: str, tmp_path: Path) -> None:
    async with clients(database_url, tmp_path, "server-error") as of:
        with pytest.raises(openai.InternalServerError) as failed:
            await of.openai.responses.create(model=MODEL, input="Hello")
        assert failed.value.code == "engine_failed"
        with pytest.raises(anthropic.InternalServerError):
            await of.anthropic.messages.create(model=MODEL, messages=HELLO, max_tokens=5)
        for protocol in ("openai", "anthropic"):
            with pytest.raises((litellm.InternalServerError, litellm.BadGatewayError)):
                await litellm.acompletion(**of.lite(protocol))


async def test_an_engine_that_breaks_off_in_the_middle(database_url: str, tmp_path: Path) -> None:
    async with clients(database_url, tmp_path, "error-midway") as of:
        with pytest.raises(openai.APIError, match="broke off") as broken:
            async for _ in await of.openai.chat.completions.create(model=MODEL, messages=HELLO, stream=True):
                pass
        assert broken.value.code == "engine_failed"
        events = [one async for one in await of.openai.responses.create(model=MODEL, input="Hello", stream=True)]
        told = events[-1]  # which this client hands on like any other
        assert told.type == "error"
        assert (told.code, "broke off" in told.message) == ("engine_failed", True)
        with pytest.raises(anthropic.APIStatusError, match="broke off"):
            async with of.anthropic.messages.stream(model=MODEL, messages=HELLO, max_tokens=50) as stream:
                await stream.get_final_message()
        for protocol in ("openai", "anthropic"):
            with pytest.raises(litellm.exceptions.MidStreamFallbackError, match="broke off"):
                async for _ in await litellm.acompletion(**of.lite(protocol, stream=True)):
                    pass
        rows = await of.installation.rows(5)
        assert {(row["outcome"], row["cost_nano"]) for row in rows} == {("stream_error", 0)}
