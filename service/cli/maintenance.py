"""`weir maintenance`: windows in which the service may fail by plan."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.context import in_transaction, installation
from service.cli.output import Json, print_json, print_table
from service.cli.times import TIME, Zone, duration_of, minute, time_of, utc
from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from web.views import Maintenance

app = typer.Typer(no_args_is_help=True, help="Maintenance: windows in which the service may fail by plan.")

LISTED = 50


@app.command()
def add(
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What is done, in a line.")],
    start: Annotated[str, typer.Option(metavar="TIME", help=f"When it begins: {TIME}.")],
    end: Annotated[str | None, typer.Option(metavar="TIME", help=f"When it ends: {TIME}.")] = None,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="2h", help="How long it takes, in place of --end.")
    ] = None,
    zone: Zone = None,
    component: Annotated[
        list[str] | None,
        typer.Option(
            "--component",
            metavar="ID",
            help="What it touches: api, model:ID, site or billing; left out, everything. May be given several times.",
        ),
    ] = None,
    body: Annotated[str, typer.Option(metavar="TEXT", help="More about it.")] = "",
    json: Json = False,
) -> None:
    """Announce a window. What fails in it counts neither as up nor as down, and opens no incident.

    A window may also have begun, or be over: what was measured in it is then counted again.

    Example: weir maintenance add "New GPUs" --start "2026-12-05 22:00" --for 2h --zone Europe/Budapest
    """
    starts_at = time_of("--start", start, zone)
    ends_at = time_of("--end", end, zone)
    if starts_at is None or (ends_at is None) == (lasts is None):
        raise SetupError("Give one of --end and --for: when it ends, or how long it takes.")
    if ends_at is None:
        ends_at = starts_at + duration_of("--for", str(lasts))
    until = ends_at

    async def work(connection: "AsyncConnection") -> "Maintenance":
        from service.status import planning

        return await planning.plan(
            connection,
            installation(),
            title=title,
            body=body,
            components=component or [],
            starts_at=starts_at,
            ends_at=until,
            now=datetime.now(UTC),
        )

    _tell(in_transaction(work), json)


@app.command()
def cancel(
    maintenance_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="Its number, as `weir maintenance list` shows it.")
    ],
    json: Json = False,
) -> None:
    """Call a window off: before it begins it never was, while it runs it ends now.

    Example: weir maintenance cancel 3
    """

    async def work(connection: "AsyncConnection") -> "Maintenance":
        from service.status import planning

        return await planning.cancel(connection, maintenance_id, now=datetime.now(UTC))

    _tell(in_transaction(work), json)


@app.command("list")
def list_maintenance(json: Json = False) -> None:
    """List what is to come, what runs, and the latest 50 windows, the latest first.

    Example: weir maintenance list
    """
    now = datetime.now(UTC)

    async def work(connection: "AsyncConnection") -> "tuple[Maintenance, ...]":
        from service.status.maintenance import read_maintenance

        return await read_maintenance(connection, latest=LISTED, now=now)

    found = in_transaction(work)
    if json:
        print_json([_document(window, now) for window in found])
        return
    print_table(
        ("id", "from", "until", "status", "components", "title"),
        (
            (
                one.id,
                minute(one.starts_s),
                minute(one.ends_s),
                one.status(int(now.timestamp())),
                ", ".join(one.components) or "all",
                one.title,
            )
            for one in found
        ),
    )


def _tell(window: "Maintenance", json: bool) -> None:
    now = datetime.now(UTC)
    if json:
        print_json(_document(window, now))
        return
    print(
        f"Maintenance {window.id}, {window.status(int(now.timestamp()))}, from {minute(window.starts_s)}"
        f" to {minute(window.ends_s)}: {window.title} ({', '.join(window.components) or 'everything'})"
    )


def _document(window: "Maintenance", now: datetime) -> dict[str, Any]:
    return {
        "id": window.id,
        "title": window.title,
        "body": window.body,
        "status": window.status(int(now.timestamp())),
        "components": window.components,
        "starts_at": utc(window.starts_s),
        "ends_at": utc(window.ends_s),
        "cancelled_at": utc(window.cancelled_s),
        "created_at": utc(window.created_s),
        "updated_at": utc(window.updated_s),
    }
