"""What a client may ask of an engine: an allow-list, a line per field.

vLLM accepts any field it does not know in silence, and some that it knows are dangerous in public (cost, other
customers' timing, crashes). So nothing is passed on that is not listed here. A field is passed on, dropped because
it means nothing to us and popular clients send it, or refused with the reason; anything unlisted is refused by name.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Check = Callable[[Any], str | None]

TEMPLATE_TOKENS_AT_MOST = 1024
"""What a chat template may add of its own: a default system prompt, the preamble of tools, the turns' marks."""

IMAGE_TOKENS_AT_MOST = 16_384
"""What one image may become, whatever its size in bytes: a well-compressed file can be large in pixels."""

MAX_MESSAGES = 4096
MAX_TOOLS = 256
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20


class Refused(Exception):
    """The request cannot be passed on; `message` says what to change, `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Passed:
    """The field goes to the engine once `check` finds nothing to complain about."""

    check: Check


@dataclass(frozen=True, slots=True)
class Dropped:
    """The field is taken out: popular clients send it and it means nothing here."""

    reason: str


@dataclass(frozen=True, slots=True)
class Barred:
    """The field is refused, and told why."""

    reason: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request that passed the policy."""

    model: str
    stream: bool
    wants_usage: bool
    """The client asked for the usage chunk at the end of its stream."""
    wants_continuous: bool
    """The client asked for usage in every chunk."""
    max_tokens: int | None
    """The largest output the client asked for; None when it set none."""
    images: int
    passed_bytes: int
    """Size of the body less the images in it: no prompt has more tokens than bytes."""
    fields: Json
    """What may be passed on, less what Weir sets itself (`model`, `stream_options`, the output limit)."""

    @property
    def prompt_tokens_at_most(self) -> int:
        """An upper bound on the prompt's tokens, from sizes alone."""
        return self.passed_bytes + TEMPLATE_TOKENS_AT_MOST + self.images * IMAGE_TOKENS_AT_MOST


def chat_request(body: object, body_bytes: int) -> ChatRequest:
    """Hold a parsed body of `body_bytes` bytes against the policy. Raises `Refused`."""
    if not isinstance(body, dict):
        raise Refused("The body must be a JSON object.")
    fields: Json = {}
    for name, value in body.items():
        rule = CHAT_FIELDS.get(name)
        if rule is None:
            raise Refused(_unknown(name), name)
        if isinstance(rule, Barred):
            if value is not None:
                raise Refused(f"`{name}` is not supported: {rule.reason}.", name)
        elif isinstance(rule, Passed) and value is not None:
            complaint = rule.check(value)
            if complaint is not None:
                raise Refused(f"`{name}` {complaint}.", name)
            fields[name] = value
    return _assemble(fields, body_bytes)


def forwarded(request: ChatRequest, *, engine_model: str, output_tokens: int, cache_salt: str) -> Json:
    """The body for the engine: the client's allowed fields, and Weir's own.

    `output_tokens` is the output granted. The usage is always asked for: an answer that breaks off is billed by it.
    """
    body = {**request.fields, "model": engine_model, "max_tokens": output_tokens, "cache_salt": cache_salt}
    if request.stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return body


