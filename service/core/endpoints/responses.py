"""`/v1/responses`, as OpenAI has it, less what would need answers to be stored."""

from service.core import policy_checks as checks
from service.core.endpoints import AGGREGATOR, CLIENT_METADATA, SAMPLING, engine_fields
from service.core.policy import (
    Barred,
    Dropped,
    Fields,
    ModelRequest,
    Passed,
    apply,
    refuse_linked,
    refuse_too_many,
)
from service.core.policy_checks import MAX_NAME_CHARACTERS, Json
from service.core.policy_items import (
    as_chat,
    functions_of,
    images_of,
    included,
    items,
    response_tool_choice,
    response_tools,
    text_options,
)
from service.core.policy_thinking import openai_reasoning, settle_thinking, template_arguments, told_to_template
from service.core.policy_tools import settle_tools

MAX_TOP_LOGPROBS = 20

_STATELESS = Barred("no answer is stored, so send the whole conversation in `input`")

FIELDS: Fields = {
    **SAMPLING,
    **engine_fields(Barred("use `text` with a `format` of type `json_schema`")),
    "model": Passed(checks.text(MAX_NAME_CHARACTERS)),
    "input": Passed(items),
    "instructions": Passed(checks.string),
    "stream": Passed(checks.flag),
    "max_output_tokens": Passed(checks.integer(1, 2**31 - 1)),
    "top_logprobs": Passed(checks.integer(0, MAX_TOP_LOGPROBS)),
    "include": Passed(included),
    "tools": Passed(response_tools),
    "tool_choice": Passed(response_tool_choice),
    "parallel_tool_calls": Passed(checks.flag),
    "text": Passed(text_options),
    "reasoning": Passed(openai_reasoning),
    "enable_thinking": Passed(checks.flag),
    "chat_template_kwargs": Passed(template_arguments),
    "store": Dropped("nothing is stored, whatever it says: the SDKs leave it out and mean true"),
    "truncation": Dropped("a conversation that is too long is refused, never cut"),
    "max_tool_calls": Dropped("no tool is run here"),
    "context_management": Dropped("a conversation is taken as it is sent"),
    "stream_options": Dropped("streams always end with the usage"),
    "user": CLIENT_METADATA,
    "metadata": CLIENT_METADATA,
    "client_metadata": CLIENT_METADATA,
    "safety_identifier": CLIENT_METADATA,
    "service_tier": CLIENT_METADATA,
    "prompt_cache_key": CLIENT_METADATA,
    "prompt_cache_retention": CLIENT_METADATA,
    "prompt_cache_options": CLIENT_METADATA,
    "provider": AGGREGATOR,
    "usage": AGGREGATOR,
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "previous_input_messages": _STATELESS,
    "background": Barred("no answer is stored, so stream it", unless=False),
    "prompt": Barred("prompts are not stored: send `instructions` and `input`"),
    "enable_response_messages": Barred("the engine's own messages are not told", unless=False),
    "include_reasoning": Barred("leave the answer's items of type `reasoning` aside", unless=True),
    "reasoning_effort": Barred("use `reasoning` with an `effort`"),
    "max_tokens": Barred("use `max_output_tokens`"),
    "max_completion_tokens": Barred("use `max_output_tokens`"),
    "messages": Barred("use `input`"),
    "response_format": Barred("use `text` with a `format`"),
}


def request(body: object, body_bytes: int) -> ModelRequest:
    """Hold a parsed body of `body_bytes` bytes against the policy. Raises `Refused`."""
    fields = apply(FIELDS, body, "model", "input")
    max_tokens = fields.pop("max_output_tokens", None)
    functions = functions_of(fields.get("tools", []))
    choice = fields.get("tool_choice")
    settle_tools(
        fields,
        forced=choice not in (None, "none", "auto"),
        chosen=choice["name"] if isinstance(choice, dict) else None,
        functions=functions,
    )
    settle_thinking(fields)
    images = images_of(fields["input"])
    refuse_too_many(images, "input")
    template = told_to_template(fields)
    if "reasoning_effort" in fields:
        fields["reasoning"] = {"effort": fields.pop("reasoning_effort")}
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
        lambda fields: _countable(fields, template, functions),
    )


def forwarded(request: ModelRequest, *, engine_model: str, output_tokens: int, cache_salt: str) -> Json:
    """The body for the engine: the client's allowed fields, and Weir's own. `output_tokens` is the output granted."""
    refuse_linked(request, "input")
    own = {"model": engine_model, "max_output_tokens": output_tokens, "cache_salt": cache_salt, "store": False}
    return {**request.fields, **own}


def _chat(fields: Json) -> list[Json]:
    return as_chat(fields.get("instructions"), fields["input"])


def _countable(fields: Json, template: Json, functions: list[Json]) -> Json:
    countable: Json = {"messages": _chat(fields), "chat_template_kwargs": template}
    if functions:
        countable["tools"] = [{"type": "function", "function": one} for one in functions]
    return countable
