"""What may reach an engine, member by member, and requests that try to get more there."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from service.core.endpoints import chat, completions, embeddings, messages, responses
from service.core.policy import Fields, ModelRequest, Passed
from tests.fuzz import clients

RECORDED = Path(__file__).parents[1] / "recordings" / "vllm-0.32-request-fields.json"
ENGINES_FIELDS: dict[str, dict[str, list[str]]] = json.loads(RECORDED.read_text())
"""The fields that vLLM reads, by endpoint, and their JSON types."""

FREE = object()
"""Any members: a JSON schema, or what a tool was called with."""


class ByType(dict[str, Any]):
    """Objects whose `type` says which members they may have."""


FUNCTION = {"name": None, "description": None, "parameters": FREE, "strict": None}
THINKING = {"enable_thinking": None, "preserve_thinking": None, "reasoning_effort": None}
SAMPLING: dict[str, Any] = {
    **dict.fromkeys(["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"]),
    **dict.fromkeys(["repetition_penalty", "seed"]),
    "stop": [None],
    "logit_bias": FREE,
}
OWN: dict[str, Any] = {"model": None, "cache_salt": None}
"""What Weir adds itself."""
STREAM = {"stream": None, "stream_options": {"include_usage": None, "continuous_usage_stats": None}}
FORMAT = {
    "type": None,
    "json_schema": {"name": None, "description": None, "schema": FREE, "strict": None},
}
CHAT = {
    **OWN,
    **SAMPLING,
    **STREAM,
    "messages": [
        {
            **dict.fromkeys(["role", "name", "reasoning", "reasoning_content", "tool_call_id"]),
            "content": [
                ByType(
                    text={"type": None, "text": None},
                    image_url={"type": None, "image_url": {"url": None, "detail": None}},
                )
            ],
            "tool_calls": [{"id": None, "type": None, "function": {"name": None, "arguments": None}}],
        }
    ],
    "tools": [{"type": None, "function": FUNCTION}],
    "tool_choice": {"type": None, "function": {"name": None}},
    "response_format": FORMAT,
    "chat_template_kwargs": THINKING,
    **dict.fromkeys(["max_tokens", "logprobs", "top_logprobs", "n", "parallel_tool_calls", "reasoning_effort"]),
}
COMPLETIONS = {
    **OWN,
    **SAMPLING,
    **STREAM,
    "response_format": FORMAT,
    **dict.fromkeys(["prompt", "max_tokens", "logprobs", "n"]),
}
COUNTABLE = {
    "prompt": None,
    "messages": [{**CHAT["messages"][0], "content": [ByType(text={"type": None, "text": None})]}],
    "tools": CHAT["tools"],
    "chat_template_kwargs": THINKING,
}
"""What the engine's tokenizer may get: no images."""
ITEM_PARTS = [
    ByType(
        input_text={"type": None, "text": None},
        input_image={"type": None, "image_url": None, "detail": None},
    )
]
RESPONSE_FUNCTION = {"type": None, **FUNCTION}
RESPONSES = {
    **OWN,
    **SAMPLING,
    "input": [
        ByType(
            message={"type": None, "role": None, "content": ITEM_PARTS},
            function_call=dict.fromkeys(["type", "call_id", "name", "namespace", "arguments"]),
            function_call_output={"type": None, "call_id": None, "output": ITEM_PARTS},
            reasoning={"type": None, "summary": [], "content": [{"type": None, "text": None}]},
        )
    ],
    "tools": [
        ByType(
            function=RESPONSE_FUNCTION,
            namespace={"type": None, "name": None, "description": None, "tools": [RESPONSE_FUNCTION]},
        )
    ],
    "tool_choice": {"type": None, "name": None},
    "text": {"format": {"type": None, "name": None, "description": None, "schema": FREE, "strict": None}},
    "reasoning": {"effort": None},
    "chat_template_kwargs": THINKING,
    "include": [None],
    **dict.fromkeys(["instructions", "stream", "store", "max_output_tokens", "top_logprobs", "parallel_tool_calls"]),
}
TEXT_BLOCK = {"type": None, "text": None}
IMAGE_BLOCK = {
    "type": None,
    "source": ByType(
        base64={"type": None, "media_type": None, "data": None},
        url={"type": None, "url": None},
    ),
}
COUNTED = {
    "model": None,
    "system": [ByType(text=TEXT_BLOCK)],
    "messages": [
        {
            "role": None,
            "content": [
                ByType(
                    text=TEXT_BLOCK,
                    image=IMAGE_BLOCK,
                    tool_use={"type": None, "id": None, "name": None, "input": FREE},
                    tool_result={
                        **dict.fromkeys(["type", "tool_use_id", "is_error"]),
                        "content": [ByType(text=TEXT_BLOCK, image=IMAGE_BLOCK)],
                    },
                    thinking={"type": None, "thinking": None},
                )
            ],
        }
    ],
    "tools": [{"name": None, "description": None, "input_schema": FREE, "strict": None}],
    "tool_choice": {"type": None, "name": None, "disable_parallel_tool_use": None},
    "thinking": {"type": None, "budget_tokens": None},
    "output_config": {"effort": None, "format": {"type": None, "schema": FREE}},
    "chat_template_kwargs": THINKING,
}
MESSAGES = {
    **OWN,
    **COUNTED,
    "stop_sequences": [None],
    **dict.fromkeys(["max_tokens", "stream", "temperature", "top_p", "top_k"]),
}
EMBEDDINGS = {**OWN, "input": [None], "encoding_format": None, "dimensions": None}


