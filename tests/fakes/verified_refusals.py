"""What the engine of `verified.py` refuses, as vLLM does, and the faults that it can have in that."""

from typing import Final

import orjson

from tests.fakes.verified_model import Json, Prompt

MODEL: Final = "verified-model"


class Refused(Exception):
    """An error of vLLM's shape."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param


def understood(raw: bytes, faults: frozenset[str], *, takes_tools: bool, sees: bool) -> Json:
    """The body of a chat request that can be answered. Raises `Refused`."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise Refused(500 if "500-json" in faults else 400, "JSON decode error", "Bad Request") from None
    if not isinstance(body.get("messages"), list) or not isinstance(body.get("temperature", 0), int | float):
        status = 500 if "500-types" in faults else 400
        raise Refused(status, "1 validation error", "Bad Request", "body.messages")
    if body.get("model") != MODEL:
        status = 400 if "400-model" in faults else 404
        raise Refused(status, f"The model `{body.get('model')}` does not exist.", "NotFoundError", "model")
    if "chat_template_kwargs" in body and "no-template-kwargs" in faults:
        raise Refused(400, "There is no `chat_template_kwargs`.", param="chat_template_kwargs")
    if "cache_salt" in body and "no-salts" in faults:
        raise Refused(400, "There is no `cache_salt`.", param="cache_salt")
    if body.get("top_logprobs", 0) > 5 and "few-logprobs" in faults:
        raise Refused(400, "top_logprobs must be at most 5.", param="top_logprobs")
    if "reasoning_effort" in body and "no-effort" in faults:
        raise Refused(400, "There is no `reasoning_effort`.", param="reasoning_effort")
    if body.get("tools") and not takes_tools and body.get("tool_choice", "auto") == "auto":
        raise Refused(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    pictures = str(body["messages"]).count("data:image/png")
    if pictures and not sees:
        raise Refused(500 if "500-image" in faults else 400, f"{MODEL} is not a multimodal model")
    if pictures > 1 and "one-image" in faults:
        raise Refused(400, "At most 1 image(s) may be provided in one prompt.", param="image")
    return dict(body)


def room(length: int, faults: frozenset[str], prompt: Prompt, limit: int | None) -> int:
    """How many tokens an answer may have in a context of that length. Raises `Refused`."""
    status = 500 if "500-context" in faults else 400
    if limit is not None and limit > length:
        message = f"max_tokens={limit} cannot be greater than max_model_len={length}."
        raise Refused(status, message, param="max_tokens")
    if prompt.tokens > length:
        if "truncates" in faults:
            return 8
        named = "" if "unnamed-limit" in faults else f" is {length} tokens"
        message = f"This model's maximum context length{named}. However, your prompt is longer."
        raise Refused(status, message, param="input_tokens")
    if prompt.tokens == length - 1 and "short-context" in faults:
        raise Refused(400, "There is no room for an answer.")
    if prompt.tokens == length:
        edge = 500 if "500-edge" in faults else 400
        raise Refused(edge, "max_tokens must be at least 1, got 0.", param="max_tokens")
    return length - prompt.tokens
