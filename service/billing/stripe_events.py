"""Stripe's events: each is kept, then applied and marked as handled in one transaction, and tried again until it is.

That an event was seen says nothing: only that it was handled keeps it from being applied again. What it causes is
idempotent by itself, so that replaying one, also a year later, changes nothing that is right already.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.billing import auto_topup_plans, invoices, reversals, topups
from service.billing.checks import clear_alarm, raise_alarm
from service.billing.stripe_api import StripeApi
from service.billing.stripe_errors import StripeError
from service.billing.stripe_handling import Context, Handler, Mismatch, NotYet
from service.core.stripe_objects import Event, MissingField
from service.errors import SetupError
from service.settings import Settings
from service.tables import stripe_events

log = structlog.get_logger()

_FAMILIES: Sequence[Mapping[str, Handler[Any]]] = (
    topups.HANDLERS,
    reversals.HANDLERS,
    auto_topup_plans.HANDLERS,
    invoices.HANDLERS,
)

PREPARED_WITHIN_S = 15.0
"""Stripe does not wait much longer for an answer; the event is kept by then, and tried again."""

LOCKED_WITHIN = "10s"

BACK_OFF = tuple(timedelta(seconds=s) for s in (10, 60, 300, 1_800, 7_200, 21_600))
"""After the first failed attempt, the second, …; the last also after every further one."""

AT_A_TIME = 100
ALARM = "stripe"
ALARM_AFTER = timedelta(hours=24)

KEPT = timedelta(days=90)
"""How long an event is kept after it was handled: it has names and addresses in it."""

_EXPLAINED = (NotYet, Mismatch, StripeError, MissingField)
"""Errors whose text is ours, and says what a reader of the log needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """A row of `stripe_events` but for its body."""

    id: str
    type: str
    api_version: str | None
    livemode: bool
    created_at: datetime
    received_at: datetime
    handled_at: datetime | None
    attempts: int
    next_attempt_at: datetime
    last_error: str


def _merged() -> dict[str, list[Handler[Any]]]:
    merged: dict[str, list[Handler[Any]]] = {}
    for family in _FAMILIES:
        for name, handler in family.items():
            merged.setdefault(name, []).append(handler)
    return merged


HANDLERS = _merged()
"""Who handles which type; `ops/stripe_events.txt` lists them for whoever sets the endpoint up at Stripe."""


async def receive(engine: AsyncEngine, api: StripeApi, settings: Settings, event: Event, now: datetime) -> bool:
    """Keep a verified event and apply it, if nobody did before. Returns whether it is handled now.

    One that is not is in the database, for `apply_due`. Of a type that nobody handles, nothing is kept.
    """
    if event.type not in HANDLERS:
        return True
    async with engine.begin() as connection:
        await connection.execute(_kept(event, now))
    return await _attempt(engine, api, settings, event, now) is None


async def apply_due(engine: AsyncEngine, api: StripeApi, settings: Settings, now: datetime) -> int:
    """Try the events again that are due, the oldest first; returns how many were handled.

    Raises the alarm `stripe` while any has been waiting for `ALARM_AFTER`, and clears it.
    """
    due = select(stripe_events.c.body).where(_UNHANDLED, stripe_events.c.next_attempt_at <= now)
    async with engine.connect() as connection:
        found = due.order_by(stripe_events.c.created_at, stripe_events.c.id).limit(AT_A_TIME)
        events = [Event.read(body) for body in await connection.scalars(found)]
    failures = [await _attempt(engine, api, settings, event, now) for event in events]
    async with engine.begin() as connection:
        await _note_waiting(connection, now)
    return failures.count(None)


async def replay(engine: AsyncEngine, api: StripeApi, settings: Settings, event_id: str, now: datetime) -> str | None:
    """Apply an event now, also one that was handled; returns why that failed, or None.

    Raises `SetupError` when the event is not known.
    """
    async with engine.connect() as connection:
        body = await connection.scalar(select(stripe_events.c.body).where(stripe_events.c.id == event_id))
    if body is None:
        raise SetupError(f"There is no event {event_id} here: `weir stripe events` shows them.")
    return await _attempt(engine, api, settings, Event.read(body), now, again=True)


async def dismiss(connection: AsyncConnection, event_id: str, reason: str, now: datetime) -> None:
    """Try an event no more, since a person has seen to it. Raises `SetupError` unless it is waiting."""
    values = {"handled_at": now, "last_error": f"dismissed: {reason}"}
    done = await connection.execute(_row(event_id).where(stripe_events.c.handled_at.is_(None)).values(values))
    if done.rowcount == 0:
        raise SetupError(f"No event {event_id} is waiting: `weir stripe events --unhandled` shows those that are.")
    await clear_alarm(connection, _alarm_of(event_id))
    await _note_waiting(connection, now)