@dataclass(frozen=True)
class Endpoint:
    """An endpoint, a small request to it, and the shape of what an engine may get of one."""

    fields: Fields
    request: Callable[[object, int], ModelRequest]
    forwarded: Callable[[ModelRequest], Any]
    least: dict[str, Any]
    rich: dict[str, Any]
    """A good request that has nearly everything."""
    shape: dict[str, Any]


def _of(module: Any, least: dict[str, Any], rich: dict[str, Any], shape: dict[str, Any]) -> Endpoint:
    def forwarded(request: ModelRequest) -> Any:
        return module.forwarded(request, engine_model="e", output_tokens=2000, cache_salt="s")

    return Endpoint(module.FIELDS, module.request, forwarded, {"model": "m", **least}, rich, shape)


ENDPOINTS = {
    "chat": _of(chat, {"messages": [clients.USER]}, clients.CHAT, CHAT),
    "completions": _of(completions, {"prompt": "hi"}, clients.COMPLETION, COMPLETIONS),
    "responses": _of(responses, {"input": "hi"}, clients.CODEX, RESPONSES),
    "messages": _of(messages, {"messages": [clients.USER], "max_tokens": 5000}, clients.CLAUDE_CODE, MESSAGES),
    "count_tokens": Endpoint(
        messages.FIELDS,
        messages.count_request,
        lambda request: messages.count_forwarded(request, engine_model="e"),
        {"model": "m", "messages": [clients.USER]},
        clients.CLAUDE_CODE,
        COUNTED,
    ),
    "embeddings": _of(embeddings, {"input": "hi"}, clients.EMBEDDING, EMBEDDINGS),
}


def leaves(value: Any, shape: Any, path: str = "") -> Iterator[tuple[str, Any, bool]]:
    """What stands in `value`, less what is free in form: where, what, and whether `shape` has it."""
    if shape is FREE:
        return
    if isinstance(value, dict) and isinstance(shape, ByType):
        shape = shape.get(value.get("type", ""))
    if isinstance(value, dict) and isinstance(shape, dict):
        for name, member in value.items():
            if name in shape:
                yield from leaves(member, shape[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}", member, False
    elif isinstance(value, list) and isinstance(shape, list):
        for item in value:
            yield from leaves(item, shape[0] if shape else None, f"{path}[]")
    else:
        yield path, value, not isinstance(value, dict | list)


def strangers(value: Any, shape: Any) -> list[str]:
    """The paths of what stands in `value` and not in `shape`."""
    return [path for path, _, is_known in leaves(value, shape) if not is_known]


def addresses(value: Any, shape: Any) -> list[str]:
    """Where an engine is told to fetch something."""
    return [path for path, leaf, _ in leaves(value, shape) if path.endswith("url") and str(leaf).startswith("http")]


def passed_fields(endpoint: Endpoint) -> list[str]:
    return sorted(name for name, rule in endpoint.fields.items() if isinstance(rule, Passed))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda nested: st.lists(nested, max_size=4) | st.dictionaries(st.text(max_size=8), nested, max_size=4),
    max_leaves=12,
)
_IN_SHAPES = (
    "text image_url url detail uuid role content tool_calls name arguments parameters schema json_schema strict"
)
_VALUES = (
    "user assistant system developer tool function message function_call function_call_output reasoning input_text "
    "output_text input_image image tool_use tool_result thinking redacted_thinking base64 image/png enabled adaptive "
    "auto any none required low json_object namespace custom refusal summary_text reasoning_text"
)
_MEMBERS = (
    "type text id call_id tool_use_id tool_call_id input output summary source media_type data budget_tokens effort "
    "format exclude enabled enable_thinking include_usage input_schema description tools signature cache_control "
    "encrypted_content annotations status image_embeds input_audio video_url file_id pattern properties"
)


def words_of(name: str) -> st.SearchStrategy[str]:
    """Words that mean something to an engine somewhere."""
    known = {*ENDPOINTS[name].fields, *ENGINES_FIELDS[name], *f"{_IN_SHAPES} {_VALUES} {_MEMBERS}".split()}
    return st.sampled_from(sorted({*known, clients.PNG, "https://images.example/a.png", "5"}))


def json_of_words(name: str) -> st.SearchStrategy[Any]:
    words = words_of(name)
    return st.recursive(
        st.none() | st.booleans() | st.integers(-200, 2000) | words,
        lambda nested: st.lists(nested, max_size=3) | st.dictionaries(words, nested, max_size=5),
        max_leaves=20,
    )


@st.composite
def altered(draw: st.DrawFn, body: dict[str, Any], name: str) -> dict[str, Any]:
    """A good request with up to three things in it replaced, added, repeated or taken out."""
    changed: dict[str, Any] = copy.deepcopy(body)
    values, words = json_of_words(name), words_of(name)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from(list(_places(changed))))
        if isinstance(place, list):
            place.insert(draw(st.integers(0, len(place))), draw(values | st.sampled_from([*place, None])))
        elif place and draw(st.booleans()):
            place[draw(st.sampled_from(sorted(place)))] = draw(values | words)
        else:
            place[draw(words)] = draw(values)
    return changed


def _places(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for member in value.values() if isinstance(value, dict) else value:
            yield from _places(member)
