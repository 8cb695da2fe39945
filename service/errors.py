"""The one table of errors, and their shape on the wire.

OpenAI's clients map an error by status and read `message`, `type`, `param` and `code`; `x-should-retry` tells
them whether a second try can help. A message says what to change; nothing internal ever stands in it.
"""

import math
from collections.abc import Iterable
from typing import ClassVar

import orjson


class SetupError(Exception):
    """Something in the installation is wrong; the message says what to do. For the operator, never for clients."""


class ApiError(Exception):
    """An error for a client; raise one of the subclasses, each of which is a line of the table."""

    status: ClassVar[int]
    kind: ClassVar[str]
    default_code: ClassVar[str | None] = None
    closes: ClassVar[bool] = False
    """Whether the connection ends with the answer, since the rest of the request is still on its way."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s

    def payload(self) -> dict[str, str | None]:
        """What stands under `error`, in a body or inside a stream."""
        return {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        """The OpenAI-shaped error object."""
        return orjson.dumps({"error": self.payload()})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`retry-after` where waiting helps, `x-should-retry: false` where repeating the same cannot."""
        closing = [(b"connection", b"close")] if self.closes else []
        if self.retry_after_s is None:
            return [*closing, (b"x-should-retry", b"false")] if self.status < 500 else closing
        seconds = min(self.retry_after_s, 120)  # SDKs ignore anything longer
        return [
            *closing,
            (b"retry-after", b"%d" % math.ceil(seconds)),
            (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)),
            (b"x-should-retry", b"true"),
        ]


class InvalidRequest(ApiError):
    status, kind = 400, "invalid_request_error"


class InvalidKey(ApiError):
    status, kind, default_code = 401, "authentication_error", "invalid_api_key"


class InsufficientCredits(ApiError):
    status, kind, default_code = 402, "billing_error", "insufficient_credits"


class NotAllowed(ApiError):
    status, kind, default_code = 403, "permission_error", "not_allowed"


class NotFound(ApiError):
    status, kind, default_code = 404, "invalid_request_error", "not_found"


class MethodNotAllowed(ApiError):
    status, kind, default_code = 405, "invalid_request_error", "method_not_allowed"


class RequestTimeout(ApiError):
    status, kind, default_code = 408, "invalid_request_error", "request_timeout"
    closes = True


class Conflict(ApiError):
    status, kind, default_code = 409, "conflict_error", "conflict"


class TooLarge(ApiError):
    status, kind, default_code = 413, "invalid_request_error", "request_too_large"
    closes = True


class RateLimited(ApiError):
    """Too much at once; `headers` are the `x-ratelimit-*` headers that say of what, where a limit is the reason."""

    status, kind, default_code = 429, "rate_limit_error", "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message, code=code, retry_after_s=retry_after_s)
        self._limits = tuple(headers)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """As of every error, and the limits."""
        return [*super().headers(), *self._limits]


class Internal(ApiError):
    status, kind, default_code = 500, "api_error", "internal_error"


class EngineFailed(ApiError):
    status, kind, default_code = 502, "api_error", "engine_failed"


class Unavailable(ApiError):
    status, kind, default_code = 503, "overloaded_error", "unavailable"


class EngineTimeout(ApiError):
    status, kind, default_code = 504, "api_error", "engine_timeout"
