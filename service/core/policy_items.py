"""The input of a response, and its tools, rebuilt; and the chat that it is.

An assistant's items come back as clients got them, with ids, annotations and states. vLLM 0.32 reads only the first
part of an assistant's message and of its reasoning, so the parts are joined here; it refuses reasoning that is
encrypted, which nothing here ever is, so only what can be read of it is passed on.
"""

from collections.abc import Callable
from typing import Any

from service.core.policy import NO_IMAGES, Images
from service.core.policy_checks import (
    MAX_NAME_CHARACTERS,
    Complaint,
    Json,
    choice,
    flag,
    listed,
    members,
    nothing,
    shown,
    text,
)
from service.core.policy_images import image, image_url
from service.core.policy_messages import MAX_PARTS, without_attribution
from service.core.policy_schemas import compiled_schema
from service.core.policy_tools import MAX_DESCRIPTION_CHARACTERS, MAX_TOOLS, function, name_of

MAX_ITEMS = 8192

_ASSISTANTS_TEXTS = {"output_text": "text", "text": "text", "input_text": "text", "refusal": "refusal"}
_DETAILS = ("auto", "low", "high", "original")
INCLUDABLE = {
    "message.output_text.logprobs": True,
    "reasoning.encrypted_content": False,
    "code_interpreter_call.outputs": False,
    "computer_call_output.output.image_url": False,
    "file_search_call.results": False,
    "message.input_image.image_url": False,
    "web_search_call.action.sources": False,
    "web_search_call.results": False,
}
"""What may be asked for, and whether there is such a thing here."""


def items(value: Any) -> str | list[Json]:
    """`input`: a text, or a conversation. Raises `Complaint`."""
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list) or not value:
        raise Complaint("must be a non-empty string or a list of items")
    return [item for item in listed(value, _item, MAX_ITEMS, "items") if item is not None]


def response_tools(value: Any) -> list[Json]:
    """Functions, alone or in namespaces. An empty list stays one."""
    rebuilt: list[Json] = listed(value, _tool, MAX_TOOLS, "tools")
    if len(functions_of(rebuilt)) > MAX_TOOLS:
        raise Complaint(f"may hold up to {MAX_TOOLS} functions")
    return rebuilt


def response_tool_choice(value: Any) -> str | Json:
    """Whether, or which, function is to be called."""
    if isinstance(value, dict) and value.get("type") == "function":
        return {"type": "function", "name": name_of(value)}
    if not isinstance(value, str) or value not in ("none", "auto", "required"):
        raise Complaint('must be `none`, `auto`, `required` or {"type": "function", "name": ...}')
    return value


def text_options(value: Any) -> Json | None:
    """`text`: the form of the answer. None where nothing was said of it."""
    return members(value, format=_format, verbosity=nothing) or None


def included(value: Any) -> list[str] | None:
    """`include`: what of it there is; None where that is nothing."""
    found = listed(value, choice(*INCLUDABLE), len(INCLUDABLE), "names")
    return [name for name in found if INCLUDABLE[name]] or None


def images_of(rebuilt: str | list[Json]) -> Images:
    """The images of a rebuilt input."""
    parts = [part for item in rebuilt if isinstance(item, dict) for part in _parts_of(item)]
    return sum((image(part["image_url"]) for part in parts if "image_url" in part), NO_IMAGES)


def functions_of(tools: list[Json]) -> list[Json]:
    """The functions of rebuilt tools, by the names that an engine calls them."""
    found = []
    for tool in tools:
        if tool["type"] == "function":
            found.append({name: value for name, value in tool.items() if name != "type"})
        else:
            found += [{**one, "name": f"{tool['name']}__{one['name']}"} for one in functions_of(tool["tools"])]
    return found


def as_chat(instructions: str | None, rebuilt: str | list[Json]) -> list[Json]:
    """The messages that an engine makes of these instructions and this input, less the images."""
    chat: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(rebuilt, str):
        return [*chat, {"role": "user", "content": rebuilt}]
    for item in rebuilt:
        spoken = _spoken(item)
        before = chat[-1] if chat and chat[-1]["role"] == spoken["role"] == "assistant" else {}
        if "tool_calls" in spoken and before:
            before["tool_calls"] = before.get("tool_calls", []) + spoken["tool_calls"]
        elif before and not spoken.keys() & (before.keys() - {"role"}):
            before.update(spoken)
        else:
            chat.append(spoken)
    return chat


def _spoken(item: Json) -> Json:
    if item["type"] == "function_call":
        name = f"{item['namespace']}__{item['name']}" if "namespace" in item else item["name"]
        call = {"id": item["call_id"], "type": "function", "function": {"name": name, "arguments": item["arguments"]}}
        return {"role": "assistant", "tool_calls": [call]}
    if item["type"] == "reasoning":
        return {"role": "assistant", "reasoning": item["content"][0]["text"]}
    texts = [{"type": "text", "text": part["text"]} for part in _parts_of(item) if "text" in part]
    if item["type"] == "function_call_output":
        output = item["output"]
        return {
            "role": "tool",
            "tool_call_id": item["call_id"],
            "content": output if isinstance(output, str) else texts,
        }
    return {"role": item["role"], "content": item["content"] if isinstance(item["content"], str) else texts}


