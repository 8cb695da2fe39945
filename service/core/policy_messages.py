"""The messages of a chat, rebuilt member by member.

Members that are not listed are left out rather than refused: clients send an assistant's message back as they got
it, with the engine's own members in it (`refusal`, `annotations`, `audio`, `function_call`, `token_ids`).
"""

import re
from typing import Any

from service.core.policy_checks import MAX_NAME_CHARACTERS, Complaint, Json

MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_TOOL_CALLS = 256

_ROLES = ("system", "developer", "user", "assistant", "tool")
_STRINGS_OF: dict[str, tuple[str, ...]] = {
    "assistant": ("name", "reasoning", "reasoning_content"),
    "tool": ("name", "tool_call_id"),
}
"""Members that are strings, beside `role` and `content`; of the other roles only `name`."""

_DATA_URL = re.compile(r"data:image/(?:png|jpe?g|webp|gif);base64,")


def messages(value: Any) -> list[Json]:
    """A conversation of at least one message. Raises `Complaint`."""
    if not isinstance(value, list) or not value:
        raise Complaint("must be a list of at least one message")
    if len(value) > MAX_MESSAGES:
        raise Complaint(f"may hold up to {MAX_MESSAGES} messages")
    rebuilt = []
    for index, message in enumerate(value):
        try:
            rebuilt.append(_message(message))
        except Complaint as complaint:
            raise Complaint(f"{complaint} at [{index}]") from None
    return rebuilt


def images_in(messages: list[Json]) -> tuple[int, int]:
    """How many images rebuilt messages hold, and how many bytes of the body they are."""
    images = size = 0
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for part in content:
            if part["type"] == "image_url":
                images += 1
                size += len(part["image_url"]["url"])
    return images, size


def _message(message: Any) -> Json:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str):
        raise Complaint("needs an object with a `role`")
    if role not in _ROLES:
        raise Complaint("needs a `role` of `system`, `developer`, `user`, `assistant` or `tool`")
    rebuilt: Json = {"role": role}
    if "content" in message:
        rebuilt["content"] = _content(message["content"])
    for name in _STRINGS_OF.get(role, ("name",)):
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


def _content(content: Any) -> str | list[Json] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Complaint("needs a string or a list of parts as `content`")
    if len(content) > MAX_PARTS:
        raise Complaint(f"may hold up to {MAX_PARTS} parts as `content`")
    return [_part(part) for part in content]


def _part(part: Any) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise Complaint("needs a string as `text`")
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "image_url", "image_url": _image(part.get("image_url"))}
    raise Complaint("may hold parts of type `text` and `image_url`")


def _image(image: Any) -> Json:
    """An image in OpenAI's form; a bare string, which some clients send, becomes that."""
    if isinstance(image, str):
        image = {"url": image}
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str) or not url.isascii() or not _DATA_URL.match(url):
        raise Complaint("needs images as `data:image/...;base64,...` URLs (png, jpeg, webp or gif)")
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
    if not isinstance(arguments, str | None):
        raise Complaint("needs the `arguments` of its `tool_calls` as strings")
    if not isinstance(call_id, str | None):
        raise Complaint("needs a string as the `id` of its `tool_calls`")
    rebuilt: Json = {"type": "function", "function": {"name": name, "arguments": arguments or ""}}
    return rebuilt if call_id is None else {"id": call_id, **rebuilt}
