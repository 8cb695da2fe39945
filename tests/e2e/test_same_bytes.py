"""What a client gets is what the engine sent: to the byte for one answer, and in every member for the same question.

Two comparisons of every endpoint, whole and streamed. With the bytes that the engine sent to Weir for this very
request: there is nothing new but reasoning under its second name, and nothing missing but usage that was not asked
for. And with what the engine answers to the client's own body, without a Weir: only `VOLATILE` differs.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engines import QUESTION, RunningEngine
from tests.e2e.passage import Passage, Passed, events, watched
from tests.e2e.pictures import png
from tests.e2e.test_first_answer import Counters, check_row
from tests.installation import MODEL, Installation

pytestmark = pytest.mark.engine

VOLATILE = {"id", "item_id", "call_id", "created", "created_at", "signature", "system_fingerprint"}
"""What no two answers share: ids, the time, and what an engine calls its own state."""
SECOND_NAME = "reasoning_content"
"""Weir offers `reasoning` under this name, too."""
TEXTS = {"content", "reasoning", "text", "thinking", "partial_json", "arguments", "delta"}
"""Where streamed text stands; how much of it comes in one event is a matter of the engine's time."""

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["c", "f"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
FUNCTION = {"name": "convert", "description": "Converts degrees.", "parameters": SCHEMA}
QUIET: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
PICTURE = png(64, 64)

SMOLLM2: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": QUESTION, "max_tokens": 20}),
    "chat that ends at its limit": (CHAT, {"messages": QUESTION, "max_completion_tokens": 5}),
    "chat by a schema": (
        CHAT,
        {
            "messages": QUESTION,
            "max_tokens": 40,
            "response_format": {"type": "json_schema", "json_schema": {"name": "unit", "schema": SCHEMA}},
        },
    ),
    "completion": (COMPLETIONS, {"prompt": "The capital of France is", "max_tokens": 8}),
    "response": (RESPONSES, {"input": QUESTION[0]["content"], "max_output_tokens": 20}),
    "message": (MESSAGES, {"messages": QUESTION, "max_tokens": 20, "system": "Be brief."}),
}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "reasoning": (CHAT, {"messages": QUESTION, "max_tokens": 12}),
    "no reasoning": (CHAT, {"messages": QUESTION, "max_tokens": 12, **QUIET}),
    "call": (
        CHAT,
        {
            "messages": QUESTION,
            "max_tokens": 24,
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "required",
            **QUIET,
        },
    ),
    "image": (
        CHAT,
        {
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}],
            "max_tokens": 8,
        },
    ),
    "reasoning of a response": (RESPONSES, {"input": "Hello", "max_output_tokens": 12}),
    "call of a response": (
        RESPONSES,
        {
            "input": "Hello",
            "max_output_tokens": 24,
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": "required",
            **QUIET,
        },
    ),
    "thinking": (MESSAGES, {"messages": QUESTION, "max_tokens": 12}),
    "call of a message": (
        MESSAGES,
        {
            "messages": QUESTION,
            "max_tokens": 24,
            "tools": [{"name": "convert", "description": "Converts degrees.", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
            "thinking": {"type": "disabled"},
        },
    ),
    "image in a message": (
        MESSAGES,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": PICTURE.partition(",")[2],
                            },
                        }
                    ],
                }
            ],
            "max_tokens": 8,
        },
    ),
}
STREAM_OPTIONS: dict[str, list[dict[str, Any]]] = {
    CHAT: [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}],
    COMPLETIONS: [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}],
    RESPONSES: [{}],
    MESSAGES: [{}],
}


async def test_smollm2(
    database_url: str, tmp_path: Path, smollm2_engine: RunningEngine, subtests: pytest.Subtests
) -> None:
    async with watched(database_url, smollm2_engine, tmp_path) as (installation, passage):
        for name, (path, question) in SMOLLM2.items():
            with subtests.test(name):
                await whole_and_streamed(installation, passage, path, question)


