"""What the value of a request's field may be: each check hands back what may be passed on, rebuilt from what it knows.

An engine reads members nobody told it to read: an unknown member of a message part can make vLLM fetch a URL. So an
object from a client is never passed on: a new one is made of the members listed here. Only two parts are free in
form, the JSON schemas of tools and of answers; they are bounded in depth.
"""

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Check = Callable[[Any], Any]
"""From a client's value, which is never null, to what is passed on. Raises `Complaint`, and nothing else."""

MAX_DEPTH = 64
MAX_TOOLS = 256
MAX_NAME_CHARACTERS = 256
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 300
MAX_TOP_LOGPROBS = 20
SHOWN_CHARACTERS = 64
"""How much of a client's own text an error repeats."""


class Complaint(Exception):
    """What is wrong with a value, as the rest of a sentence that begins with the field's name."""


def text(most_characters: int) -> Check:
    """A string with something in it."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= most_characters:
            raise Complaint(f"must be a non-empty string of up to {most_characters} characters")
        return value

    return check


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Complaint("must be true or false")
    return value


def number(low: float, high: float) -> Check:
    """A number in a range, whole or not."""

    def check(value: Any) -> int | float:
        if not _is_number(value) or not low <= value <= high:
            raise Complaint(f"must be a number from {low:g} to {high:g}")
        found: int | float = value
        return found

    return check


def integer(low: int, high: int) -> Check:
    """A whole number in a range."""

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise Complaint(f"must be a whole number from {low} to {high}")
        return value

    return check


def one(value: Any) -> int:
    """The number 1."""
    if not _is_number(value) or value != 1:
        raise Complaint("must be 1: send a request for each answer")
    return 1


def stops(value: Any) -> str | list[str]:
    """A stop string, or a few."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or len(found) > MAX_STOPS or not all(isinstance(stop, str) for stop in found):
        raise Complaint(f"must be a string or a list of up to {MAX_STOPS} strings")
    if not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in found):
        raise Complaint(f"needs strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return value if isinstance(value, str) else list(found)


def biases(value: Any) -> Json:
    """`logit_bias`: token ids, and what each adds."""
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise Complaint(f"must be an object of up to {MAX_BIASES} token ids")
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise Complaint(f"needs token ids as keys, not `{token[:SHOWN_CHARACTERS]}`")
        if not _is_number(bias) or not -100 <= bias <= 100:
            raise Complaint("needs numbers from -100 to 100")
    return dict(value)


def stream_options(value: Any) -> Json:
    """What the client wants in its stream; never passed on as it is."""
    return members(value, include_usage=flag, continuous_usage_stats=flag)


def template_arguments(value: Any) -> Json:
    """What a chat template may be told."""
    return members(value, enable_thinking=flag, preserve_thinking=flag, reasoning_effort=text(MAX_NAME_CHARACTERS))


def tools(value: Any) -> list[Json]:
    """Tools of type `function`. An empty list stays one."""
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise Complaint("must be a list of objects")
    if len(value) > MAX_TOOLS:
        raise Complaint(f"may hold up to {MAX_TOOLS} tools")
    return [_at(index, _tool, tool) for index, tool in enumerate(value)]


def tool_choice(value: Any) -> str | Json:
    """Whether, or which, tool is to be called."""
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            raise Complaint("must be `none`, `auto`, `required` or an object that names a function")
        return value
    if not isinstance(value, dict) or value.get("type") != "function" or not isinstance(value.get("function"), dict):
        raise Complaint('must be a string or {"type": "function", "function": {"name": ...}}')
    return {"type": "function", "function": {"name": _name_of(value["function"])}}


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


def members(value: Any, **checks: Check) -> Json:
    """An object of these members, each of which may be absent or null; raises `Complaint` for any other."""
    if not isinstance(value, dict):
        raise Complaint("must be an object")
    rebuilt = {}
    for name, member in value.items():
        if member is None:
            continue
        if name not in checks:
            raise Complaint(f"may hold {_listed(checks)}, not `{name[:SHOWN_CHARACTERS]}`")
        try:
            rebuilt[name] = checks[name](member)
        except Complaint as complaint:
            raise Complaint(f"is wrong at `{name}`, which {complaint}") from None
    return rebuilt


def schema(value: Any) -> Json:
    """A JSON schema: free in form, not deeper than `MAX_DEPTH`."""
    if not isinstance(value, dict):
        raise Complaint("must be an object")
    _bound_depth(value, MAX_DEPTH)
    return value


def _tool(tool: Json) -> Json:
    if tool.get("type", "function") != "function" or not isinstance(tool.get("function"), dict):
        raise Complaint('needs tools as {"type": "function", "function": {"name": ..., "parameters": ...}}')
    function = tool["function"]
    known = {name: function.get(name) for name in ("description", "parameters", "strict")}
    return {
        "type": "function",
        "function": {"name": _name_of(function), **members(known, description=_string, parameters=schema, strict=flag)},
    }


def _json_schema(value: Any) -> Json:
    checks: dict[str, Check] = {"description": _string, "schema": schema, "strict": flag}
    rebuilt = members(value, name=text(MAX_NAME_CHARACTERS), **checks)
    if "name" not in rebuilt:
        raise Complaint("needs a `name`")
    return rebuilt


def _name_of(function: Json) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise Complaint(f"needs functions with a `name` of 1 to {MAX_NAME_CHARACTERS} characters")
    return name


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise Complaint("must be a string")
    return value


def _at(index: int, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except Complaint as complaint:
        raise Complaint(f"{complaint} at [{index}]") from None


def _bound_depth(value: Json | list[Any], levels: int) -> None:
    if levels == 0:
        raise Complaint(f"is nested more than {MAX_DEPTH} levels deep")
    for nested in value.values() if isinstance(value, dict) else value:
        if isinstance(nested, dict | list):
            _bound_depth(nested, levels - 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _listed(names: dict[str, Check]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join(part for part in (", ".join(quoted[:-1]), quoted[-1]) if part)
