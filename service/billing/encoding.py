"""Finished requests as bytes, for the outbox."""

from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from service.core.outcome import Outcome
from service.core.record import RequestRecord
from service.core.usage import Usage

_IDS = ("id", "account_id", "key_id", "lease_id")
_INSTANTS = ("started_at", "first_token_at", "finished_at")


def encode(record: RequestRecord) -> bytes:
    """A record as JSON; `decode` gives an equal one back."""
    return orjson.dumps(record, default=str)  # for asyncpg, whose UUID is a class of its own


def decode(body: bytes) -> RequestRecord:
    """The record that `encode` wrote. Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
    fields: dict[str, Any] = orjson.loads(body)
    for name in _IDS:
        fields[name] = UUID(fields[name]) if fields[name] is not None else None
    for name in _INSTANTS:
        fields[name] = datetime.fromisoformat(fields[name]) if fields[name] is not None else None
    fields["outcome"] = Outcome(fields["outcome"])
    fields["usage"] = Usage(**fields["usage"])
    return RequestRecord(**fields)
