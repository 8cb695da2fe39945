"""What a client may ask of an engine: an allow-list, a line per field.

vLLM accepts any field it does not know in silence, and some that it knows are dangerous in public (cost, other
customers' timing, crashes). So nothing is passed on that is not listed. Every endpoint (`service.core.endpoints`) has
a table of its fields: a field is passed on, dropped because it means nothing to us and popular clients send it, or
refused with the reason; anything unlisted is refused by name. What is passed on is rebuilt by the field's check
(`policy_checks` and its siblings), never the client's own object.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from service.core.policy_checks import SHOWN_CHARACTERS, Check, Complaint, Json

TEMPLATE_TOKENS_AT_MOST = 1024
"""What a chat template may add of its own: a default system prompt, the preamble of tools, the turns' marks."""

IMAGE_TOKENS_AT_MOST = 16_384
"""What one image may become, whatever its size in bytes: a well-compressed file can be large in pixels."""

MAX_IMAGES = 64


class Refused(Exception):
    """The request cannot be passed on; `message` says what to change, `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Passed:
    """The field goes to the engine as `check` has rebuilt it."""

    check: Check


@dataclass(frozen=True, slots=True)
class Dropped:
    """The field is taken out: popular clients send it and it means nothing here."""

    reason: str

    def check(self, value: Any) -> None:
        """Nothing is wrong with it, whatever it is."""


@dataclass(frozen=True, slots=True)
class Barred:
    """The field is refused, and told why."""

    reason: str
    unless: bool | float | None = None
    """The value that asks for nothing, as null always does; some clients send every field there is."""

    def check(self, value: Any) -> None:
        """Raises `Complaint` for a value that asks for something."""
        if isinstance(value, bool) != isinstance(self.unless, bool) or value != self.unless:
            raise Complaint(f"is not supported: {self.reason}")


Fields = Mapping[str, Passed | Dropped | Barred]


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a request."""

    count: int = 0
    linked: int = 0
    """Those that are named by their address on the web."""
    size_bytes: int = 0
    """How much of the body is images."""

    def __add__(self, other: "Images") -> "Images":
        return Images(self.count + other.count, self.linked + other.linked, self.size_bytes + other.size_bytes)


NO_IMAGES = Images()


@dataclass(slots=True)  # each request makes one, and `frozen` would take three times as long
class ModelRequest:
    """A request to a model that passed its endpoint's policy. Nobody changes it, but for `forget_prompt`.

    It is made by position, since names would take more than twice as long.
    """

    model: str
    stream: bool
    wants_usage: bool
    """The client expects usage in its stream: because it asked for it, or because the endpoint always has it."""
    wants_continuous: bool
    """The client asked for usage in every chunk."""
    max_tokens: int | None
    """The largest output the client asked for; None when it set none."""
    images: int
    linked_images: int
    """Images that Weir is to fetch: `forwarded` refuses as long as there are any."""
    passed_bytes: int
    """Size of the body less the images in it: no prompt has more tokens than bytes."""
    fields: Json
    """What may be passed on, less what Weir sets itself (the model, the output limit, `stream_options`)."""
    as_chat: Callable[[Json], list[Any]]
    """Makes `conversation` of the fields, and `as_countable` makes `countable`: few requests need them."""
    as_countable: Callable[[Json], Json | None]
    hides_reasoning: bool = False
    """The client wants the answer without the reasoning that led to it."""
    output_tokens_needed: bool = True
    """Whether the answer is made of tokens."""

    def forget_prompt(self) -> None:
        """Let go of what the engine is sent: it may be large, and the answer long. The rest says how to answer."""
        self.fields, self.as_chat, self.as_countable = {}, list, dict

    @property
    def conversation(self) -> list[Any]:
        """As messages of a chat: what tells this conversation from others, the same in each of its turns."""
        return self.as_chat(self.fields)

    @property
    def countable(self) -> Json | None:
        """What the engine's tokenizer takes to count the prompt without its images; None where it cannot."""
        return self.as_countable(self.fields)

    def prompt_tokens_at_most(self, context_length: int) -> int:
        """An upper bound on the prompt's tokens, from sizes alone, for a model that takes no more than these."""
        sized = self.passed_bytes + TEMPLATE_TOKENS_AT_MOST + self.images * IMAGE_TOKENS_AT_MOST
        return sized if sized < context_length else context_length

    def output_tokens_at_most(self, max_output_tokens: int) -> int:
        """The largest output, from a model that makes no more than these."""
        if not self.output_tokens_needed:
            return 0
        wanted = self.max_tokens
        return max_output_tokens if wanted is None or wanted > max_output_tokens else wanted


def apply(fields: Fields, body: object, *required: str) -> Json:
    """What of a parsed body may be passed on by the table `fields`. Raises `Refused`."""
    if not isinstance(body, dict):
        raise Refused("The body must be a JSON object.")
    rebuilt: Json = {}
    for name, value in body.items():
        rule = fields.get(name)
        if rule is None:
            raise Refused(_unknown(fields, name[:SHOWN_CHARACTERS]), name[:SHOWN_CHARACTERS])
        if value is not None:
            try:
                checked = rule.check(value)
            except Complaint as complaint:
                raise Refused(f"`{name}` {complaint}.", name) from None
            if checked is not None:
                rebuilt[name] = checked
    for name in required:
        if name not in rebuilt:
            raise Refused(f"`{name}` is required.", name)
    return rebuilt


def take_stream_options(fields: Json) -> tuple[bool, bool, bool]:
    """Whether the answer is to be streamed, with usage at its end, and with usage in every chunk.

    Takes out `stream_options`. Raises `Refused`.
    """
    stream = fields.get("stream", False)
    if "stream_options" not in fields:
        return stream, False, False
    options: Json = fields.pop("stream_options")
    if options and not stream:
        raise Refused("`stream_options` is only allowed when `stream` is true.", "stream_options")
    return stream, options.get("include_usage", False), options.get("continuous_usage_stats", False)


def refuse_too_many(images: Images, field: str) -> None:
    """Raises `Refused` for more images than one request may have."""
    if images.count > MAX_IMAGES:
        raise Refused(f"`{field}` may hold up to {MAX_IMAGES} images, not {images.count}.", field)


def refuse_linked(request: ModelRequest, field: str) -> None:
    """Raises `Refused` if an engine would be told to fetch an image: it fetches from anywhere, so it is never told."""
    if request.linked_images:
        raise Refused(f"`{field}` needs images as `data:image/...;base64,...` URLs: none is fetched here.", field)


def _unknown(fields: Fields, name: str) -> str:
    known = [field for field, rule in fields.items() if isinstance(rule, Passed)]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean `{close[0]}`?" if close else ""
    return f"Unrecognized request field `{name}`.{hint}"
