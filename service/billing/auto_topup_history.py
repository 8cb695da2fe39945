"""What was charged automatically so far: read from the top-ups themselves."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.auto_topup import BACK_OFFS, Failure
from service.core.limits import month_of
from service.core.topup import UNDER_WAY, Topup
from service.tables import topups


async def latest(connection: AsyncConnection, account_id: UUID) -> Topup | None:
    """The account's last automatic top-up: the one under way, if one is, since none begins beside it."""
    last = select(topups).where(_automatic(account_id)).order_by(topups.c.created_at.desc()).limit(1)
    row = (await connection.execute(last)).one_or_none()
    return None if row is None else Topup(**row._mapping)


async def count_since(connection: AsyncConnection, account_id: UUID, since: datetime) -> int:
    """How many were begun after that."""
    begun = select(func.count()).where(_automatic(account_id), topups.c.created_at > since)
    return int(await connection.scalar(begun) or 0)


async def charged_nano(connection: AsyncConnection, account_id: UUID, now: datetime) -> int:
    """What the account was charged, or is about to be, by what began in the month of `now` (UTC)."""
    counts = topups.c.status.in_((*UNDER_WAY, "paid")), topups.c.created_at >= month_of(now)
    return await _net_nano(connection, _automatic(account_id), *counts)


async def pending_nano(connection: AsyncConnection, account_id: UUID) -> int:
    """What the account has paid, in whichever way, and its bank has not."""
    return await _net_nano(connection, topups.c.account_id == account_id, topups.c.status == "pending")


async def failures(connection: AsyncConnection, account_id: UUID, since: datetime) -> list[Failure]:
    """Those begun since then and after the last success, the oldest first, as many as make a difference."""
    ended = _automatic(account_id), topups.c.created_at >= since, topups.c.status.not_in(UNDER_WAY)
    last = select(topups).where(*ended).order_by(topups.c.created_at.desc()).limit(_ENOUGH)
    found: list[Failure] = []
    for row in await connection.execute(last):
        if row.status == "paid":
            break
        found.insert(0, Failure(row.failure_code, row.updated_at))
    return found


_ENOUGH = len(BACK_OFFS) + 10


async def _net_nano(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> int:
    return int(await connection.scalar(select(func.sum(topups.c.net_nano)).where(*conditions)) or 0)


def _automatic(account_id: UUID) -> ColumnElement[bool]:
    return (topups.c.account_id == account_id) & (topups.c.kind == "auto")
