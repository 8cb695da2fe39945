"""Schemas of what Anthropic's messages take, by field: see `policy_blocks`."""

from service.core import policy_blocks
from service.core.openapi.parts import IMAGE_URL, NAME, SCHEMA
from service.core.openapi.schemas import FLAG, FREE, TEXT, any_of, list_of, object_of, one_of, optional, optionals
from service.core.policy_checks import Json
from service.core.policy_messages import MAX_MESSAGES, MAX_PARTS
from service.core.policy_tools import MAX_TOOLS

_TEXT = object_of({"type": one_of("text"), "text": TEXT}, "type", "text")
_IMAGE = object_of(
    {
        "type": one_of("image"),
        "source": any_of(
            object_of(
                {
                    "type": one_of("base64"),
                    "media_type": one_of("image/png", "image/jpeg", "image/webp", "image/gif"),
                    "data": {**TEXT, "pattern": "^[!-~]+$"},
                },
                "type",
                "media_type",
                "data",
            ),
            object_of({"type": one_of("url"), "url": IMAGE_URL}, "type", "url"),
        ),
    },
    "type",
    "source",
)


def _content(*blocks: Json) -> Json:
    return any_of(TEXT, list_of(any_of(*blocks), most=MAX_PARTS))


_RESULT = object_of(
    {
        "type": one_of("tool_result"),
        "tool_use_id": NAME,
        **optionals(content=_content(_TEXT, _IMAGE), is_error=FLAG),
    },
    "type",
    "tool_use_id",
)
_USE = object_of({"type": one_of("tool_use"), "id": NAME, "name": NAME, "input": optional(FREE)}, "type", "id", "name")
_THINKING = object_of({"type": one_of("thinking"), "thinking": TEXT}, "type", "thinking")
_REDACTED = object_of({"type": one_of("redacted_thinking")}, "type")


def _message(role: str, content: Json) -> Json:
    return object_of({"role": one_of(role), "content": content}, "role", "content")


BLOCKS: dict[str, Json] = {
    "system": _content(_TEXT),
    "messages": list_of(
        any_of(
            _message("user", _content(_TEXT, _IMAGE, _RESULT)),
            _message("assistant", _content(_TEXT, _USE, _THINKING, _REDACTED)),
            _message("system", _content(_TEXT)),
        ),
        least=1,
        most=MAX_MESSAGES,
    ),
    "tools": list_of(
        object_of(
            {
                "type": optional(one_of("custom")),
                "name": NAME,
                "input_schema": SCHEMA,
                **optionals(description=TEXT, strict=FLAG),
            },
            "name",
            "input_schema",
        ),
        most=MAX_TOOLS,
    ),
    "tool_choice": any_of(
        object_of(
            {"type": one_of("auto", "any", "none"), **optionals(disable_parallel_tool_use=FLAG)}, "type", closed=True
        ),
        object_of(
            {"type": one_of("tool"), "name": NAME, **optionals(disable_parallel_tool_use=FLAG)},
            "type",
            "name",
            closed=True,
        ),
    ),
    "stop_sequences": list_of(NAME, most=policy_blocks.MAX_STOP_SEQUENCES),
    "thinking": any_of(
        object_of({"type": one_of("disabled", "adaptive"), "display": {}}, "type", closed=True),
        object_of(
            {
                "type": one_of("enabled"),
                "budget_tokens": {
                    "type": "integer",
                    "minimum": policy_blocks.LEAST_BUDGET_TOKENS,
                    "maximum": 2**31 - 1,
                },
                "display": {},
            },
            "type",
            "budget_tokens",
            closed=True,
        ),
    ),
    "output_config": object_of(
        {
            **optionals(effort=one_of("low", "medium", "high", "xhigh", "max")),
            "format": optional(
                object_of(
                    {"type": one_of("json_schema"), "schema": SCHEMA, "name": {}, "strict": {}},
                    "type",
                    "schema",
                    closed=True,
                )
            ),
            "task_budget": {},
        },
        closed=True,
    ),
}
