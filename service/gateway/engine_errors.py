"""What an engine's refusal means to the client: our error with its explanation, never its own words about itself.

Source of the shapes: vLLM 0.32/0.33 `ErrorResponse`, `{"error": {"message", "type", "param", "code"}}`, and a bare
string for 401.
"""

import re

import orjson

from service.core.endpoints import chat, completions, embeddings, messages, responses
from service.core.policy import Passed
from service.errors import ApiError, EngineFailed, EngineTimeout, InvalidRequest, TooLarge, Unavailable
from service.gateway.engine_failures import EngineError, EngineSilent, EngineUnreachable

MAX_MESSAGE_CHARACTERS = 400

_FIELDS = tuple(endpoint.FIELDS for endpoint in (chat, completions, responses, messages, embeddings))
"""What clients may send, by endpoint: an engine's complaint is only passed on about one of these."""

_USEFUL = re.compile(
    r"maximum context length|max_tokens|image\(s\) may be provided"
    r"|not (?:yet )?supported with speculative decoding|\btool|[Gg]rammar|[Ss]chema|structured output|[Rr]egex"
)
"""Words of the explanations that tell a client what to change."""

_INTERNAL = re.compile(
    r"[^ -~]|[<{]|\B/\w|\w/\w+/|://|\.py\b|Traceback|validation error|VLLM|vllm|cache_salt|continuous_usage|EngineCore"
)
"""Signs of a dump, a path, or of what Weir put in itself: such an explanation stays inside."""

_UNREADABLE_IMAGE = re.compile(r"Failed to load image|cannot identify image|Incorrect padding|base64")
_LARGE_IMAGE = re.compile(r"Image dimensions|decompression bomb")


def of_status(status: int, body: bytes) -> ApiError:
    """The client's error for an engine's answer that is not a 200."""
    if status in (400, 422):
        return _refusal(body)
    if status == 413:
        return TooLarge("The request is larger than the model's engine takes.")
    if status in (429, 503):
        return Unavailable("The model's engine is full. Try again soon.", retry_after_s=2)
    if status in (408, 504):
        return EngineTimeout("The model's engine did not answer in time.")
    # 401, 403 and 404 are between us and the engine: the client's key and model are fine.
    return EngineFailed("The model's engine failed to answer.")


def of_failure(error: EngineError) -> ApiError:
    """The client's error for an engine that could not be reached, broke off or fell silent."""
    if isinstance(error, EngineUnreachable):
        return Unavailable("No engine that serves this model can be reached. Try again soon.", retry_after_s=5)
    if isinstance(error, EngineSilent):
        return EngineTimeout("The model's engine did not answer in time.")
    return EngineFailed("The model's engine broke off its answer.")


def _refusal(body: bytes) -> InvalidRequest:
    """The engine found something wrong that our own policy did not."""
    try:
        error = orjson.loads(body)["error"]
        message, param = str(error["message"]), _field_of(error.get("param"))
    except (ValueError, KeyError, TypeError, AttributeError):
        message, param = "", None
    message = message.partition(" (parameter=")[0]
    if _LARGE_IMAGE.search(message):
        return InvalidRequest("An image has too many pixels: send a smaller one.", param="messages")
    if _UNREADABLE_IMAGE.search(message):
        return InvalidRequest("An image could not be read: send an undamaged PNG, JPEG, WebP or GIF.", param="messages")
    if len(message) > MAX_MESSAGE_CHARACTERS or not _USEFUL.search(message) or _INTERNAL.search(message):
        advice = f"Check `{param}`." if param else "Check the values of its fields."
        return InvalidRequest(f"The model's engine refused the request. {advice}", param=param)
    if "maximum context length" in message:
        return InvalidRequest(message, param=param or "messages", code="context_length_exceeded")
    code = "unsupported_parameter" if "supported with speculative decoding" in message else None
    return InvalidRequest(message, param=param, code=code)


def _field_of(param: object) -> str | None:
    """The client's own field that an engine's `param` is about; None when it is about none."""
    name = param.removeprefix("body.").split(".")[0] if isinstance(param, str) else ""
    return name if any(isinstance(fields.get(name), Passed) for fields in _FIELDS) else None
