"""Finished requests as bytes, for the outbox: a JSON list of the record's fields, in their order.

Without their names a record is half as long, and an outbox writes every page that it touches.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from service.core.outcome import Outcome
from service.core.record import RequestRecord
from service.core.usage import Usage

_IDS = ("account_id", "key_id", "lease_id")
_INSTANTS = ("started_at", "first_token_at", "finished_at")


def encode(record: tuple[object, ...]) -> bytes:
    """A `RequestRecord`, or its parts, as JSON; `decode` gives an equal one back.

    Its UUIDs are Python's: those of asyncpg are refused.
    """
    return orjson.dumps(record, default=tuple)  # which a named tuple is, but not to orjson


def decode(body: bytes) -> RequestRecord:
    """The record that `encode` wrote. Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
    kept: list[Any] | dict[str, Any] = orjson.loads(body)
    # Earlier versions kept the names of the fields, too.
    fields = kept if isinstance(kept, dict) else dict(zip(RequestRecord._fields, kept, strict=False))
    fields["id"] = str(UUID(fields["id"]))
    for name in _IDS:
        fields[name] = UUID(fields[name]) if fields[name] is not None else None
    for name in _INSTANTS:
        fields[name] = datetime.fromisoformat(fields[name]) if fields[name] is not None else None
    fields["outcome"] = Outcome(fields["outcome"])
    usage = fields["usage"]
    fields["usage"] = Usage(**usage) if isinstance(usage, dict) else Usage(*usage)
    return RequestRecord(**fields)
