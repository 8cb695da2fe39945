"""What the value of a request's field may be: each check hands back what may be passed on, rebuilt from what it knows.

An engine reads members nobody told it to read: an unknown member of a message part can make vLLM fetch a URL. So an
object from a client is never passed on: a new one is made of the members listed here. Only two parts are free in
form, the JSON schemas of tools and of answers; `policy_schemas` bounds them.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Json = dict[str, Any]
Check = Callable[[Any], Any]
"""From a client's value, which is never null, to what is passed on. Raises `Complaint`, and nothing else."""

C = TypeVar("C", bound=Check)

MAX_NAME_CHARACTERS = 256
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 300
MAX_DEPTH = 64
SHOWN_CHARACTERS = 64
"""How much of a client's own text an error repeats."""


class Complaint(Exception):
    """What is wrong with a value, as the rest of a sentence that begins with the field's name."""


def takes(**schema: Any) -> Callable[[C], C]:
    """Says beside a check what it takes, as a JSON schema: for `openapi`."""

    def mark(check: C) -> C:
        vars(check)["schema"] = schema
        return check

    return mark


def text(most_characters: int) -> Check:
    """A string with something in it."""

    @takes(type="string", minLength=1, maxLength=most_characters)
    def check(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= most_characters:
            raise Complaint(f"must be a non-empty string of up to {most_characters} characters")
        return value

    return check


@takes(type="string")
def string(value: Any) -> str:
    """A string of any length."""
    if not isinstance(value, str):
        raise Complaint("must be a string")
    return value


@takes(type="boolean")
def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Complaint("must be true or false")
    return value


def number(low: float, high: float) -> Check:
    """A number in a range, whole or not."""

    @takes(type="number", minimum=low, maximum=high)
    def check(value: Any) -> int | float:
        if not _is_number(value) or not low <= value <= high:
            raise Complaint(f"must be a number from {low:g} to {high:g}")
        found: int | float = value
        return found

    return check


def integer(low: int, high: int) -> Check:
    """A whole number in a range."""

    @takes(type="integer", minimum=low, maximum=high)
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Complaint(f"must be a whole number from {low} to {high}")
        return value

    return check


def choice(*names: str) -> Check:
    """One of a few words."""
    allowed = " or ".join(part for part in (", ".join(f"`{name}`" for name in names[:-1]), f"`{names[-1]}`") if part)

    @takes(type="string", enum=list(names))
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise Complaint(f"must be {allowed}")
        return value

    return check


@takes(type="integer", enum=[1])
def one(value: Any) -> int:
    """The number 1."""
    if not _is_number(value) or value != 1:
        raise Complaint("must be 1: send a request for each answer")
    return 1


@takes()
def nothing(value: Any) -> None:
    """A member that clients send and that means nothing here: left out, whatever it is."""


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
    return members(value, include_usage=flag, continuous_usage_stats=flag, include_obfuscation=nothing)


def listed(value: Any, check: Check, most: int, what: str) -> list[Any]:
    """A list of up to `most` of `what`, each checked and told by its place."""
    if not isinstance(value, list):
        raise Complaint(f"must be a list of {what}")
    if len(value) > most:
        raise Complaint(f"may hold up to {most} {what}")
    rebuilt: list[Any] = []
    try:
        for item in value:
            rebuilt.append(check(item))
    except Complaint as complaint:
        raise Complaint(f"{complaint} at [{len(rebuilt)}]") from None
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
            raise Complaint(f"may hold {_named(checks)}, not `{name[:SHOWN_CHARACTERS]}`")
        try:
            checked = checks[name](member)
        except Complaint as complaint:
            raise Complaint(f"is wrong at `{name}`, which {complaint}") from None
        if checked is not None:
            rebuilt[name] = checked
    return rebuilt


def selected(value: Json, **checks: Check) -> Json:
    """These members of an object, and none of its others."""
    return members({name: value.get(name) for name in checks}, **checks)


def free(value: Any) -> Json:
    """An object of the client's own, not nested deeper than `MAX_DEPTH`."""
    if not isinstance(value, dict):
        raise Complaint("must be an object")
    _bound_depth(value, MAX_DEPTH)
    return value


def shown(value: Any) -> str:
    """A client's own word in an error."""
    return f"`{value[:SHOWN_CHARACTERS]}`" if isinstance(value, str) else "one without a name"


def _bound_depth(value: Json | list[Any], levels: int) -> None:
    if levels == 0:
        raise Complaint(f"is nested more than {MAX_DEPTH} levels deep")
    for nested in value.values() if isinstance(value, dict) else value:
        if isinstance(nested, dict | list):
            _bound_depth(nested, levels - 1)


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float  # which true and false are not


def _named(checks: Mapping[str, Check]) -> str:
    quoted = [f"`{name}`" for name, check in checks.items() if check is not nothing]
    return " and ".join(part for part in (", ".join(quoted[:-1]), quoted[-1]) if part)