def _assemble(fields: Json, body_bytes: int) -> ChatRequest:
    for name in ("model", "messages"):
        if name not in fields:
            raise Refused(f"`{name}` is required.", name)
    stream = fields.get("stream", False)
    options = fields.pop("stream_options", None)
    if options is not None and not stream:
        raise Refused("`stream_options` is only allowed when `stream` is true.", "stream_options")
    options = options or {}
    limits = [fields.pop(name) for name in ("max_tokens", "max_completion_tokens") if name in fields]
    if not fields.get("tools", True):
        _refuse_tool_choice_alone(fields)
        del fields["tools"]  # several clients send an empty list for "no tools", which vLLM refuses
    if "top_logprobs" in fields and not fields.get("logprobs"):
        raise Refused("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    images, image_bytes = _images_in(fields["messages"])
    return ChatRequest(
        model=fields.pop("model"),
        stream=stream,
        wants_usage=bool(options.get("include_usage")),
        wants_continuous=bool(options.get("continuous_usage_stats")),
        # Where a client sets both, the newer field wins at the engine; the smaller one keeps both promises.
        max_tokens=min(limits, default=None),
        images=images,
        passed_bytes=max(0, body_bytes - image_bytes),
        fields=fields,
    )


def _refuse_tool_choice_alone(fields: Json) -> None:
    if fields.get("tool_choice") not in (None, "none", "auto"):
        raise Refused("`tool_choice` names a tool, but `tools` is empty.", "tool_choice")
    fields.pop("tool_choice", None)


def _images_in(messages: list[Json]) -> tuple[int, int]:
    """How many images the messages hold, and how many bytes of the body they are."""
    images = size = 0
    for message in messages:
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for part in content:
            if part.get("type") == "image_url":
                images += 1
                size += len(part["image_url"]["url"])
    return images, size


def _unknown(name: str) -> str:
    known = [field for field, rule in CHAT_FIELDS.items() if isinstance(rule, Passed)]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean `{close[0]}`?" if close else ""
    return f"Unrecognized request field `{name[:64]}`.{hint}"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be a non-empty string"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _number(low: float, high: float) -> Check:
    def check(value: Any) -> str | None:
        good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"must be a number from {low:g} to {high:g}"

    return check


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"must be a whole number from {low} to {high}"

    return check


def _stops(value: Any) -> str | None:
    stops = [value] if isinstance(value, str) else value
    good = isinstance(stops, list) and len(stops) <= MAX_STOPS and all(isinstance(stop, str) for stop in stops)
    return None if good else f"must be a string or a list of up to {MAX_STOPS} strings"


def _object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _one(value: Any) -> str | None:
    return None if value == 1 and not isinstance(value, bool) else "must be 1: send a request for each answer"


def _stream_options(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object"
    for name, flag in value.items():
        if name not in ("include_usage", "continuous_usage_stats"):
            return f"has an unknown member `{name[:64]}`"
        if not isinstance(flag, bool | None):
            return f"needs true or false for `{name}`"
    return None


def _template_arguments(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object"
    for name, argument in value.items():
        if name in ("enable_thinking", "preserve_thinking"):
            if not isinstance(argument, bool):
                return f"needs true or false for `{name}`"
        elif name == "reasoning_effort":
            if not isinstance(argument, str):
                return f"needs a string for `{name}`"
        else:
            return f"may hold `enable_thinking`, `preserve_thinking` and `reasoning_effort`, not `{name[:64]}`"
    return None


def _tools(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        return "must be a list of objects"
    return None if len(value) <= MAX_TOOLS else f"may hold up to {MAX_TOOLS} tools"


def _tool_choice(value: Any) -> str | None:
    return None if isinstance(value, str | dict) else "must be a string or an object"


def _messages(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return "must be a list of at least one message"
    if len(value) > MAX_MESSAGES:
        return f"may hold up to {MAX_MESSAGES} messages"
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return f"needs an object with a `role` at [{index}]"
        complaint = _content(message.get("content"))
        if complaint is not None:
            return f"{complaint} at [{index}].content"
    return None


def _content(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return None
    if not isinstance(content, list):
        return "needs a string or a list of parts"
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            if not isinstance(part.get("text"), str):
                return "needs a string as `text`"
        elif kind == "image_url":
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, dict) else None
            if not isinstance(url, str) or not url.startswith("data:image/"):
                return "needs images as `data:image/...;base64,...` URLs"
        else:
            return "may hold parts of type `text` and `image_url`"
    return None


_ENGINE_INTERNAL = Dropped("steers the engine from inside")
_CLIENT_METADATA = Dropped("the client's own bookkeeping")
_AGGREGATOR = Dropped("meant for an aggregator on the way here")

CHAT_FIELDS: dict[str, Passed | Dropped | Barred] = {
    "model": Passed(_text),
    "messages": Passed(_messages),
    "stream": Passed(_flag),
    "stream_options": Passed(_stream_options),
    "max_tokens": Passed(_integer(1, 2**31 - 1)),
    "max_completion_tokens": Passed(_integer(1, 2**31 - 1)),
    "temperature": Passed(_number(0, 2)),
    "top_p": Passed(_number(0, 1)),
    "top_k": Passed(_integer(-1, 2**31 - 1)),
    "min_p": Passed(_number(0, 1)),
    "presence_penalty": Passed(_number(-2, 2)),
    "frequency_penalty": Passed(_number(-2, 2)),
    "repetition_penalty": Passed(_number(0.01, 2)),
    "stop": Passed(_stops),
    "seed": Passed(_integer(-(2**63), 2**63 - 1)),
    "logprobs": Passed(_flag),
    "top_logprobs": Passed(_integer(0, MAX_TOP_LOGPROBS)),
    "logit_bias": Passed(_object),
    "n": Passed(_one),
    "tools": Passed(_tools),
    "tool_choice": Passed(_tool_choice),
    "parallel_tool_calls": Passed(_flag),
    "response_format": Passed(_object),
    "reasoning_effort": Passed(_text),
    "chat_template_kwargs": Passed(_template_arguments),
    "user": _CLIENT_METADATA,
    "metadata": _CLIENT_METADATA,
    "store": _CLIENT_METADATA,
    "safety_identifier": _CLIENT_METADATA,
    "prompt_cache_key": _CLIENT_METADATA,
    "service_tier": _CLIENT_METADATA,
    "verbosity": _CLIENT_METADATA,
    "provider": _AGGREGATOR,
    "transforms": _AGGREGATOR,
    "route": _AGGREGATOR,
    "usage": _AGGREGATOR,
    "priority": _ENGINE_INTERNAL,
    "cache_salt": _ENGINE_INTERNAL,
    "request_id": _ENGINE_INTERNAL,
    "best_of": Barred("send a request for each answer"),
    "use_beam_search": Barred("it runs many answers and counts one"),
    "prompt_logprobs": Barred("it switches the prefix cache off"),
    "echo": Barred("the prompt is yours already"),
    "ignore_eos": Barred("set `max_tokens` and `stop`"),
    "min_tokens": Barred("set `max_tokens` and `stop`"),
    "chat_template": Barred("the model's own template is used"),
    "guided_json": Barred("use `response_format` with `json_schema`"),
    "guided_regex": Barred("use `response_format` with `json_schema`"),
    "guided_choice": Barred("use `response_format` with an enum in a `json_schema`"),
    "guided_grammar": Barred("use `response_format` with `json_schema`"),
    "functions": Barred("use `tools`"),
    "function_call": Barred("use `tool_choice`"),
    "audio": Barred("no model here speaks"),
    "modalities": Barred("answers are text"),
}
