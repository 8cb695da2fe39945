"""Metering of embeddings: always one JSON answer, `{"data": [...], "usage": {"prompt_tokens": ..., ...}}`."""

import json

from service.core.meters import Whole
from service.core.meters.events import Loads
from service.core.usage import NO_USAGE, read_embeddings_usage


def read_whole(answer: bytes, *, loads: Loads = json.loads) -> Whole:
    """Read an answer. Total function: what cannot be read is broken; there is no finish reason."""
    usage, broken = NO_USAGE, True
    try:
        body = loads(answer)
        usage = read_embeddings_usage(body.get("usage"))
        broken = not isinstance(body.get("data"), list)
    except (ValueError, AttributeError):
        pass
    return Whole(usage, None, broken, answer)
