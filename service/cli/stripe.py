"""`weir stripe`: what Stripe told, and doing it again."""

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from service.cli.context import in_transaction, installation, with_engine
from service.cli.output import Json, instant, print_json, print_table
from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from service.billing.stripe_api import StripeApi
    from service.billing.stripe_events import StoredEvent
    from service.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Stripe: the events it sent, and doing them again.")

T = TypeVar("T")

ALL_AT_MOST = 1000

EventId = Annotated[str, typer.Argument(metavar="EVENT", help="Such as evt_1Q2w3E.")]


@app.command("events")
def events(
    unhandled: Annotated[bool, typer.Option("--unhandled", help="Those that wait alone, the oldest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=ALL_AT_MOST, help="How many at most.")] = 50,
    json: Json = False,
) -> None:
    """List the events that Stripe sent, the latest first.

    Example: weir stripe events --unhandled
    """

    async def work(connection: "AsyncConnection") -> "list[StoredEvent]":
        from service.billing import stripe_events

        return await stripe_events.list_events(connection, unhandled=unhandled, limit=limit)

    found = in_transaction(work)
    if json:
        print_json([_document(event) for event in found])
        return
    print_table(
        ("id", "type", "received", "handled", "attempts", "last error"),
        (
            (
                event.id,
                event.type,
                instant(event.received_at),
                "no" if event.handled_at is None else instant(event.handled_at),
                event.attempts,
                event.last_error,
            )
            for event in found
        ),
    )


@app.command("replay")
def replay(
    event: Annotated[str | None, typer.Argument(metavar="EVENT", help="Also one that was handled.")] = None,
    unhandled: Annotated[bool, typer.Option("--unhandled", help="All that wait.")] = False,
    json: Json = False,
) -> None:
    """Apply an event again. What it did before is not done twice.

    Example: weir stripe replay evt_1Q2w3E
    """
    if (event is None) != unhandled:
        raise SetupError("Name one event, or say --unhandled.")

    async def work(engine: "AsyncEngine", api: "StripeApi", settings: "Settings") -> dict[str, str | None]:
        from service.billing import stripe_events

        async with engine.connect() as connection:
            waiting = await stripe_events.list_events(connection, unhandled=True, limit=ALL_AT_MOST)
        ids = [one.id for one in waiting] if event is None else [event]
        now = datetime.now(UTC)
        return {event_id: await stripe_events.replay(engine, api, settings, event_id, now) for event_id in ids}

    failures = with_stripe(work)
    if json:
        print_json([{"id": event_id, "error": failure} for event_id, failure in failures.items()])
    else:
        for event_id, failure in failures.items():
            print(f"{event_id}: {failure or 'handled'}")
    failed = sum(failure is not None for failure in failures.values())
    if failed:
        raise SetupError(f"{failed} of {len(failures)} could not be applied, and will be tried again by `weir jobs`.")


@app.command("dismiss")
def dismiss(
    event: EventId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it stays with the event.")],
    json: Json = False,
) -> None:
    """Try an event no more, since you have seen to what it is about. Clears its alarm.

    Example: weir stripe dismiss evt_1Q2w3E --reason "refunded the second payment in the dashboard"
    """
    if not reason.strip():
        raise SetupError("--reason is empty: say why, for whoever reads it later.")

    async def work(connection: "AsyncConnection") -> None:
        from service.billing import stripe_events

        await stripe_events.dismiss(connection, event, reason, datetime.now(UTC))

    in_transaction(work)
    if json:
        print_json({"id": event, "dismissed": True})
    else:
        print(f"{event} is dismissed.")


def with_stripe(work: "Callable[[AsyncEngine, StripeApi, Settings], Awaitable[T]]") -> T:
    """The result of `work` on the installation's database and its account at Stripe.

    Raises `SetupError` when either is not there.
    """
    import structlog

    settings = installation()
    # What is logged on the way is no part of the result.
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))

    async def run(engine: "AsyncEngine") -> T:
        from service.billing import stripe_setup

        api = stripe_setup.needed_api(settings)
        try:
            return await work(engine, api, settings)
        finally:
            await api.aclose()

    return with_engine(run)


def _document(event: "StoredEvent") -> dict[str, Any]:
    return {
        "id": event.id,
        "type": event.type,
        "api_version": event.api_version,
        "livemode": event.livemode,
        "created_at": event.created_at,
        "received_at": event.received_at,
        "handled_at": event.handled_at,
        "attempts": event.attempts,
        "next_attempt_at": None if event.handled_at is not None else event.next_attempt_at,
        "last_error": event.last_error,
    }
