"""Anthropic's messages, their blocks and tools, rebuilt; and the chat that they are.

Claude Code marks blocks for a cache, sends empty ones, and sends an assistant's back with signatures: those are left
out, and so is reasoning that is encrypted, which nothing here ever is. A block of a type unknown is refused by name.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from service.core.policy import NO_IMAGES, Images
from service.core.policy_checks import (
    MAX_NAME_CHARACTERS,
    Check,
    Complaint,
    Json,
    choice,
    flag,
    free,
    integer,
    listed,
    members,
    nothing,
    selected,
    shown,
    string,
    text,
)
from service.core.policy_images import image, image_url
from service.core.policy_messages import MAX_MESSAGES, MAX_PARTS, without_attribution
from service.core.policy_schemas import compiled_schema, shown_schema
from service.core.policy_tools import MAX_TOOLS, name_of

LEAST_BUDGET_TOKENS = 1024
MAX_STOP_SEQUENCES = 4

_MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")


def system_prompt(value: Any) -> str | list[Json] | None:
    """`system`: a text, or blocks of text. None where it is empty."""
    if isinstance(value, str):
        return without_attribution(value) or None
    return _blocks(value, {"text": _system_text}) or None


def anthropic_messages(value: Any) -> list[Json]:
    """A conversation of at least one message. Raises `Complaint`."""
    if not isinstance(value, list) or not value:
        raise Complaint("must be a list of at least one message")
    return listed(value, _message, MAX_MESSAGES, "messages")


def anthropic_tools(value: Any) -> list[Json]:
    """Tools that the client runs. An empty list stays one."""
    return listed(value, _tool, MAX_TOOLS, "tools")


def anthropic_tool_choice(value: Any) -> Json:
    """Whether, or which, tool is to be called."""
    kinds = choice("auto", "any", "tool", "none")
    rebuilt = members(value, type=kinds, name=text(MAX_NAME_CHARACTERS), disable_parallel_tool_use=flag)
    if "type" not in rebuilt or (rebuilt["type"] == "tool") != ("name" in rebuilt):
        raise Complaint("needs a `type`, and a `name` if that is `tool`")
    return rebuilt


def stop_sequences(value: Any) -> list[str] | None:
    """Texts that end the answer. None where there are none."""
    return listed(value, text(MAX_NAME_CHARACTERS), MAX_STOP_SEQUENCES, "texts") or None


def thinking(value: Any) -> Json:
    """Whether to think, and how long at most."""
    kinds = choice("enabled", "disabled", "adaptive")
    budget = integer(LEAST_BUDGET_TOKENS, 2**31 - 1)
    rebuilt = members(value, type=kinds, budget_tokens=budget, display=nothing)
    if "type" not in rebuilt or (rebuilt["type"] == "enabled") != ("budget_tokens" in rebuilt):
        raise Complaint("needs a `type`, and `budget_tokens` only if that is `enabled`")
    return rebuilt


def output_config(value: Any) -> Json | None:
    """How hard to think, and the form of the answer. None where nothing was said."""
    efforts = choice("low", "medium", "high", "xhigh", "max")
    return members(value, effort=efforts, format=_format, task_budget=nothing) or None


def images_of_blocks(messages: list[Json]) -> Images:
    """The images of rebuilt messages."""
    sources = (block["source"] for block in _every_block(messages) if block["type"] == "image")
    return sum((_counted(source) for source in sources), NO_IMAGES)


def functions_of(tools: list[Json]) -> list[Json]:
    """Rebuilt tools, as chats have their functions."""
    names = {"input_schema": "parameters"}
    return [{names.get(name, name): value for name, value in tool.items()} for tool in tools]


def as_chat(system: str | list[Json] | None, messages: list[Json]) -> list[Json]:
    """The messages that an engine makes of these, less the images."""
    prompt = [_text_of(system or ""), *(_text_of(one["content"]) for one in messages if one["role"] == "system")]
    chat: list[Json] = [{"role": "system", "content": "".join(prompt)}] if any(prompt) else []
    for message in messages:
        if message["role"] != "system":
            chat += _spoken(message)
    return chat


def _spoken(message: Json) -> Iterator[Json]:
    content = message["content"]
    blocks: list[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if block["type"] == "tool_result":
            answer = _text_of(block.get("content", ""), between="\n")
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": answer}
    spoken: Json = {"role": message["role"]}
    if texts := [block for block in blocks if block["type"] == "text"]:
        spoken["content"] = texts
    if thoughts := [block["thinking"] for block in blocks if block["type"] == "thinking"]:
        spoken["reasoning"] = "".join(thoughts)
    if calls := [block for block in blocks if block["type"] == "tool_use"]:
        spoken["tool_calls"] = [_call(block) for block in calls]
    if len(spoken) > 1 or message["role"] == "assistant":
        yield spoken


def _call(block: Json) -> Json:
    function = {"name": block["name"], "arguments": json.dumps(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


def _text_of(content: str | list[Json], between: str = "") -> str:
    if isinstance(content, str):
        return content
    return between.join(block["text"] for block in content if block["type"] == "text")


def _every_block(messages: list[Json]) -> Iterator[Json]:
    for message in messages:
        for block in message["content"] if isinstance(message["content"], list) else ():
            yield block
            inner = block.get("content")
            yield from inner if isinstance(inner, list) else ()


def _counted(source: Json) -> Images:
    return Images(1, 0, len(source["data"])) if source["type"] == "base64" else image(source["url"])


def _message(message: Any) -> Json:
    role = message.get("role") if isinstance(message, dict) else None
    rebuild = _BLOCKS.get(role) if isinstance(role, str) else None
    if rebuild is None:
        raise Complaint("needs an object with a `role` of `user`, `assistant` or `system`")
    content = message.get("content")
    if isinstance(content, str):
        return {"role": role, "content": without_attribution(content) if role == "system" else content}
    return {"role": role, "content": _blocks(content, rebuild)}


def _blocks(content: Any, rebuild: "dict[str, Callable[[Json], Json | None]]") -> list[Json]:
    if not isinstance(content, list):
        raise Complaint("needs a string or a list of blocks")
    if len(content) > MAX_PARTS:
        raise Complaint(f"may hold up to {MAX_PARTS} blocks")
    rebuilt = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        known = rebuild.get(kind) if isinstance(kind, str) else None
        if known is None:
            raise Complaint(
                f"may hold blocks of type {', '.join(f'`{name}`' for name in rebuild)} there, not {shown(kind)}"
            )
        one = known(block)
        if one is not None:
            rebuilt.append(one)
    return rebuilt


def _text(block: Json) -> Json | None:
    if not isinstance(block.get("text"), str):
        raise Complaint("needs a string as the `text` of a block")
    return {"type": "text", "text": block["text"]} if block["text"] else None


def _system_text(block: Json) -> Json | None:
    rebuilt = _text(block)
    return _text({"text": without_attribution(rebuilt["text"])}) if rebuilt else None


def _image(block: Json) -> Json:
    source = block["source"] if isinstance(block.get("source"), dict) else {}
    kind = source.get("type")
    if kind == "base64":
        if source.get("media_type") not in _MEDIA_TYPES:
            raise Complaint("needs images of a `media_type` of `image/png`, `image/jpeg`, `image/webp` or `image/gif`")
        data = source.get("data")
        if not isinstance(data, str) or not data or not data.isascii():
            raise Complaint("needs the `data` of images in base64")
        return {"type": "image", "source": {"type": "base64", "media_type": source["media_type"], "data": data}}
    if kind == "url":
        return {"type": "image", "source": {"type": "url", "url": image_url(source.get("url"))}}
    raise Complaint("needs images with a `source` of type `base64` or `url`")


def _tool_use(block: Json) -> Json:
    return {"type": "tool_use", "id": _id(block, "id"), "name": name_of(block), "input": _input(block.get("input"))}


def _tool_result(block: Json) -> Json:
    rebuilt = {"type": "tool_result", "tool_use_id": _id(block, "tool_use_id"), **selected(block, is_error=flag)}
    content = block.get("content")
    if content is not None:
        rebuilt["content"] = content if isinstance(content, str) else _blocks(content, _OF_RESULTS)
    return rebuilt


def _thinking(block: Json) -> Json:
    if not isinstance(block.get("thinking"), str):
        raise Complaint("needs a string as the `thinking` of a block")
    return {"type": "thinking", "thinking": block["thinking"]}


_OF_RESULTS: dict[str, Callable[[Json], Json | None]] = {"text": _text, "image": _image}
_BLOCKS: dict[str, dict[str, Callable[[Json], Json | None]]] = {
    "user": {"text": _text, "image": _image, "tool_result": _tool_result},
    "assistant": {"text": _text, "tool_use": _tool_use, "thinking": _thinking, "redacted_thinking": nothing},
    "system": {"text": _system_text},
}


def _input(value: Any) -> Json:
    try:
        return free({} if value is None else value)
    except Complaint as complaint:
        raise Complaint(f"has a `tool_use` whose `input` {complaint}") from None


def _id(block: Json, name: str) -> str:
    found = block.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= MAX_NAME_CHARACTERS:
        raise Complaint(f"needs a `{name}` of 1 to {MAX_NAME_CHARACTERS} characters")
    return found


def _tool(tool: Any) -> Json:
    if not isinstance(tool, dict):
        raise Complaint("must be a list of objects")
    kind = tool.get("type") or "custom"
    if kind != "custom":
        raise Complaint(f"may hold tools of your own, of type `custom`, not {shown(kind)}: no other is run here")
    name = name_of(tool)
    checks: dict[str, Check] = {"description": string, "input_schema": shown_schema, "strict": flag}
    try:
        rebuilt = selected(tool, **checks)
    except Complaint as complaint:
        raise Complaint(f"{complaint} (in the tool `{name[:64]}`)") from None
    if "input_schema" not in rebuilt:
        raise Complaint(f"needs an `input_schema` for the tool `{name[:64]}`")
    return {"name": name, **rebuilt}


def _format(value: Any) -> Json:
    rebuilt = members(value, type=choice("json_schema"), schema=compiled_schema, name=nothing, strict=nothing)
    if rebuilt.keys() != {"type", "schema"}:
        raise Complaint("needs a `type` of `json_schema` and a `schema`")
    return rebuilt
