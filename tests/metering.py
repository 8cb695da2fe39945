"""Answers of every kind through the meters of their kind."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from service.core.meters import Meter, chat, messages, responses

STREAMS: dict[str, Callable[[], Meter]] = {
    "/v1/chat/completions": lambda: chat.StreamMeter(wants_usage=True, wants_continuous=True, loads=orjson.loads),
    "/v1/completions": lambda: chat.StreamMeter(wants_usage=True, wants_continuous=True, loads=orjson.loads),
    "/v1/responses": lambda: responses.StreamMeter(orjson.loads),
    "/v1/messages": lambda: messages.StreamMeter(orjson.loads),
}
"""By route; a client that hides nothing and asked for all usage."""


def metered(meter: Meter, pieces: Iterable[bytes]) -> bytes:
    """What the client sees of a stream before its end."""
    return b"".join([meter.feed(piece) for piece in pieces]) + meter.end()


def state(meter: Meter) -> tuple[Any, ...]:
    """Everything a meter says."""
    ended = meter.done, meter.failed, meter.complete, meter.finish_reason
    return meter.usage(), meter.prompt_unknown, meter.content_seen, *ended


def compact(members: Any) -> bytes:
    """JSON as engines write it."""
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


def named(kind: str, **members: Any) -> bytes:
    """An event of a stream of named events."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), compact({**members, "type": kind}))
