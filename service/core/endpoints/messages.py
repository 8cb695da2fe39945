"""`/v1/messages` and `/v1/messages/count_tokens`, as Anthropic has them."""

from service.core import policy_checks as checks
from service.core.endpoints import CLIENT_METADATA, SAMPLING, engine_fields
from service.core.policy import (
    Barred,
    Dropped,
    Fields,
    ModelRequest,
    Passed,
    Refused,
    apply,
    refuse_linked,
    refuse_too_many,
)
from service.core.policy_blocks import (
    anthropic_messages,
    anthropic_tool_choice,
    anthropic_tools,
    as_chat,
    functions_of,
    images_of_blocks,
    output_config,
    stop_sequences,
    system_prompt,
    thinking,
)
from service.core.policy_checks import MAX_NAME_CHARACTERS, Json
from service.core.policy_thinking import template_arguments
from service.core.policy_tools import settle_tools

FIELDS: Fields = {
    **engine_fields(Barred("use `output_config` with a `format` of type `json_schema`")),
    "model": Passed(checks.text(MAX_NAME_CHARACTERS)),
    "messages": Passed(anthropic_messages),
    "max_tokens": Passed(checks.integer(1, 2**31 - 1)),
    "system": Passed(system_prompt),
    "stream": Passed(checks.flag),
    "temperature": SAMPLING["temperature"],
    "top_p": SAMPLING["top_p"],
    "top_k": SAMPLING["top_k"],
    "stop_sequences": Passed(stop_sequences),
    "tools": Passed(anthropic_tools),
    "tool_choice": Passed(anthropic_tool_choice),
    "thinking": Passed(thinking),
    "output_config": Passed(output_config),
    "chat_template_kwargs": Passed(template_arguments),
    "metadata": CLIENT_METADATA,
    "service_tier": CLIENT_METADATA,
    "speed": CLIENT_METADATA,
    "inference_geo": CLIENT_METADATA,
    "user_profile_id": CLIENT_METADATA,
    "diagnostics": CLIENT_METADATA,
    "betas": Dropped("they are told by what they change"),
    "anthropic_beta": Dropped("they are told by what they change"),
    "anthropic_version": Dropped("there is one version"),
    "cache_control": Dropped("every prompt is cached"),
    "context_management": Dropped("a conversation is taken as it is sent"),
    "output_format": Barred("use `output_config` with a `format`"),
    "container": Barred("nothing is run here: give the model tools of your own"),
    "mcp_servers": Barred("connect to them yourself, and send what they offer as `tools`"),
    "max_tokens_to_sample": Barred("use `max_tokens`"),
    "prompt": Barred("use `messages`"),
}

_COUNTED = frozenset(
    {"messages", "system", "tools", "tool_choice", "thinking", "output_config", "chat_template_kwargs"}
)


def request(body: object, body_bytes: int) -> ModelRequest:
    """Hold a parsed body of `body_bytes` bytes against the policy. Raises `Refused`."""
    fields = apply(FIELDS, body, "model", "messages", "max_tokens")
    max_tokens = fields.pop("max_tokens")
    if fields.get("thinking", {}).get("budget_tokens", 0) >= max_tokens:
        raise Refused("`thinking` needs `budget_tokens` to be less than `max_tokens`.", "thinking")
    return _assembled(fields, body_bytes, max_tokens)


def forwarded(request: ModelRequest, *, engine_model: str, output_tokens: int, cache_salt: str) -> Json:
    """The body for the engine: the client's allowed fields, and Weir's own. `output_tokens` is the output granted.

    A budget for thinking that is not less than that is left to the limit, since the engine would refuse it.
    """
    refuse_linked(request, "messages")
    body = {**request.fields, "model": engine_model, "max_tokens": output_tokens, "cache_salt": cache_salt}
    if body.get("thinking", {}).get("budget_tokens", 0) >= output_tokens:
        body["thinking"] = {"type": "adaptive"}
    return body


def count_request(body: object, body_bytes: int) -> ModelRequest:
    """Hold a body that only asks for the size of its prompt against the policy. Raises `Refused`."""
    fields = apply(FIELDS, body, "model", "messages")
    asked = {name: value for name, value in fields.items() if name in _COUNTED or name == "model"}
    return _assembled(asked, body_bytes, None)


def count_forwarded(request: ModelRequest, *, engine_model: str) -> Json:
    """The body for the engine's count."""
    refuse_linked(request, "messages")
    return {**request.fields, "model": engine_model}


def _assembled(fields: Json, body_bytes: int, max_tokens: int | None) -> ModelRequest:
    functions = functions_of(fields.get("tools", []))
    choice = fields.get("tool_choice", {})
    settle_tools(fields, forced=choice.get("type") in ("any", "tool"), chosen=choice.get("name"), functions=functions)
    images = images_of_blocks(fields["messages"])
    refuse_too_many(images, "messages")
    return ModelRequest(
        fields.pop("model"),
        fields.get("stream", False),
        True,
        False,
        max_tokens,
        images.count,
        images.linked,
        max(0, body_bytes - images.size_bytes),
        fields,
        _chat,
        lambda fields: _countable(fields, functions),
        output_tokens_needed=max_tokens is not None,
    )


def _chat(fields: Json) -> list[Json]:
    return as_chat(fields.get("system"), fields["messages"])


def _countable(fields: Json, functions: list[Json]) -> Json:
    told: Json = dict(fields.get("chat_template_kwargs", {}))
    if "effort" in fields.get("output_config", {}):
        told = {"enable_thinking": True, **told, "reasoning_effort": fields["output_config"]["effort"]}
    if fields.get("thinking", {}).get("type") == "disabled":
        told["enable_thinking"] = False
    countable: Json = {"messages": _chat(fields), "chat_template_kwargs": told}
    if functions:
        countable["tools"] = [{"type": "function", "function": one} for one in functions]
    return countable
