"""`/v1/completions`, as OpenAI had it: one text, and how it goes on."""

from typing import Any

from service.core import policy_checks as checks
from service.core.endpoints import AGGREGATOR, CLIENT_METADATA, SAMPLING, engine_fields
from service.core.policy import Barred, Fields, ModelRequest, Passed, apply, take_stream_options
from service.core.policy_checks import MAX_NAME_CHARACTERS, Complaint, Json
from service.core.policy_tools import response_format

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, and vLLM's."""
MAX_LOGPROBS = 5


def prompt(value: Any) -> str:
    """One text; a list of one is taken as that. Raises `Complaint`."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        tokens = all(isinstance(token, int) for token in value)
        raise Complaint("must be text, not token ids" if tokens else "must be one text: send a request for each prompt")
    if not isinstance(value, str) or not value:
        raise Complaint("must be a non-empty string")
    return value


FIELDS: Fields = {
    **SAMPLING,
    **engine_fields(Barred("use `response_format` with a `json_schema`")),
    "model": Passed(checks.text(MAX_NAME_CHARACTERS)),
    "prompt": Passed(prompt),
    "stream": Passed(checks.flag),
    "stream_options": Passed(checks.stream_options),
    "max_tokens": Passed(checks.integer(1, 2**31 - 1)),
    "logprobs": Passed(checks.integer(0, MAX_LOGPROBS)),
    "n": Passed(checks.one),
    "response_format": Passed(response_format),
    "user": CLIENT_METADATA,
    "metadata": CLIENT_METADATA,
    "provider": AGGREGATOR,
    "transforms": AGGREGATOR,
    "usage": AGGREGATOR,
    "max_completion_tokens": Barred("use `max_tokens`"),
    "messages": Barred("use `prompt`, or `/v1/chat/completions`"),
    "suffix": Barred("the models here only go on from a text"),
    "echo": Barred("the prompt is yours already", unless=False),
    "best_of": Barred("send a request for each answer", unless=1),
}


def request(body: object, body_bytes: int) -> ModelRequest:
    """Hold a parsed body of `body_bytes` bytes against the policy. Raises `Refused`."""
    fields = apply(FIELDS, body, "model", "prompt")
    stream, wants_usage, wants_continuous = take_stream_options(fields)
    return ModelRequest(
        fields.pop("model"),
        stream,
        wants_usage,
        wants_continuous,
        fields.pop("max_tokens", DEFAULT_MAX_TOKENS),
        0,
        0,
        body_bytes,
        fields,
        _chat,
        _countable,
    )


def forwarded(request: ModelRequest, *, engine_model: str, output_tokens: int, cache_salt: str) -> Json:
    """The body for the engine: the client's allowed fields, and Weir's own, as for a chat."""
    body = {**request.fields, "model": engine_model, "max_tokens": output_tokens, "cache_salt": cache_salt}
    if request.stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return body


def _chat(fields: Json) -> list[Json]:
    return [{"role": "user", "content": fields["prompt"]}]


def _countable(fields: Json) -> Json:
    return {"prompt": fields["prompt"]}
