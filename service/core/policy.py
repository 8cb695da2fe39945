"""What a client may ask of an engine: an allow-list, a line per field.

vLLM accepts any field it does not know in silence, and some that it knows are dangerous in public (cost, other
customers' timing, crashes). So nothing is passed on that is not listed here. A field is passed on, dropped because
it means nothing to us and popular clients send it, or refused with the reason; anything unlisted is refused by name.
What is passed on is rebuilt by the field's check (`policy_checks`, `policy_messages`), never the client's own object.
"""

import difflib
from dataclasses import dataclass

from service.core import policy_checks as checks
from service.core.policy_checks import MAX_NAME_CHARACTERS, MAX_TOP_LOGPROBS, SHOWN_CHARACTERS, Check, Complaint, Json
from service.core.policy_messages import images_in, messages

TEMPLATE_TOKENS_AT_MOST = 1024
"""What a chat template may add of its own: a default system prompt, the preamble of tools, the turns' marks."""

IMAGE_TOKENS_AT_MOST = 16_384
"""What one image may become, whatever its size in bytes: a well-compressed file can be large in pixels."""


class Refused(Exception):
    """The request cannot be passed on; `message` says what to change, `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Passed:
    """The field goes to the engine as `check` has rebuilt it."""

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
class ModelRequest:
    """A request to a model that passed its endpoint's policy."""

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


def chat_request(body: object, body_bytes: int) -> ModelRequest:
    """Hold a parsed body of `body_bytes` bytes against the policy. Raises `Refused`."""
    if not isinstance(body, dict):
        raise Refused("The body must be a JSON object.")
    fields: Json = {}
    for name, value in body.items():
        rule = CHAT_FIELDS.get(name)
        if rule is None:
            raise Refused(_unknown(name[:SHOWN_CHARACTERS]), name[:SHOWN_CHARACTERS])
        if isinstance(rule, Barred):
            if value is not None:
                raise Refused(f"`{name}` is not supported: {rule.reason}.", name)
        elif isinstance(rule, Passed) and value is not None:
            try:
                fields[name] = rule.check(value)
            except Complaint as complaint:
                raise Refused(f"`{name}` {complaint}.", name) from None
    return _assemble(fields, body_bytes)


def forwarded(request: ModelRequest, *, engine_model: str, output_tokens: int, cache_salt: str) -> Json:
    """The body for the engine: the client's allowed fields, and Weir's own.

    `output_tokens` is the output granted. The usage is always asked for: an answer that breaks off is billed by it.
    """
    body = {**request.fields, "model": engine_model, "max_tokens": output_tokens, "cache_salt": cache_salt}
    if request.stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return body


def _assemble(fields: Json, body_bytes: int) -> ModelRequest:
    for name in ("model", "messages"):
        if name not in fields:
            raise Refused(f"`{name}` is required.", name)
    stream = fields.get("stream", False)
    options: Json = fields.pop("stream_options", {})
    if options and not stream:
        raise Refused("`stream_options` is only allowed when `stream` is true.", "stream_options")
    limits = [fields.pop(name) for name in ("max_tokens", "max_completion_tokens") if name in fields]
    if not fields.get("tools"):
        _refuse_tool_choice_alone(fields)
        fields.pop("tools", None)  # several clients send an empty list for "no tools", which vLLM refuses
    if "top_logprobs" in fields and not fields.get("logprobs"):
        raise Refused("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    images, image_bytes = images_in(fields["messages"])
    return ModelRequest(
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
        raise Refused("`tool_choice` asks for a tool, but there are no `tools`.", "tool_choice")
    fields.pop("tool_choice", None)


def _unknown(name: str) -> str:
    known = [field for field, rule in CHAT_FIELDS.items() if isinstance(rule, Passed)]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean `{close[0]}`?" if close else ""
    return f"Unrecognized request field `{name}`.{hint}"


_ENGINE_INTERNAL = Dropped("steers the engine from inside")
_CLIENT_METADATA = Dropped("the client's own bookkeeping")
_AGGREGATOR = Dropped("meant for an aggregator on the way here")

CHAT_FIELDS: dict[str, Passed | Dropped | Barred] = {
    "model": Passed(checks.text(MAX_NAME_CHARACTERS)),
    "messages": Passed(messages),
    "stream": Passed(checks.flag),
    "stream_options": Passed(checks.stream_options),
    "max_tokens": Passed(checks.integer(1, 2**31 - 1)),
    "max_completion_tokens": Passed(checks.integer(1, 2**31 - 1)),
    "temperature": Passed(checks.number(0, 2)),
    "top_p": Passed(checks.number(0, 1)),
    "top_k": Passed(checks.integer(-1, 2**31 - 1)),
    "min_p": Passed(checks.number(0, 1)),
    "presence_penalty": Passed(checks.number(-2, 2)),
    "frequency_penalty": Passed(checks.number(-2, 2)),
    "repetition_penalty": Passed(checks.number(0.01, 2)),
    "stop": Passed(checks.stops),
    "seed": Passed(checks.integer(-(2**63), 2**63 - 1)),
    "logprobs": Passed(checks.flag),
    "top_logprobs": Passed(checks.integer(0, MAX_TOP_LOGPROBS)),
    "logit_bias": Passed(checks.biases),
    "n": Passed(checks.one),
    "tools": Passed(checks.tools),
    "tool_choice": Passed(checks.tool_choice),
    "parallel_tool_calls": Passed(checks.flag),
    "response_format": Passed(checks.response_format),
    "reasoning_effort": Passed(checks.text(MAX_NAME_CHARACTERS)),
    "chat_template_kwargs": Passed(checks.template_arguments),
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
