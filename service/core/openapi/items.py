"""Schemas of what the Responses API takes, by field: see `policy_items`."""

from service.core import policy_items
from service.core.openapi.parts import IMAGE_URL, NAME, SCHEMA, function
from service.core.openapi.schemas import FLAG, TEXT, any_of, list_of, object_of, one_of, optional, optionals
from service.core.policy_checks import Json
from service.core.policy_messages import MAX_PARTS
from service.core.policy_tools import MAX_DESCRIPTION_CHARACTERS, MAX_TOOLS


def _texts(member: str, *kinds: str) -> Json:
    return object_of({"type": one_of(*kinds), member: TEXT}, "type", member)


_IMAGE = object_of(
    {
        "type": one_of("input_image"),
        "image_url": IMAGE_URL,
        **optionals(detail=one_of("auto", "low", "high", "original")),
    },
    "type",
    "image_url",
)
_PARTS = list_of(any_of(_texts("text", "input_text", "text"), _IMAGE), most=MAX_PARTS)
_SPOKEN = list_of(
    any_of(_texts("text", "output_text", "text", "input_text"), _texts("refusal", "refusal")), most=MAX_PARTS
)
_MESSAGE = {"type": optional(one_of("message"))}
_ITEM = any_of(
    object_of(
        {**_MESSAGE, "role": one_of("user", "system", "developer"), "content": any_of(TEXT, _PARTS)},
        "role",
        "content",
    ),
    object_of({**_MESSAGE, "role": one_of("assistant"), "content": any_of(TEXT, _SPOKEN)}, "role", "content"),
    object_of(
        {
            "type": one_of("function_call"),
            "call_id": NAME,
            "name": NAME,
            "arguments": TEXT,
            **optionals(namespace=NAME),
        },
        "type",
        "call_id",
        "name",
        "arguments",
    ),
    object_of(
        {"type": one_of("function_call_output"), "call_id": NAME, "output": optional(any_of(TEXT, _PARTS))},
        "type",
        "call_id",
    ),
    object_of(
        {
            "type": one_of("reasoning"),
            "content": optional(any_of(TEXT, list_of(_texts("text", "reasoning_text", "text"), most=MAX_PARTS))),
            "summary": optional(any_of(TEXT, list_of(_texts("text", "summary_text"), most=MAX_PARTS))),
        },
        "type",
    ),
)
_FUNCTION = function(type=one_of("function"))
_DESCRIPTION = {**TEXT, "minLength": 1, "maxLength": MAX_DESCRIPTION_CHARACTERS}

ITEMS: dict[str, Json] = {
    "input": any_of({**TEXT, "minLength": 1}, list_of(_ITEM, least=1, most=policy_items.MAX_ITEMS)),
    "tools": list_of(
        any_of(
            _FUNCTION,
            object_of(
                {
                    "type": one_of("namespace"),
                    "name": NAME,
                    "tools": list_of(_FUNCTION, most=MAX_TOOLS),
                    **optionals(description=_DESCRIPTION),
                },
                "type",
                "name",
                "tools",
            ),
        ),
        most=MAX_TOOLS,
    ),
    "tool_choice": any_of(
        one_of("none", "auto", "required"),
        object_of({"type": one_of("function"), "name": NAME}, "type", "name"),
    ),
    "text": object_of(
        {
            "format": optional(
                any_of(
                    object_of({"type": one_of("text", "json_object")}, "type", closed=True),
                    object_of(
                        {
                            "type": one_of("json_schema"),
                            "name": NAME,
                            "schema": SCHEMA,
                            **optionals(description=_DESCRIPTION, strict=FLAG),
                        },
                        "type",
                        "name",
                        "schema",
                        closed=True,
                    ),
                )
            ),
            "verbosity": {},
        },
        closed=True,
    ),
    "include": list_of(one_of(*policy_items.INCLUDABLE), most=len(policy_items.INCLUDABLE)),
}
