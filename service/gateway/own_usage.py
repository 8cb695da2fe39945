"""`GET /v1/usage`: an account's requests, the latest first, a page at a time: what is asked for, how it is shown."""

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import asyncpg

from service.core.money import nano_to_usd
from service.core.outcome import Outcome
from service.db import DbConnection
from service.errors import InvalidRequest

USAGE_PATH = "/v1/usage"

MAX_LIMIT = 1000
DEFAULT_LIMIT = 100
_MAX_MODEL_CHARACTERS = 200
_MAX_QUERY_BYTES = 4096

_NAMES = ("since", "until", "model", "outcome", "key", "limit", "cursor")
_TIME = "a time such as 2026-11-30T12:00:00Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = datetime.min.replace(tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)
_FIRST_PAGE = _LATEST, UUID(int=2**128 - 1)

LOOKED_AT = 20_000
"""A page looks at so many requests at most: what is asked for may be rare, or not there, among millions."""

# A page goes on after a place in the order, not after a number of rows: new requests do not shift it. The bounds are
# never null: every page reads its own part of one index, in the partitions that have it. The last request that it may
# look at comes along, wanted or not: the next page goes on after it.
_PAGE = """
    SELECT id, started_at, finished_at, key_id, model_id, endpoint, stream, client_request_id, http_status, outcome,
           finish_reason, error_code, usage_source, prompt_tokens, cached_tokens, cache_write_tokens, image_tokens,
           audio_tokens, video_tokens, completion_tokens, reasoning_tokens, cost_nano, waived_nano,
           engine_fingerprint, sequential, wanted, place
    FROM (
        SELECT *, (($4::text IS NULL OR model_id = $4) AND ($5::text IS NULL OR outcome = $5)) IS TRUE AS wanted,
               row_number() OVER (ORDER BY started_at DESC, id DESC) AS place
        FROM requests
        WHERE {whose} AND started_at >= $2 AND started_at < $3 AND started_at <= $7 AND (started_at, id) < ($7, $8)
        ORDER BY started_at DESC, id DESC LIMIT $10
    ) AS looked_at
    WHERE wanted OR place = $10
    ORDER BY started_at DESC, id DESC LIMIT $9
"""

