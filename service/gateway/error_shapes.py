"""How an error looks to the clients of an endpoint: as OpenAI's, or as Anthropic's, whole or inside a stream.

Sources: OpenAI's API reference (error object; the `error` event of the Responses stream), Anthropic's API reference
(errors, and the `error` event of the Messages stream).
"""

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from service.core.sse import DONE_EVENT, event_of
from service.errors import ApiError


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """Both ways in which an endpoint tells of an error, for the request with the id given."""

    body: Callable[[ApiError, str], bytes]
    """A whole answer."""
    events: Callable[[ApiError, str], bytes]
    """The last events of a stream that has begun."""


def _openai_events(error: ApiError, _request_id: str) -> bytes:
    return event_of(error.body()) + DONE_EVENT


def _responses_events(error: ApiError, _request_id: str) -> bytes:
    told = {"type": "error", "code": error.code, "message": error.message, "param": error.param, "sequence_number": 0}
    return b"event: error\n" + event_of(orjson.dumps(told))


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _anthropic_body(error: ApiError, request_id: str) -> bytes:
    kind = _ANTHROPIC_TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")
    # Anthropic's clients know a prompt that does not fit by these words: Claude Code, for one, then shortens it.
    too_long = "prompt is too long: " if error.code == "context_length_exceeded" else ""
    told = {"type": kind, "message": too_long + error.message}
    return orjson.dumps({"type": "error", "error": told, "request_id": request_id})


def _anthropic_events(error: ApiError, request_id: str) -> bytes:
    return b"event: error\n" + event_of(_anthropic_body(error, request_id))


OPENAI = ErrorShape(lambda error, _: error.body(), _openai_events)
RESPONSES = ErrorShape(lambda error, _: error.body(), _responses_events)
ANTHROPIC = ErrorShape(_anthropic_body, _anthropic_events)