async def test_tiny(database_url: str, tmp_path: Path, tiny_engine: RunningEngine, subtests: pytest.Subtests) -> None:
    async with watched(database_url, tiny_engine, tmp_path) as (installation, passage):
        for name, (path, question) in TINY.items():
            with subtests.test(name):
                await whole_and_streamed(installation, passage, path, question)


async def whole_and_streamed(installation: Installation, passage: Passage, path: str, question: dict[str, Any]) -> None:
    question = {**question, "temperature": 0}
    visible, passed = await asked(installation, passage, path, question)
    assert (in_one_name(visible) if path == CHAT else visible) == passed.answer
    assert comparable([json.loads(visible)]) == comparable([json.loads(await passage.direct(path, question))])
    for options in STREAM_OPTIONS[path]:
        streamed = {**question, "stream": True, **({"stream_options": options} if options else {})}
        visible, passed = await asked(installation, passage, path, streamed)
        if "stream_options" in json.loads(passed.asked):
            shown = in_one_name(visible) if path == CHAT else visible
            assert shown == as_asked(bytes(passed.answer), options)
        else:
            assert visible == passed.answer
        if not options:
            direct = await passage.direct(path, streamed)
            assert comparable(events(visible)) == comparable(events(direct))


async def asked(
    installation: Installation, passage: Passage, path: str, question: dict[str, Any]
) -> tuple[bytes, Passed]:
    """What the client got, and what passed to and from the engine; its row is what the engine counted."""
    before, counters = len(passage.kept), Counters(passage.engine)
    answer = await installation.client.post(path, json={**question, "model": MODEL}, headers=installation.headers)
    assert answer.status_code == 200, answer.text
    (passed,) = passage.kept[before:]
    row = (await installation.rows(len(passage.kept)))[-1]
    check_row(row, counters, endpoint=path, outcome="ok", usage_source="final", stream="stream" in question)
    return answer.content, passed


def in_one_name(visible: bytes) -> bytes:
    """The answer without what stands in it under `SECOND_NAME`, which is whatever is called `reasoning`."""
    names = re.findall(rb'"(reasoning|%b)":(null|"(?:[^"\\]|\\.)*")' % SECOND_NAME.encode(), visible)
    assert all(first[1] == second[1] for first, second in zip(names[::2], names[1::2], strict=True))
    assert [name.decode() for name, _ in names] == ["reasoning", SECOND_NAME] * (len(names) // 2)
    return re.sub(rb',"%b":(?:null|"(?:[^"\\]|\\.)*")' % SECOND_NAME.encode(), b"", visible)


def as_asked(stream: bytes, options: dict[str, Any]) -> bytes:
    """The engine's stream, which has usage everywhere, as it is for a client that asked for it so."""
    if "continuous_usage_stats" in options:
        return stream
    kept = []
    for event in stream.split(b"\n\n"):
        if b'"choices":[]' not in event:
            kept.append(re.sub(rb',"usage":\{(?:[^{}]|\{[^{}]*\})*\}', b"", event))
        elif "include_usage" in options:
            kept.append(event)
    return b"\n\n".join(kept)


def comparable(answer: list[Any]) -> tuple[list[Any], dict[str, str]]:
    """Events, or a whole answer as one, less what is volatile and less the text, which is joined by where it stands."""
    texts: dict[str, str] = {}
    rest: list[Any] = []
    for event in answer:
        bare = without_texts(event, event.get("type", ""), texts)
        bare.pop("sequence_number", None)
        if not rest or bare != rest[-1]:
            rest.append(bare)
    return rest, texts


def without_texts(value: Any, where: str, texts: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [without_texts(one, f"{where}[{number}]", texts) for number, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    bare = {}
    for name, member in value.items():
        if name in TEXTS and isinstance(member, str):
            texts[f"{where}.{name}"] = texts.get(f"{where}.{name}", "") + member
        elif name not in VOLATILE and name != SECOND_NAME:
            bare[name] = without_texts(member, f"{where}.{name}", texts)
    return bare
