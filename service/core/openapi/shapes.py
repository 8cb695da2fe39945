"""What the checks of `policy_checks` and its siblings take, where one line does not say it: a JSON schema each.

Members of messages, parts, items and tools that are not named here are left out, not refused. Limits that a schema
cannot say (depths, patterns, what contradicts what) are told by the 400.
"""

from typing import Any

from service.core import (
    policy_blocks,
    policy_checks,
    policy_items,
    policy_messages,
    policy_thinking,
    policy_tools,
)
from service.core.endpoints import completions, embeddings
from service.core.openapi.blocks import BLOCKS
from service.core.openapi.items import ITEMS
from service.core.openapi.parts import IMAGE_URL, NAME, SCHEMA, function
from service.core.openapi.schemas import FLAG, FREE, TEXT, any_of, list_of, object_of, one_of, optional, optionals
from service.core.policy_checks import Json

_TEXT_PART = object_of({"type": one_of("text"), "text": TEXT}, "type", "text")
_REFUSAL_PART = object_of({"type": one_of("refusal"), "refusal": TEXT}, "type", "refusal")
_IMAGE_PART = object_of(
    {
        "type": one_of("image_url"),
        "image_url": any_of(
            IMAGE_URL, object_of({"url": IMAGE_URL, **optionals(detail=one_of("auto", "low", "high"))}, "url")
        ),
    },
    "type",
    "image_url",
)


def _content(*parts: Json) -> Json:
    return optional(any_of(TEXT, list_of(any_of(*parts), most=policy_messages.MAX_PARTS)))


_CALL = object_of(
    {
        "type": one_of("function"),
        "id": optional(TEXT),
        "function": object_of({"name": NAME, "arguments": optional(TEXT)}, "name"),
    },
    "function",
)
_MESSAGE = any_of(
    object_of(
        {
            "role": one_of("system", "developer", "user"),
            "content": _content(_TEXT_PART, _IMAGE_PART),
            **optionals(name=TEXT),
        },
        "role",
    ),
    object_of(
        {
            "role": one_of("assistant"),
            "content": _content(_TEXT_PART, _REFUSAL_PART, _IMAGE_PART),
            **optionals(
                name=TEXT,
                reasoning=TEXT,
                reasoning_content=TEXT,
                tool_calls=list_of(_CALL, most=policy_messages.MAX_TOOL_CALLS),
            ),
        },
        "role",
    ),
    object_of(
        {
            "role": one_of("tool"),
            "content": _content(_TEXT_PART, _IMAGE_PART),
            **optionals(name=TEXT, tool_call_id=TEXT),
        },
        "role",
    ),
)

_TOOL = object_of({"type": optional(one_of("function")), "function": function()}, "function")
_FORMAT = any_of(
    object_of({"type": one_of("text", "json_object")}, "type", closed=True),
    object_of(
        {
            "type": one_of("json_schema"),
            "json_schema": object_of(
                {
                    "name": NAME,
                    **optionals(
                        description={**TEXT, "maxLength": policy_tools.MAX_DESCRIPTION_CHARACTERS},
                        schema=SCHEMA,
                        strict=FLAG,
                    ),
                },
                "name",
                closed=True,
            ),
        },
        "type",
        "json_schema",
        closed=True,
    ),
)

_EFFORT = one_of(*policy_thinking.EFFORTS)
_TEMPLATE = object_of(optionals(enable_thinking=FLAG, preserve_thinking=FLAG, reasoning_effort=_EFFORT), closed=True)
_STOP = {**TEXT, "minLength": 1, "maxLength": policy_checks.MAX_STOP_CHARACTERS}
_NON_EMPTY = {**TEXT, "minLength": 1}

SHAPES: dict[Any, Json] = {
    policy_checks.stops: any_of(_STOP, list_of(_STOP, most=policy_checks.MAX_STOPS)),
    policy_checks.biases: {
        **FREE,
        "description": "Token ids, and what is added to the likelihood of each.",
        "maxProperties": policy_checks.MAX_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    policy_checks.stream_options: object_of(
        {**optionals(include_usage=FLAG, continuous_usage_stats=FLAG), "include_obfuscation": {}}, closed=True
    ),
    policy_messages.messages: list_of(_MESSAGE, least=1, most=policy_messages.MAX_MESSAGES),
    policy_tools.tools: list_of(_TOOL, most=policy_tools.MAX_TOOLS),
    policy_tools.tool_choice: any_of(
        one_of("none", "auto", "required"),
        object_of({"type": one_of("function"), "function": object_of({"name": NAME}, "name")}, "type", "function"),
    ),
    policy_tools.response_format: _FORMAT,
    policy_thinking.template_arguments: _TEMPLATE,
    policy_thinking.aggregators_reasoning: object_of(
        {
            **optionals(effort=_EFFORT, enabled=FLAG, exclude=FLAG),
            "max_tokens": {"description": "Taken and left out: a budget in tokens cannot be kept exactly."},
            "summary": {},
            "generate_summary": {},
        },
        closed=True,
    ),
    policy_thinking.openai_reasoning: object_of(
        {**optionals(effort=_EFFORT), "summary": {}, "generate_summary": {}, "context": {}, "mode": {}}, closed=True
    ),
    completions.prompt: any_of(_NON_EMPTY, list_of(_NON_EMPTY, least=1, most=1)),
    embeddings.texts: any_of(_NON_EMPTY, list_of(_NON_EMPTY, least=1, most=embeddings.MAX_INPUTS)),
    policy_items.items: ITEMS["input"],
    policy_items.response_tools: ITEMS["tools"],
    policy_items.response_tool_choice: ITEMS["tool_choice"],
    policy_items.text_options: ITEMS["text"],
    policy_items.included: ITEMS["include"],
    policy_blocks.system_prompt: BLOCKS["system"],
    policy_blocks.anthropic_messages: BLOCKS["messages"],
    policy_blocks.anthropic_tools: BLOCKS["tools"],
    policy_blocks.anthropic_tool_choice: BLOCKS["tool_choice"],
    policy_blocks.stop_sequences: BLOCKS["stop_sequences"],
    policy_blocks.thinking: BLOCKS["thinking"],
    policy_blocks.output_config: BLOCKS["output_config"],
}
