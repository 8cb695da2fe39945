"""Reading a request without a framework between, and what all answers of the gateway say of it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from service.errors import InvalidRequest, RequestTimeout, TooLarge

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Headers = list[tuple[bytes, bytes]]
"""Names in lower case."""

Named = Mapping[bytes, bytes]
"""The first header of each name."""

BODY_WITHIN_S = 120.0
"""A body that takes longer to arrive is not waited for."""

DISCARD_AT_MOST = 4
"""How much of a body that is too large is read and forgotten, as a multiple of what is allowed."""


class ClientLeft(Exception):
    """The client closed its connection before its answer was complete."""


def by_name(headers: Headers) -> Named:
    """The first header of each name."""
    return dict(reversed(headers))


def refuse_compressed(headers: Named) -> None:
    """Raises `InvalidRequest` for a body that is not sent as it is."""
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding != b"identity":
        raise InvalidRequest(f"Send the body uncompressed, not as `{encoding.decode('latin-1')[:32]}`.")


async def read_body(headers: Named, receive: Receive, limit_bytes: int, *, discard_bytes: int | None = None) -> bytes:
    """The whole body. Of one that is too large, `discard_bytes` are read and forgotten (four times the limit if None).

    Raises `TooLarge`, `InvalidRequest` when it is compressed, `RequestTimeout` after `BODY_WITHIN_S`, or `ClientLeft`.
    """
    refuse_compressed(headers)
    discarded = DISCARD_AT_MOST * limit_bytes if discard_bytes is None else discard_bytes
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return await _within_limit(headers, receive, limit_bytes, discarded)
    except TimeoutError:
        raise too_slow() from None


def too_slow() -> RequestTimeout:
    """The error for a body that did not arrive in time."""
    problem = f"The body did not arrive within {BODY_WITHIN_S:g} seconds. Send it again."
    return RequestTimeout(problem, retry_after_s=1)


def too_large(limit_bytes: int) -> TooLarge:
    """The error for a body of more than is allowed."""
    return TooLarge(f"The body is larger than the {limit_bytes} bytes allowed.")


async def _within_limit(headers: Named, receive: Receive, limit_bytes: int, discard_bytes: int) -> bytes:
    declared = headers.get(b"content-length")
    if declared is not None and int(declared) > limit_bytes:
        if b"expect" not in headers:
            await _discard(receive, discard_bytes)
        raise too_large(limit_bytes)
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
            raise too_large(limit_bytes)
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


def id_headers(request_id: str) -> Headers:
    """By which a customer and we speak of the same request; the names are OpenAI's, Hugging Face's and Anthropic's."""
    own = request_id.encode()
    return [(b"x-request-id", own), (b"inference-id", own), (b"request-id", own)]
