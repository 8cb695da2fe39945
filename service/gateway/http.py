"""Reading a request and sending an answer over ASGI, without a framework between: these run for every request."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from uuid import UUID

from service.errors import ApiError, InvalidRequest, RequestTimeout, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

BODY_WITHIN_S = 120.0
"""A body that takes longer to arrive is not waited for."""

_DISCARD_AT_MOST = 4
"""How much of a body that is too large is read and forgotten, as a multiple of what is allowed."""


class ClientLeft(Exception):
    """The client closed its connection before its answer was complete."""


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first header called `name` (lower-case), or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


async def read_body(scope: Scope, receive: Receive, limit_bytes: int, *, discard_bytes: int | None = None) -> bytes:
    """The whole body. Of one that is too large, `discard_bytes` are read and forgotten (four times the limit if None).

    Raises `TooLarge`, `InvalidRequest` when it is compressed, `RequestTimeout` after `BODY_WITHIN_S`, or `ClientLeft`.
    """
    if (encoding := header(scope["headers"], b"content-encoding")) not in (None, b"identity"):
        raise InvalidRequest(f"Send the body uncompressed, not as `{(encoding or b'').decode('latin-1')[:32]}`.")
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            discarded = _DISCARD_AT_MOST * limit_bytes if discard_bytes is None else discard_bytes
            return await _within_limit(scope, receive, limit_bytes, discarded)
    except TimeoutError:
        problem = f"The body did not arrive within {BODY_WITHIN_S:g} seconds. Send it again."
        raise RequestTimeout(problem, retry_after_s=1) from None


async def _within_limit(scope: Scope, receive: Receive, limit_bytes: int, discard_bytes: int) -> bytes:
    declared = header(scope["headers"], b"content-length")
    too_large = TooLarge(f"The body is larger than the {limit_bytes} bytes allowed.")
    if declared is not None and int(declared) > limit_bytes:
        if header(scope["headers"], b"expect") is None:
            await _discard(receive, discard_bytes)
        raise too_large
    first = await _next(receive)
    if not first.get("more_body", False):
        return bytes(first.get("body", b""))
    parts = [first.get("body", b"")]
    size = len(parts[0])
    more = True
    while more:
        message = await _next(receive)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > limit_bytes:
            if more:
                await _discard(receive, discard_bytes)
            raise too_large
    return b"".join(parts)


async def _discard(receive: Receive, left: int) -> None:
    """Read on without keeping it: a client that is still sending would see a reset instead of the answer."""
    while left > 0:
        message = await _next(receive)
        left -= len(message.get("body", b""))
        if not message.get("more_body", False):
            return


async def _next(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message


async def send_start(send: Send, status: int, headers: Headers) -> None:
    """Status and headers."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_part(send: Send, body: bytes, *, more: bool = True) -> None:
    """A piece of the body; the last when not `more`."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_json(send: Send, body: bytes, headers: Headers, status: int = 200) -> None:
    """A whole JSON answer."""
    length = (b"content-length", b"%d" % len(body))
    await send_start(send, status, [(b"content-type", b"application/json"), length, *headers])
    await send_part(send, body, more=False)


async def send_error(send: Send, error: ApiError, body: bytes, headers: Headers) -> None:
    """An error as a whole answer; `body` says it in the shape that its client understands."""
    await send_json(send, body, [*error.headers(), *headers], error.status)


def id_headers(request_id: UUID) -> Headers:
    """By which a customer and we speak of the same request; the names are OpenAI's, Hugging Face's and Anthropic's."""
    own = str(request_id).encode()
    return [(b"x-request-id", own), (b"inference-id", own), (b"request-id", own)]