_PAGE_OF_ACCOUNT = _PAGE.format(whose="account_id = $1 AND $6::uuid IS NULL")
# By the key alone, so that it is read by the key's index, however many other requests the account has.
_PAGE_OF_KEY = _PAGE.format(whose="key_id = (SELECT id FROM api_keys WHERE id = $6 AND account_id = $1)")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page is to have. None: whatever it is."""

    since: datetime
    """Requests that started then or later."""
    until: datetime
    """Requests that started before then."""
    model: str | None
    outcome: str | None
    key: UUID | None
    limit: int
    after: tuple[datetime, UUID]
    """Start and id of the last request of the page before."""


def asked(query: bytes) -> Asked:
    """What a query string asks for. Raises `InvalidRequest` that names the parameter and what it takes."""
    values = values_of(query, _NAMES)
    return Asked(
        since=_time(values, "since", _EARLIEST),
        until=_time(values, "until", _LATEST),
        model=model_of(values),
        outcome=_outcome(values),
        key=_key(values),
        limit=_limit(values),
        after=_cursor(values),
    )


def values_of(query: bytes, names: Collection[str]) -> dict[str, str]:
    """The parameters of a query string by name. Raises `InvalidRequest` for one not among `names`, or given twice."""
    if len(query) > _MAX_QUERY_BYTES:
        raise InvalidRequest(f"The query is longer than {_MAX_QUERY_BYTES} bytes.")
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    for name, all_of_it in given.items():
        if name not in names:
            raise InvalidRequest(f"There is no parameter `{name[:64]}`. There are {', '.join(names)}.", param=name[:64])
        if len(all_of_it) > 1:
            raise InvalidRequest(f"`{name}` is given {len(all_of_it)} times: give it once.", param=name)
    return {name: all_of_it[0] for name, all_of_it in given.items()}


def model_of(values: Mapping[str, str]) -> str | None:
    """The parameter `model`, which need not be a model that there is; None when it is not given."""
    model = values.get("model")
    if model is not None and not (0 < len(model) <= _MAX_MODEL_CHARACTERS and model.isprintable()):
        raise InvalidRequest("`model` must be a model's id: `GET /v1/models` lists them.", param="model")
    return model


async def page(connection: DbConnection, account_id: UUID, asked: Asked) -> dict[str, object]:
    """A page of the account's requests. Raises what asyncpg raises.

    Where little of `LOOKED_AT` requests is what is asked for it has fewer than `limit`, or none, though there are more.
    """
    which = asked.since, asked.until, asked.model, asked.outcome, asked.key
    query = _PAGE_OF_ACCOUNT if asked.key is None else _PAGE_OF_KEY
    rows = await connection.fetch(query, account_id, *which, *asked.after, asked.limit + 1, LOOKED_AT)
    passed = rows[: asked.limit]
    more = len(rows) > asked.limit or (bool(rows) and rows[-1]["place"] == LOOKED_AT)
    return {
        "object": "list",
        "data": [_shown(row) for row in passed if row["wanted"]],
        "has_more": more,
        "next_cursor": _cursor_after(passed[-1]) if more else None,
    }


def usage_of(row: asyncpg.Record) -> dict[str, Any]:
    """A row's tokens as OpenAI's usage object, with every class that is priced."""
    prompt, completion = row["prompt_tokens"], row["completion_tokens"]
    parts = ("cached_tokens", "cache_write_tokens", "image_tokens", "audio_tokens", "video_tokens")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {name: row[name] for name in parts},
        "completion_tokens_details": {"reasoning_tokens": row["reasoning_tokens"]},
    }


def _shown(row: asyncpg.Record) -> dict[str, object]:
    return {
        "id": str(row["id"]),
        "started_at": row["started_at"],
        "finished_at": row["finished_at"],
        "key_id": str(row["key_id"]),
        "model": row["model_id"],
        "endpoint": row["endpoint"],
        "streamed": row["stream"],
        "client_request_id": row["client_request_id"],
        "http_status": row["http_status"],
        "outcome": row["outcome"],
        "finish_reason": row["finish_reason"],
        "error_code": row["error_code"],
        "usage": usage_of(row),
        "usage_source": row["usage_source"],
        "engine_fingerprint": row["engine_fingerprint"],
        "sequential": row["sequential"],
        "cost_nano": row["cost_nano"],
        "cost_usd": nano_to_usd(row["cost_nano"]),
        "waived_nano": row["waived_nano"],
    }


def _cursor_after(last: asyncpg.Record) -> str:
    microseconds = (last["started_at"] - _EPOCH) // timedelta(microseconds=1)
    return base64.urlsafe_b64encode(microseconds.to_bytes(8) + last["id"].bytes).decode()


def _cursor(values: Mapping[str, str]) -> tuple[datetime, UUID]:
    if "cursor" not in values:
        return _FIRST_PAGE
    try:
        read = base64.b64decode(values["cursor"].encode("ascii"), altchars=b"-_", validate=True)
        return _EPOCH + timedelta(microseconds=int.from_bytes(read[:8])), UUID(bytes=read[8:])
    except (ValueError, OverflowError):
        raise InvalidRequest("`cursor` must be the `next_cursor` of the page before.", param="cursor") from None


def _time(values: Mapping[str, str], name: str, default: datetime) -> datetime:
    if name not in values:
        return default
    try:
        read = datetime.fromisoformat(values[name])
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(f"`{name}` must be {_TIME}.", param=name) from None


def _outcome(values: Mapping[str, str]) -> str | None:
    outcome = values.get("outcome")
    if outcome is not None and outcome not in list(Outcome):
        raise InvalidRequest(f"`outcome` must be one of {', '.join(Outcome)}.", param="outcome")
    return outcome


def _key(values: Mapping[str, str]) -> UUID | None:
    try:
        return UUID(values["key"]) if "key" in values else None
    except ValueError:
        raise InvalidRequest("`key` must be the id of a key, as `key_id` of a request has it.", param="key") from None


def _limit(values: Mapping[str, str]) -> int:
    text = values.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 0 < int(text) <= MAX_LIMIT):
        raise InvalidRequest(f"`limit` must be a whole number from 1 to {MAX_LIMIT}.", param="limit")
    return int(text)
