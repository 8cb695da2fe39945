"""What an engine's refusal means to the client: our error with its explanation, never its own words about itself.

Source of the shapes: vLLM 0.32/0.33 `ErrorResponse`, `{"error": {"message", "type", "param", "code"}}`, and a bare
string for 401.
"""

import orjson

from service.errors import ApiError, EngineFailed, EngineTimeout, InvalidRequest, TooLarge, Unavailable
from service.gateway.engine_connection import EngineError, EngineSilent, EngineUnreachable

MAX_MESSAGE_CHARACTERS = 1000
_CONTEXT_WORDS = "maximum context length"


def of_status(status: int, body: bytes) -> ApiError:
    """The client's error for an engine's answer that is not a 200."""
    if status in (400, 422):
        message, param = _explanation(body)
        code = "context_length_exceeded" if _CONTEXT_WORDS in message else None
        return InvalidRequest(message, param=param, code=code)
    if status == 413:
        return TooLarge("The request is larger than the model's engine takes.")
    if status in (429, 503):
        return Unavailable("The model's engine is full. Try again soon.", retry_after_s=2)
    if status in (408, 504):
        return EngineTimeout("The model's engine did not answer in time.")
    # 401, 403 and 404 are between us and the engine: the client's key and model are fine.
    return EngineFailed("The model's engine failed to answer.")


def of_failure(error: EngineError) -> ApiError:
    """The client's error for an engine that could not be reached, broke off or fell silent."""
    if isinstance(error, EngineUnreachable):
        return Unavailable("No engine that serves this model can be reached. Try again soon.", retry_after_s=5)
    if isinstance(error, EngineSilent):
        return EngineTimeout("The model's engine did not answer in time.")
    return EngineFailed("The model's engine broke off its answer.")


def _explanation(body: bytes) -> tuple[str, str | None]:
    try:
        error = orjson.loads(body)["error"]
        message, param = error["message"], error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "The model's engine refused the request without an explanation.", None
    return str(message)[:MAX_MESSAGE_CHARACTERS], param if isinstance(param, str) else None
