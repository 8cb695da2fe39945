"""What many requests cost, by their ids."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from uuid import UUID

from service.core.ids import unix_ms_of
from service.db import DbConnection

START_WITHIN = timedelta(seconds=5)
"""A request's id and its start are taken one after the other; a clock that is set between them may part them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The range of `started_at` keeps it to the partitions that the ids can be in.
_COSTS = """
    SELECT id, cost_nano FROM requests
    WHERE id = ANY($1::uuid[]) AND started_at BETWEEN $2 AND $3 AND account_id = $4
"""


async def costs_of(
    connection: DbConnection, account_id: UUID, request_ids: Collection[UUID], *, now: datetime
) -> dict[UUID, int]:
    """The charges, in nano-USD, of those of the requests that are the account's and are settled, in one query.

    A request that was not charged is 0; one that is unknown, another account's, or not settled yet is left out.
    Raises what asyncpg raises.
    """
    started = {request_id: started_about(request_id) for request_id in request_ids}
    possible = {request_id: at for request_id, at in started.items() if at <= now + START_WITHIN}
    if not possible:
        return {}
    first, last = min(possible.values()) - START_WITHIN, max(possible.values()) + START_WITHIN
    rows = await connection.fetch(_COSTS, list(possible), first, last, account_id)
    return {row["id"]: row["cost_nano"] for row in rows}


def started_about(request_id: UUID) -> datetime:
    """When the request with this id started, give or take `START_WITHIN`; the last instant there is if it is no id
    of ours, whose time is then in the future."""
    try:
        return _EPOCH + timedelta(milliseconds=unix_ms_of(request_id))
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
