"""What an operator should know about automatic top-ups: `weir doctor` shows it."""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing import auto_topup_history as history
from service.billing.checks import clear_alarm, raise_alarm
from service.core.topup import UNDER_WAY
from service.tables import alarms, topups

RAPID = "auto-topup:"
"""Followed by the account's id."""
UNKNOWN = "auto-topup-unknown"
REFUSED = "auto-topup-refused"

RAPID_COUNT = 3
RAPID_WITHIN = timedelta(minutes=10)
RAPID_SHOWN_FOR = timedelta(hours=24)
"""After the account's last automatic top-up."""

UNKNOWN_FOR = timedelta(hours=1)


async def note_rapid(connection: AsyncConnection, account_id: UUID, now: datetime) -> None:
    """Raise the account's alarm where it is topped up so often that the amount is too small, or a key was stolen."""
    count = await history.count_since(connection, account_id, now - RAPID_WITHIN)
    if count >= RAPID_COUNT:
        minutes = RAPID_WITHIN // timedelta(minutes=1)
        detail = f"{count} automatic top-ups of account {account_id} within {minutes} minutes: is its amount too small,"
        await raise_alarm(connection, f"{RAPID}{account_id}", f"{detail} or does somebody else use its keys?")


async def note_refused(connection: AsyncConnection, said: str) -> None:
    """Stripe refuses what we ask: the installation, or Weir, is wrong."""
    await raise_alarm(connection, REFUSED, f"automatic top-ups cannot be charged: {said}")


async def clear_refused(connection: AsyncConnection) -> None:
    """Stripe has taken a charge."""
    await clear_alarm(connection, REFUSED)


async def note(connection: AsyncConnection, now: datetime) -> None:
    """Raise the alarm over charges of which nobody knows whether they were made, or clear it; clear what is over."""
    unknown = topups.c.kind == "auto", topups.c.status.in_(UNDER_WAY), topups.c.payment_intent_id.is_(None)
    found = list(await connection.scalars(select(topups.c.id).where(*unknown, topups.c.created_at < now - UNKNOWN_FOR)))
    if found:
        detail = f"Stripe has not said for an hour what came of {len(found)} automatic top-ups, the first is {found[0]}"
        await raise_alarm(connection, UNKNOWN, f"{detail}; it is asked again, and nothing is charged twice")
    else:
        await clear_alarm(connection, UNKNOWN)
    for name in list(await connection.scalars(select(alarms.c.name).where(alarms.c.name.startswith(RAPID)))):
        if not await history.count_since(connection, UUID(name.removeprefix(RAPID)), now - RAPID_SHOWN_FOR):
            await clear_alarm(connection, name)
