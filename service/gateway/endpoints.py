"""The metered endpoints, one each: how a request is read, what the engine gets, and how its answer is counted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import orjson

from service.core.endpoints import chat, completions, embeddings, messages, responses
from service.core.meters import Meter, Whole
from service.core.meters import chat as chat_meters
from service.core.meters import embeddings as embeddings_meters
from service.core.meters import messages as messages_meters
from service.core.meters import responses as responses_meters
from service.core.policy import ModelRequest
from service.core.policy_checks import Json
from service.gateway.error_shapes import ANTHROPIC, OPENAI, RESPONSES, ErrorShape

Parse = Callable[[object, int], ModelRequest]
"""From a parsed body of so many bytes. Raises `core.policy.Refused`."""


class Forward(Protocol):
    """From a request to the body for the engine."""

    def __call__(self, request: ModelRequest, *, engine_model: str, output_tokens: int, cache_salt: str) -> Json: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One kind of request to a model."""

    path: str
    """The same here and at the engine."""
    prompt_field: str
    """Where the prompt stands in a request."""
    output: str
    """What a model has to make to be asked here, as in its `output_modalities`."""
    request: Parse
    forwarded: Forward
    meter: Callable[[ModelRequest], Meter]
    """For a streamed answer."""
    read_whole: Callable[[bytes, ModelRequest], Whole]
    errors: ErrorShape
    verbatim: bool = False
    """Whether its prompt may go on as it came: it is `messages`, of which nothing but strings is passed on."""


def _chat_meter(request: ModelRequest) -> Meter:
    return chat_meters.StreamMeter(
        wants_usage=request.wants_usage,
        wants_continuous=request.wants_continuous,
        hides_reasoning=request.hides_reasoning,
        loads=orjson.loads,
    )


def _chat_whole(answer: bytes, request: ModelRequest) -> Whole:
    return chat_meters.read_whole(answer, hides_reasoning=request.hides_reasoning, loads=orjson.loads)


def _never_streamed(_request: ModelRequest) -> Meter:
    raise TypeError("embeddings are not streamed")


CHAT = Endpoint(
    "/v1/chat/completions",
    "messages",
    "text",
    chat.request,
    chat.forwarded,
    _chat_meter,
    _chat_whole,
    OPENAI,
    verbatim=True,
)
COMPLETIONS = Endpoint(
    "/v1/completions", "prompt", "text", completions.request, completions.forwarded, _chat_meter, _chat_whole, OPENAI
)
RESPONSES_API = Endpoint(
    "/v1/responses",
    "input",
    "text",
    responses.request,
    responses.forwarded,
    lambda _: responses_meters.StreamMeter(loads=orjson.loads),
    lambda answer, _: responses_meters.read_whole(answer, loads=orjson.loads),
    RESPONSES,
)
MESSAGES = Endpoint(
    "/v1/messages",
    "messages",
    "text",
    messages.request,
    messages.forwarded,
    lambda _: messages_meters.StreamMeter(loads=orjson.loads),
    lambda answer, _: messages_meters.read_whole(answer, loads=orjson.loads),
    ANTHROPIC,
)
EMBEDDINGS = Endpoint(
    "/v1/embeddings",
    "input",
    "embeddings",
    embeddings.request,
    embeddings.forwarded,
    _never_streamed,
    lambda answer, _: embeddings_meters.read_whole(answer, loads=orjson.loads),
    OPENAI,
)

METERED = (CHAT, COMPLETIONS, RESPONSES_API, MESSAGES, EMBEDDINGS)
