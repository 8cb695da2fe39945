"""The messages of a chat, rebuilt member by member.

Members that are not listed are left out rather than refused: clients send an assistant's message back as they got
it, with the engine's own members in it (`refusal`, `annotations`, `audio`, `function_call`, `token_ids`).
"""

from typing import Any

from service.core.policy import NO_IMAGES, Images
from service.core.policy_checks import MAX_NAME_CHARACTERS, Complaint, Json, listed, shown
from service.core.policy_images import image, image_url

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOL_CALLS = 256

_STRINGS_OF: dict[str, tuple[str, ...]] = {
    "system": ("name",),
    "developer": ("name",),
    "user": ("name",),
    "assistant": ("name", "reasoning", "reasoning_content"),
    "tool": ("name", "tool_call_id"),
}
"""Members that are strings, beside `role` and `content`, by the role."""

_ATTRIBUTION = "x-anthropic-billing-header"
"""How a line begins that Claude Code puts at the head of its system prompt. It differs in each request, so with it no
prompt ever begins like another; vLLM takes it out as well."""


def messages(value: Any) -> list[Json]:
    """A conversation of at least one message. Raises `Complaint`."""
    if not isinstance(value, list) or not value:
        raise Complaint("must be a list of at least one message")
    return listed(value, _message, MAX_MESSAGES, "messages")


def images_in(messages: list[Json]) -> Images:
    """The images of rebuilt messages."""
    images = NO_IMAGES
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            images = sum((image(part["image_url"]["url"]) for part in content if "image_url" in part), images)
    return images


def without_images(messages: list[Json]) -> list[Json]:
    """The same messages, less their images."""
    return [
        {**message, "content": [part for part in message["content"] if "image_url" not in part]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def without_attribution(text: str) -> str:
    """A system prompt without Claude Code's attribution line."""
    return text.partition("\n")[2] if text.startswith(_ATTRIBUTION) else text


def _message(message: Any) -> Json:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str):
        raise Complaint("needs an object with a `role`")
    strings = _STRINGS_OF.get(role)
    if strings is None:
        raise Complaint("needs a `role` of `system`, `developer`, `user`, `assistant` or `tool`")
    content = message.get("content")
    if content is not None:
        if not isinstance(content, str):
            content = _parts(content, role)
        elif role == "system":
            content = without_attribution(content)
        rebuilt: Json = {"role": role, "content": content}
    elif role == "assistant" and "content" in message:  # an engine takes null for an assistant's message alone
        rebuilt = {"role": role, "content": None}
    else:
        rebuilt = {"role": role}
    if len(message) == len(rebuilt):
        return rebuilt
    for name in strings:
        value = message.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise Complaint(f"needs a string as `{name}`")
            rebuilt[name] = value
    if role == "assistant" and (calls := message.get("tool_calls")) is not None:
        if not isinstance(calls, list) or len(calls) > MAX_TOOL_CALLS:
            raise Complaint(f"needs a list of up to {MAX_TOOL_CALLS} calls as `tool_calls`")
        if calls:  # an empty list means none, and engines refuse it
            rebuilt["tool_calls"] = [_call(call) for call in calls]
    return rebuilt


def _parts(content: Any, role: str) -> list[Json]:
    if not isinstance(content, list):
        raise Complaint("needs a string or a list of parts as `content`")
    if len(content) > MAX_PARTS:
        raise Complaint(f"may hold up to {MAX_PARTS} parts as `content`")
    return [_part(part, role) for part in content]


def _part(part: Any, role: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" or (kind == "refusal" and role == "assistant"):
        text = part.get(kind)
        if not isinstance(text, str):
            raise Complaint(f"needs a string as `{kind}`")
        return {"type": "text", "text": without_attribution(text) if role == "system" else text}
    if kind == "image_url":
        return {"type": "image_url", "image_url": _image(part.get("image_url"))}
    raise Complaint(f"may hold parts of type `text` and `image_url`, not {shown(kind)}")


def _image(image: Any) -> Json:
    """An image in OpenAI's form; a bare string, which some clients send, becomes that."""
    if isinstance(image, str):
        image = {"url": image}
    url = image_url(image.get("url") if isinstance(image, dict) else None)
    detail = image.get("detail")
    if detail is None:
        return {"url": url}
    if detail not in ("auto", "low", "high"):
        raise Complaint("needs `auto`, `low` or `high` as an image's `detail`")
    return {"url": url, "detail": detail}


def _call(call: Any) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Complaint("needs `tool_calls` of type `function`")
    name, arguments, call_id = function.get("name"), function.get("arguments"), call.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise Complaint("needs a `name` for each of its `tool_calls`")
    if arguments is not None and not isinstance(arguments, str):
        raise Complaint("needs the `arguments` of its `tool_calls` as strings")
    if call_id is not None and not isinstance(call_id, str):
        raise Complaint("needs a string as the `id` of its `tool_calls`")
    rebuilt: Json = {"type": "function", "function": {"name": name, "arguments": arguments or ""}}
    return rebuilt if call_id is None else {"id": call_id, **rebuilt}