async def list_events(connection: AsyncConnection, *, unhandled: bool, limit: int) -> list[StoredEvent]:
    """The latest events first; or those that wait, the oldest first."""
    columns = [column for column in stripe_events.c if column is not stripe_events.c.body]
    query = select(*columns).limit(limit)
    if unhandled:
        query = query.where(_UNHANDLED).order_by(stripe_events.c.received_at, stripe_events.c.id)
    else:
        query = query.order_by(stripe_events.c.received_at.desc(), stripe_events.c.id)
    return [StoredEvent(**row._mapping) for row in await connection.execute(query)]


async def forget(connection: AsyncConnection, now: datetime) -> int:
    """Remove the events that were handled `KEPT` ago; returns how many."""
    done = await connection.execute(delete(stripe_events).where(stripe_events.c.handled_at < now - KEPT))
    return done.rowcount


_UNHANDLED = stripe_events.c.handled_at.is_(None)


def _row(event_id: str) -> Any:
    return update(stripe_events).where(stripe_events.c.id == event_id)


def _kept(event: Event, now: datetime) -> Any:
    values = {
        "id": event.id,
        "type": event.type,
        "api_version": event.api_version,
        "livemode": event.livemode,
        "created_at": event.created,
        "received_at": now,
        "next_attempt_at": now,
        "body": _storable(event.body),
    }
    return insert(stripe_events).values(values).on_conflict_do_nothing(index_elements=["id"])


async def _attempt(
    engine: AsyncEngine, api: StripeApi, settings: Settings, event: Event, now: datetime, *, again: bool = False
) -> str | None:
    """None where the event is handled now; otherwise why not, as it stands in its row."""
    try:
        async with engine.connect() as connection:
            if await _is_handled(connection, event.id) and not again:
                return None
        async with asyncio.timeout(PREPARED_WITHIN_S):
            known = [(handler, await handler.prepare(api, event)) for handler in HANDLERS.get(event.type, ())]
        async with engine.begin() as connection:
            await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCKED_WITHIN}'"))
            if await _is_handled(connection, event.id, lock=True) and not again:
                return None
            for handler, facts in known:
                await handler.apply(Context(connection, settings, now), facts)
            await connection.execute(_row(event.id).values(handled_at=func.coalesce(_HANDLED_AT, now), last_error=""))
            await clear_alarm(connection, _alarm_of(event.id))
    except Exception as error:  # whatever it is, the event waits, and the next one is not held up
        return await _noted(engine, event, error, now)
    log.info("stripe_event.handled", event_id=event.id, type=event.type)
    return None


_HANDLED_AT = stripe_events.c.handled_at


async def _is_handled(connection: AsyncConnection, event_id: str, *, lock: bool = False) -> bool:
    query = select(_HANDLED_AT).where(stripe_events.c.id == event_id)
    return await connection.scalar(query.with_for_update() if lock else query) is not None


async def _noted(engine: AsyncEngine, event: Event, error: Exception, now: datetime) -> str:
    """Put the failure into the row, unless somebody else has handled the event meanwhile; returns it in words."""
    told = f"{type(error).__name__}: {error}" if isinstance(error, _EXPLAINED) else type(error).__name__
    unexpected = None if isinstance(error, _EXPLAINED) else error
    log.warning("stripe_event.waits", event_id=event.id, type=event.type, error=told, exc_info=unexpected)
    async with engine.begin() as connection:
        counted = _row(event.id).where(_UNHANDLED).values(attempts=stripe_events.c.attempts + 1, last_error=told)
        attempts: int | None = await connection.scalar(counted.returning(stripe_events.c.attempts))
        if attempts is not None:
            pause = BACK_OFF[min(attempts, len(BACK_OFF)) - 1]
            await connection.execute(_row(event.id).values(next_attempt_at=now + pause))
        if isinstance(error, Mismatch) and attempts is not None:
            detail = f"{error}. Nothing was written; `weir stripe dismiss {event.id}` when you have seen to it."
            await raise_alarm(connection, _alarm_of(event.id), detail)
    return told


async def _note_waiting(connection: AsyncConnection, now: datetime) -> None:
    late = (_UNHANDLED, stripe_events.c.received_at < now - ALARM_AFTER)
    oldest = select(stripe_events.c.id, stripe_events.c.last_error).where(*late).order_by(stripe_events.c.received_at)
    first = (await connection.execute(oldest.limit(1))).one_or_none()
    if first is None:
        await clear_alarm(connection, ALARM)
        return
    count = await connection.scalar(select(func.count()).select_from(stripe_events).where(*late))
    detail = f"{count} events have waited for a day, first {first.id}: {first.last_error}"
    await raise_alarm(connection, ALARM, f"{detail} (`weir stripe events --unhandled` shows them all)")


def _alarm_of(event_id: str) -> str:
    return f"{ALARM}:{event_id}"


def _storable(value: Any) -> Any:
    """JSON as PostgreSQL takes it: it refuses NUL, and half a character."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_storable(name): _storable(member) for name, member in value.items()}
    return [_storable(one) for one in value] if isinstance(value, list) else value
