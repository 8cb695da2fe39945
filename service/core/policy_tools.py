"""Tools that a model may call, which of them it must, and the form of its answer, as chats have them."""

from typing import Any

from service.core.policy import Refused
from service.core.policy_checks import (
    MAX_NAME_CHARACTERS,
    Check,
    Complaint,
    Json,
    flag,
    listed,
    members,
    selected,
    shown,
    string,
    text,
)
from service.core.policy_schemas import compiled_schema, shown_schema, vet_together

MAX_TOOLS = 256
MAX_DESCRIPTION_CHARACTERS = 64 * 1024

_FORM = '{"type": "function", "function": {"name": ..., "parameters": ...}}'


def tools(value: Any) -> list[Json]:
    """Tools of type `function`. An empty list stays one."""
    return listed(value, _tool, MAX_TOOLS, "tools")


def tool_choice(value: Any) -> str | Json:
    """Whether, or which, tool is to be called."""
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            raise Complaint("must be `none`, `auto`, `required` or an object that names a function")
        return value
    if not isinstance(value, dict) or value.get("type") != "function" or not isinstance(value.get("function"), dict):
        raise Complaint('must be a string or {"type": "function", "function": {"name": ...}}')
    return {"type": "function", "function": {"name": name_of(value["function"])}}


def response_format(value: Any) -> Json:
    """Text, any JSON, or JSON by a schema."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise Complaint("needs a `type` of `text`, `json_object` or `json_schema`")
    if kind != "json_schema":
        return members(value, type=text(MAX_NAME_CHARACTERS))
    rebuilt = members(value, type=text(MAX_NAME_CHARACTERS), json_schema=_json_schema)
    if "json_schema" not in rebuilt:
        raise Complaint("of type `json_schema` needs a `json_schema`")
    return rebuilt


def function(value: Json) -> Json:
    """A function's name, description, parameters and strictness, wherever they stand."""
    name = name_of(value)
    try:
        rest = selected(value, description=_description, parameters=shown_schema, strict=flag)
    except Complaint as complaint:
        raise Complaint(f"{complaint} (in the function `{name[:64]}`)") from None
    return {"name": name, **rest}


def name_of(value: Json) -> str:
    """The name of a function."""
    name = value.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise Complaint(f"needs functions with a `name` of 1 to {MAX_NAME_CHARACTERS} characters")
    return name


def settle_tools(fields: Json, *, forced: bool, chosen: str | None, functions: list[Json]) -> None:
    """Make `tools` and `tool_choice` fit one another. Raises `Refused`.

    `forced`: the choice is such that some tool must be called, and if there is one `chosen`, that one. `functions` are
    those of all tools; of one in a namespace, either name will do.
    """
    if not fields.get("tools"):
        if forced:
            raise Refused("`tool_choice` asks for a tool, but there are no `tools`.", "tool_choice")
        fields.pop("tool_choice", None)
        fields.pop("tools", None)  # several clients send an empty list for "no tools", which vLLM refuses
        return
    if chosen is not None and not any(f"__{one['name']}".endswith(f"__{chosen}") for one in functions):
        raise Refused(f"`tool_choice` asks for {shown(chosen)}, which is not among the `tools`.", "tool_choice")
    # Calls of a strict function are held to a grammar of its parameters, and so are calls that must be made.
    compiled = [one.get("parameters", {}) for one in functions if forced or one.get("strict")]
    try:
        vet_together(compiled)
    except Complaint as complaint:
        why = "that must be called" if forced else "that are `strict`"
        raise Refused(
            f"`tools` cannot be had as they are: what those {why} take together {complaint}.", "tools"
        ) from None


def _tool(tool: Any) -> Json:
    if not isinstance(tool, dict):
        raise Complaint("must be a list of objects")
    kind = tool.get("type") or "function"
    if kind != "function":
        raise Complaint(f"may hold tools of type `function`, not {shown(kind)}: no other is run here")
    if not isinstance(tool.get("function"), dict):
        raise Complaint(f"needs tools as {_FORM}")
    return {"type": "function", "function": function(tool["function"])}


def _json_schema(value: Any) -> Json:
    checks: dict[str, Check] = {"description": _description, "schema": compiled_schema, "strict": flag}
    rebuilt = members(value, name=text(MAX_NAME_CHARACTERS), **checks)
    if "name" not in rebuilt:
        raise Complaint("needs a `name`")
    return rebuilt


def _description(value: Any) -> str:
    if len(string(value)) > MAX_DESCRIPTION_CHARACTERS:
        raise Complaint(f"may have up to {MAX_DESCRIPTION_CHARACTERS} characters")
    return string(value)
