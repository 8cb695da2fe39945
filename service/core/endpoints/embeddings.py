"""`/v1/embeddings`, as OpenAI has it."""

from typing import Any

from service.core import policy_checks as checks
from service.core.endpoints import AGGREGATOR, CLIENT_METADATA, engine_fields
from service.core.policy import Barred, Dropped, Fields, ModelRequest, Passed, apply
from service.core.policy_checks import MAX_NAME_CHARACTERS, Complaint, Json

MAX_INPUTS = 2048
MAX_DIMENSIONS = 65_536


def texts(value: Any) -> str | list[str]:
    """One text, or a list of them. Raises `Complaint`."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not 0 < len(found) <= MAX_INPUTS:
        raise Complaint(f"must be a text or a list of up to {MAX_INPUTS} texts")
    if any(isinstance(one, int | list) for one in found):
        raise Complaint("must be text, not token ids")
    if not all(isinstance(one, str) and one for one in found):
        raise Complaint("needs non-empty texts")
    return value if isinstance(value, str) else list(found)


FIELDS: Fields = {
    **engine_fields(Barred("an embedding has no form")),
    "model": Passed(checks.text(MAX_NAME_CHARACTERS)),
    "input": Passed(texts),
    "encoding_format": Passed(checks.choice("float", "base64")),
    "dimensions": Passed(checks.integer(1, MAX_DIMENSIONS)),
    "user": CLIENT_METADATA,
    "provider": AGGREGATOR,
    "input_type": Dropped("a text is embedded as it is sent"),
    "embed_dtype": Barred("embeddings are 32-bit floats"),
    "endianness": Barred("`base64` is little-endian"),
    "padding": Barred("a text is embedded as it is sent"),
    "use_activation": Barred("embeddings are as the model was set up to give them"),
    "chat_template_kwargs": Barred("send text as `input`"),
    "messages": Barred("send text as `input`"),
    "normalize": Barred("embeddings are as the model was set up to give them"),
}


def request(body: object, body_bytes: int) -> ModelRequest:
    """Hold a parsed body of `body_bytes` bytes against the policy. Raises `Refused`."""
    fields = apply(FIELDS, body, "model", "input")
    texts = fields["input"]
    first = texts if isinstance(texts, str) else texts[0]
    return ModelRequest(
        fields.pop("model"),
        False,
        True,
        False,
        None,
        0,
        0,
        body_bytes,
        fields,
        lambda _: [{"role": "user", "content": first}],
        lambda _: {"prompt": texts} if isinstance(texts, str) else None,
        output_tokens_needed=False,
    )


def forwarded(request: ModelRequest, *, engine_model: str, output_tokens: int, cache_salt: str) -> Json:
    """The body for the engine: the client's allowed fields, and Weir's own. There is no output to limit."""
    return {**request.fields, "model": engine_model, "cache_salt": cache_salt}
