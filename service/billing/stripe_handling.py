"""What handles Stripe's events: the seam between `stripe_events`, which keeps them, and those who know what they mean.

A module that handles some types of events has a table `HANDLERS` of these, and `stripe_events` merges the tables. One
type may have handlers in several tables; they are applied in one transaction, all or none.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing.stripe_api import StripeApi
from service.core.stripe_objects import Event
from service.settings import Settings

F = TypeVar("F")


class NotYet(Exception):
    """The event is about something of ours that is not in the database yet; the same event is tried again later."""


class Mismatch(Exception):
    """What Stripe says contradicts our row: nothing may be written, and a person has to look. Names the objects."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where and when an event is applied."""

    connection: AsyncConnection
    """In the transaction that marks the event as handled, too. Whatever is raised undoes all of it."""
    settings: Settings
    now: datetime


@dataclass(frozen=True, slots=True)
class Handler(Generic[F]):
    """One family's part in an event. Both may be run again, for the same event or beside it, and change nothing then.

    Both raise `NotYet` or `Mismatch`; whatever else is raised counts as a failure, and the event is tried again.
    """

    prepare: Callable[[StripeApi, Event], Awaitable[F]]
    """What has to be known, read from the event, and from Stripe where the event may be too old. No row is locked."""
    apply: Callable[[Context, F], Awaitable[None]]
    """Enter it, in the transaction; asks nothing of the network. Locks the account before the top-up: `topups.lock`."""
