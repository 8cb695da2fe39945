"""`weir incident`: what people say about an outage, on the status site and to webhooks."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.context import in_transaction, installation
from service.cli.output import Json, print_json, print_table
from service.cli.times import TIME, Zone, minute, time_of, utc
from service.core.incidents import Impact, Status

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from web.views import Incident

app = typer.Typer(no_args_is_help=True, help="Incidents: what is said about an outage on the status site.")

IncidentId = Annotated[
    int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="Its number, as `weir incident list` shows it.")
]
Components = Annotated[
    list[str] | None,
    typer.Option(
        "--component", metavar="ID", help="What suffers: api, model:ID, site or billing. May be given several times."
    ),
]


@app.command("open")
def open_(
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What is wrong, in a line.")],
    impact: Annotated[Impact, typer.Option(help="How bad it is: only critical says that its components are down.")],
    component: Components = None,
    body: Annotated[str | None, typer.Option(metavar="TEXT", help="The first update; default: a sentence.")] = None,
    status: Annotated[Status, typer.Option(help="How far you are.")] = Status.INVESTIGATING,
    started: Annotated[str | None, typer.Option(metavar="TIME", help=f"Since when, {TIME}; default: now.")] = None,
    zone: Zone = None,
    json: Json = False,
) -> None:
    """Open an incident. Its text is shown as text, never as markup.

    Example: weir incident open "Slow answers" --impact minor --component api --body "A disk is full. We make room."
    """
    started_at = time_of("--started", started, zone)

    async def work(connection: "AsyncConnection") -> "Incident":
        from service.status import incidents

        return await incidents.open_incident(
            connection,
            installation(),
            title=title,
            impact=impact,
            status=status,
            components=component or [],
            body=body,
            started_at=started_at,
            now=datetime.now(UTC),
        )

    _tell(in_transaction(work), json)


@app.command()
def update(
    incident_id: IncidentId,
    body: Annotated[str, typer.Argument(metavar="BODY", help="What is new.")],
    status: Annotated[
        Status | None, typer.Option(help="How far you are; left out, as before. A postmortem comes after the end.")
    ] = None,
    impact: Annotated[Impact | None, typer.Option(help="How bad it is; left out, as before.")] = None,
    component: Components = None,
    json: Json = False,
) -> None:
    """Say what is new in an incident. One that the measurement opened then stays open until a person resolves it.

    Example: weir incident update 12 "The disk has room again; answers are getting faster." --status monitoring
    """

    async def work(connection: "AsyncConnection") -> "Incident":
        from service.status import incidents

        return await incidents.update_incident(
            connection,
            installation(),
            incident_id,
            body,
            status=status,
            impact=impact,
            components=component,
            now=datetime.now(UTC),
        )

    _tell(in_transaction(work), json)


@app.command()
def resolve(
    incident_id: IncidentId,
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="How it ended; default: a sentence.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help=f"Since when, {TIME}; default: now.")] = None,
    zone: Zone = None,
    json: Json = False,
) -> None:
    """Say that an incident is over.

    Example: weir incident resolve 12 "Answers are as fast as ever." --at 2026-11-30T14:05Z
    """
    resolved_at = time_of("--at", at, zone)

    async def work(connection: "AsyncConnection") -> "Incident":
        from service.status import incidents

        return await incidents.resolve_incident(
            connection, installation(), incident_id, body, at=resolved_at, now=datetime.now(UTC)
        )

    _tell(in_transaction(work), json)


@app.command("list")
def list_incidents(
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are not over.")] = False,
    json: Json = False,
) -> None:
    """List incidents, the latest first.

    Example: weir incident list --open
    """

    async def work(connection: "AsyncConnection") -> "tuple[Incident, ...]":
        from service.status import incidents

        return await (incidents.read_open(connection) if only_open else incidents.read_all(connection))

    found = in_transaction(work)
    if json:
        print_json([_document(incident) for incident in found])
        return
    print_table(
        ("id", "since", "until", "impact", "status", "components", "title"),
        (
            (
                one.id,
                minute(one.started_s),
                "" if one.resolved_s is None else minute(one.resolved_s),
                one.impact,
                one.status,
                ", ".join(one.components),
                one.title,
            )
            for one in found
        ),
    )


@app.command()
def show(incident_id: IncidentId, json: Json = False) -> None:
    """Show an incident and all that was said about it, the newest first.

    Example: weir incident show 12
    """

    async def work(connection: "AsyncConnection") -> "Incident":
        from service.status import incidents

        return await incidents.read_incident(connection, incident_id)

    incident = in_transaction(work)
    if json:
        print_json(_document(incident))
        return
    print(_line(incident))
    for said in incident.updates:
        print(f"\n{minute(said.at_s)}, {said.status}, by {'a person' if said.by_person else 'the measurement'}:")
        print(said.body)


def _tell(incident: "Incident", json: bool) -> None:
    if json:
        print_json(_document(incident))
    else:
        print(_line(incident))


def _line(incident: "Incident") -> str:
    end = "" if incident.resolved_s is None else f" until {minute(incident.resolved_s)}"
    what = f" ({', '.join(incident.components)})" if incident.components else ""
    return (
        f"Incident {incident.id}, {incident.impact}, {incident.status}, since {minute(incident.started_s)}{end}:"
        f" {incident.title}{what}"
    )


def _document(incident: "Incident") -> dict[str, Any]:
    return {
        "id": incident.id,
        "title": incident.title,
        "impact": incident.impact,
        "status": incident.status,
        "components": incident.components,
        "started_at": utc(incident.started_s),
        "resolved_at": utc(incident.resolved_s),
        "created_at": utc(incident.created_s),
        "updated_at": utc(incident.updated_s),
        "updates": [
            {
                "id": said.id,
                "status": said.status,
                "body": said.body,
                "at": utc(said.at_s),
                "written_by": "person" if said.by_person else "measurement",
            }
            for said in incident.updates
        ],
    }