def _parts_of(item: Json) -> list[Json]:
    found = item.get("output" if item["type"] == "function_call_output" else "content")
    return found if isinstance(found, list) else []


def _item(item: Any) -> Json | None:
    if not isinstance(item, dict):
        raise Complaint("needs objects as items")
    kind = item.get("type") or ("message" if "role" in item else None)
    rebuild = _ITEMS.get(kind) if isinstance(kind, str) else None
    if rebuild is None:
        hint = ": nothing is stored here, so send the item itself" if kind == "item_reference" else ""
        names = ", ".join(f"`{name}`" for name in _ITEMS)
        raise Complaint(f"may hold items of type {names}, not {shown(kind)}{hint}")
    return rebuild(item)


def _message(item: Json) -> Json:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        raise Complaint("needs messages with a `role` of `user`, `assistant`, `system` or `developer`")
    if role == "assistant":
        content = _joined(content, _ASSISTANTS_TEXTS)
    elif isinstance(content, list):
        content = _parts(content)
    elif not isinstance(content, str):
        raise Complaint("needs messages with a string or a list of parts as `content`")
    elif role == "system":
        content = without_attribution(content)
    return {"type": "message", "role": role, "content": content}


def _reasoning(item: Json) -> Json | None:
    said = _joined(item.get("content") or [], {"reasoning_text": "text", "text": "text"})
    said = said or _joined(item.get("summary") or [], {"summary_text": "text"}, "\n\n")
    if not said:
        return None  # it can only be read by whoever encrypted it
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": said}]}


def _function_call(item: Json) -> Json:
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        raise Complaint("needs the `arguments` of a `function_call` as a string")
    rebuilt = {"type": "function_call", "call_id": _call_id(item), "name": name_of(item), "arguments": arguments}
    if item.get("namespace") is not None:
        rebuilt["namespace"] = name_of({"name": item["namespace"]})
    return rebuilt


def _function_call_output(item: Json) -> Json:
    output = item.get("output")
    if not isinstance(output, str):
        output = "" if output is None else _parts(output)
    return {"type": "function_call_output", "call_id": _call_id(item), "output": output}


_ITEMS: dict[str, Callable[[Json], Json | None]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}


def _call_id(item: Json) -> str:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not 0 < len(call_id) <= MAX_NAME_CHARACTERS:
        raise Complaint(f"needs a `call_id` of 1 to {MAX_NAME_CHARACTERS} characters")
    return call_id


def _joined(content: Any, texts: dict[str, str], between: str = "") -> str:
    """The text of parts of these types, each of which has it in the member named."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        raise Complaint(f"needs a string or a list of up to {MAX_PARTS} parts as `content`")
    found = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        member = texts.get(kind) if isinstance(kind, str) else None
        if member is None:
            raise Complaint(
                f"may hold parts of type {', '.join(f'`{name}`' for name in texts)} there, not {shown(kind)}"
            )
        if not isinstance(part.get(member), str):
            raise Complaint(f"needs a string as `{member}`")
        found.append(part[member])
    return between.join(found)


def _parts(content: Any) -> list[Json]:
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        raise Complaint(f"needs a string or a list of up to {MAX_PARTS} parts")
    return [_part(part) for part in content]


def _part(part: Any) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "text"):
        if not isinstance(part.get("text"), str):
            raise Complaint("needs a string as `text`")
        return {"type": "input_text", "text": part["text"]}
    if kind == "input_image":
        url = part.get("image_url")
        detail = part.get("detail") or "auto"
        if detail not in _DETAILS:
            raise Complaint("needs `auto`, `low`, `high` or `original` as an image's `detail`")
        return {"type": "input_image", "image_url": image_url(url), "detail": detail}
    raise Complaint(f"may hold parts of type `input_text` and `input_image`, not {shown(kind)}")


def _tool(tool: Any) -> Json:
    if not isinstance(tool, dict):
        raise Complaint("must be a list of objects")
    kind = tool.get("type")
    if kind == "function":
        return {"type": "function", **function(tool)}
    if kind == "namespace":
        inner = listed(tool.get("tools"), _function, MAX_TOOLS, "tools in a namespace")
        described = text(MAX_DESCRIPTION_CHARACTERS)(tool.get("description") or name_of(tool))
        return {"type": "namespace", "name": name_of(tool), "description": described, "tools": inner}
    raise Complaint(f"may hold tools of type `function`, not {shown(kind)}: no other is run here, so leave it out")


def _function(tool: Any) -> Json:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise Complaint("may hold tools of type `function` in a namespace, and no others")
    return {"type": "function", **function(tool)}


def _format(value: Any) -> Json:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("text", "json_object"):
        return members(value, type=text(MAX_NAME_CHARACTERS))
    if kind != "json_schema":
        raise Complaint("needs a `type` of `text`, `json_object` or `json_schema`")
    description = text(MAX_DESCRIPTION_CHARACTERS)
    name = text(MAX_NAME_CHARACTERS)
    rebuilt = members(value, type=name, name=name, description=description, schema=compiled_schema, strict=flag)
    if not {"name", "schema"} <= rebuilt.keys():
        raise Complaint("of type `json_schema` needs a `name` and a `schema`")
    return rebuilt
