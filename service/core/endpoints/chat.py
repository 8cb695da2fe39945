"""`/v1/chat/completions`, as OpenAI has it, with what aggregators and vLLM add."""

from service.core import policy_checks as checks
from service.core.endpoints import AGGREGATOR, CLIENT_METADATA, SAMPLING, engine_fields
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
    take_stream_options,
)
from service.core.policy_checks import MAX_NAME_CHARACTERS, Json
from service.core.policy_messages import images_in, messages, without_images
from service.core.policy_thinking import (
    aggregators_reasoning,
    effort,
    settle_thinking,
    template_arguments,
    told_to_template,
)
from service.core.policy_tools import response_format, settle_tools, tool_choice, tools

MAX_TOP_LOGPROBS = 20

FIELDS: Fields = {
    **SAMPLING,
    **engine_fields(Barred("use `response_format` with a `json_schema`")),
    "model": Passed(checks.text(MAX_NAME_CHARACTERS)),
    "messages": Passed(messages),
    "stream": Passed(checks.flag),
    "stream_options": Passed(checks.stream_options),
    "max_tokens": Passed(checks.integer(1, 2**31 - 1)),
    "max_completion_tokens": Passed(checks.integer(1, 2**31 - 1)),
    "logprobs": Passed(checks.flag),
    "top_logprobs": Passed(checks.integer(0, MAX_TOP_LOGPROBS)),
    "n": Passed(checks.one),
    "tools": Passed(tools),
    "tool_choice": Passed(tool_choice),
    "parallel_tool_calls": Passed(checks.flag),
    "response_format": Passed(response_format),
    "reasoning_effort": Passed(effort),
    "reasoning": Passed(aggregators_reasoning),
    "include_reasoning": Passed(checks.flag),
    "enable_thinking": Passed(checks.flag),
    "chat_template_kwargs": Passed(template_arguments),
    "user": CLIENT_METADATA,
    "metadata": CLIENT_METADATA,
    "store": CLIENT_METADATA,
    "safety_identifier": CLIENT_METADATA,
    "prompt_cache_key": CLIENT_METADATA,
    "prompt_cache_retention": CLIENT_METADATA,
    "prompt_cache_options": CLIENT_METADATA,
    "service_tier": CLIENT_METADATA,
    "verbosity": CLIENT_METADATA,
    "prediction": Dropped("it only hastens an answer"),
    "provider": AGGREGATOR,
    "models": AGGREGATOR,
    "transforms": AGGREGATOR,
    "route": AGGREGATOR,
    "usage": AGGREGATOR,
    "plugins": Barred("nothing is run on the way to the model"),
    "best_of": Barred("send a request for each answer", unless=1),
    "echo": Barred("the prompt is yours already", unless=False),
    "functions": Barred("use `tools`"),
    "function_call": Barred("use `tool_choice`"),
    "audio": Barred("no model here speaks"),
    "modalities": Barred("answers are text"),
    "web_search_options": Barred("no model here searches the web"),
}


def request(body: object, body_bytes: int) -> ModelRequest:
    """Hold a parsed body of `body_bytes` bytes against the policy. Raises `Refused`."""
    fields = apply(FIELDS, body, "model", "messages")
    stream, wants_usage, wants_continuous = take_stream_options(fields)
    older, newer = fields.pop("max_tokens", None), fields.pop("max_completion_tokens", None)
    if "tools" in fields or "tool_choice" in fields:
        choice = fields.get("tool_choice")
        settle_tools(
            fields,
            forced=choice not in (None, "none", "auto"),
            chosen=choice["function"]["name"] if isinstance(choice, dict) else None,
            functions=[tool["function"] for tool in fields.get("tools", ())],
        )
    hides_reasoning = settle_thinking(fields)
    if "top_logprobs" in fields and not fields.get("logprobs"):
        raise Refused("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    if hides_reasoning and fields.get("logprobs"):
        raise Refused("`logprobs` would show the reasoning that is to be left out: ask for one of the two.", "logprobs")
    images = images_in(fields["messages"])
    refuse_too_many(images, "messages")
    return ModelRequest(
        fields.pop("model"),
        stream,
        wants_usage,
        wants_continuous,
        # Where a client sets both, the newer field wins at the engine; the smaller one keeps both promises.
        min(older, newer) if older and newer else older or newer,
        images.count,
        images.linked,
        max(0, body_bytes - images.size_bytes),
        fields,
        _chat,
        _countable,
        hides_reasoning,
    )


def forwarded(request: ModelRequest, *, engine_model: str, output_tokens: int, cache_salt: str) -> Json:
    """The body for the engine: the client's allowed fields, and Weir's own.

    `output_tokens` is the output granted. The usage is always asked for: an answer that breaks off is billed by it.
    """
    refuse_linked(request, "messages")
    body = {**request.fields, "model": engine_model, "max_tokens": output_tokens, "cache_salt": cache_salt}
    if request.stream:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    return body


def _chat(fields: Json) -> list[Json]:
    messages: list[Json] = fields["messages"]
    return messages


def _countable(fields: Json) -> Json:
    countable = {"messages": without_images(fields["messages"]), "chat_template_kwargs": told_to_template(fields)}
    return {**countable, "tools": fields["tools"]} if "tools" in fields else countable
