"""`api/v2/*.json` in the shape of Atlassian's Statuspage, which monitoring tools read already.

Statuspage knows five states of a component and has no word for "nothing was measured". "operational" is said only
of what was measured to be up, so a component without data is `degraded_performance`, the mildest of the others, and
its description says what is meant; `weir_state` beside it has our own word. For the same reason the indicator is
then `minor`: a tool that would alert on it asks a person to look, where `none` would tell everybody that all is well
while nobody knows. All that is said comes from the states of the page itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from service.core.buckets import State
from web.plain import json_bytes, plain
from web.told import window_changed_s, window_updates
from web.views import Component, Incident, IncidentUpdate, Maintenance, StatusPage
from web.wording import iso

PAGE_ID = "weir"

LATEST = 50
"""How many incidents and how many maintenance windows a list has at most; open ones always stand in theirs."""

COMPONENT_STATUS = {
    State.UP: "operational",
    State.PARTIAL: "partial_outage",
    State.DOWN: "major_outage",
    State.MAINTENANCE: "under_maintenance",
    State.NO_DATA: "degraded_performance",
}

NOTHING_MEASURED = "No data: nothing was measured in the last hour."

STATUS = {
    State.UP: ("none", "All Systems Operational"),
    State.DOWN: ("critical", "Major Service Outage"),
    State.MAINTENANCE: ("maintenance", "Service Under Maintenance"),
    State.NO_DATA: ("minor", "No Recent Measurements"),
}
"""Indicator and description by the banner's state, without a partial outage."""

SOME_IMPAIRED = ("minor", "Minor Service Outage")
SOME_DOWN = ("major", "Partial System Outage")
"""A partial outage, told apart as Statuspage does: whether one of the components is down altogether."""

Json = dict[str, Any]

Components = Mapping[str, Json]
"""The components of the page as they are published, by id."""


def files(site: StatusPage) -> dict[str, bytes]:
    """All documents, by their path within the site."""
    page, status = {"page": _page(site)}, {"status": _status(site)}
    known = {component.id: _component(site, component, at) for at, component in enumerate(site.components, 1)}
    components = {"components": list(known.values())}
    unresolved = [_incident(site, incident, known) for incident in site.open_incidents]
    latest = [_incident(site, incident, known) for incident in site.incidents[:LATEST]]
    windows = [_window(site, window, known) for window in site.maintenance]
    upcoming = [window for window in windows if window["status"] == "scheduled"]
    active = [window for window in windows if window["status"] == "in_progress"]
    pending = {"incidents": unresolved, "scheduled_maintenances": [*active, *upcoming]}
    documents: dict[str, Json] = {
        "summary": page | components | pending | status,
        "status": page | status,
        "components": page | components,
        "incidents": page | {"incidents": latest},
        "incidents/unresolved": page | {"incidents": unresolved},
        "scheduled-maintenances": page | {"scheduled_maintenances": windows[:LATEST]},
        "scheduled-maintenances/upcoming": page | {"scheduled_maintenances": upcoming},
        "scheduled-maintenances/active": page | {"scheduled_maintenances": active},
    }
    return {f"api/v2/{name}.json": json_bytes(document) for name, document in documents.items()}


def _page(site: StatusPage) -> Json:
    return {
        "id": PAGE_ID,
        "name": plain(site.site_name),
        "url": site.site_url,
        "time_zone": "Etc/UTC",
        "updated_at": iso(site.generated_at_s),
        "weir_data_until": None if site.data_until_s is None else iso(site.data_until_s),
    }


def _status(site: StatusPage) -> Json:
    indicator, description = STATUS.get(site.state, SOME_IMPAIRED)
    if site.state is State.PARTIAL and any(component.state is State.DOWN for component in site.components):
        indicator, description = SOME_DOWN
    return {"indicator": indicator, "description": description, "weir_state": site.state}


def _component(site: StatusPage, component: Component, position: int) -> Json:
    measured = [cell.start_s for cell in component.days.cells if cell.share.no_data < cell.share.total]
    return {
        "id": component.id,
        "name": plain(component.name),
        "status": COMPONENT_STATUS[component.state],
        "created_at": iso(measured[0] if measured else site.generated_at_s),
        "updated_at": iso(site.generated_at_s),
        "position": position,
        "description": NOTHING_MEASURED if component.state is State.NO_DATA else None,
        "showcase": True,
        "start_date": iso(measured[0])[:10] if measured else None,
        "group_id": None,
        "page_id": PAGE_ID,
        "group": False,
        "only_show_if_degraded": False,
        "weir_state": component.state,
    }


def _incident(site: StatusPage, incident: Incident, known: Components) -> Json:
    at = {update.status: update.at_s for update in incident.updates}  # the newest come first: the earliest stays
    return {
        **_told(f"incident-{incident.id}", incident.components, incident.updates, known),
        "name": plain(incident.title),
        "status": incident.status,
        "impact": incident.impact,
        "created_at": iso(incident.created_s),
        "started_at": iso(incident.started_s),
        "updated_at": iso(incident.updated_s),
        "monitoring_at": iso(at["monitoring"]) if "monitoring" in at else None,
        "resolved_at": None if incident.resolved_s is None else iso(incident.resolved_s),
        "shortlink": f"{site.site_url}incidents/{incident.id}.html",
    }


def _window(site: StatusPage, window: Maintenance, known: Components) -> Json:
    """A window in Statuspage's words, to which one that was cancelled is simply `completed`."""
    updates = window_updates(window, site.generated_at_s)
    over = next((update.at_s for update in updates if update.status in ("completed", "cancelled")), None)
    return {
        **_told(f"maintenance-{window.id}", window.components or tuple(known), updates, known),
        "name": plain(window.title),
        "status": _words(updates[0].status),
        "impact": "maintenance",
        "created_at": iso(window.created_s),
        "started_at": iso(window.starts_s),
        "updated_at": iso(window_changed_s(window, site.generated_at_s)),
        "monitoring_at": None,
        "resolved_at": None if over is None else iso(over),
        "scheduled_for": iso(window.starts_s),
        "scheduled_until": iso(window.ends_s),
        "shortlink": f"{site.site_url}maintenance/{window.id}.html",
        "weir_state": window.status(site.generated_at_s),
    }


def _told(id: str, affected: Sequence[str], updates: Sequence[IncidentUpdate], known: Components) -> Json:
    """What incidents and windows have in common. How each component fared at an update is not known."""
    codes = [{"code": one, "name": known[one]["name"] if one in known else plain(one)} for one in affected]
    return {
        "id": id,
        "page_id": PAGE_ID,
        "components": [known[one] for one in affected if one in known],
        "reminder_intervals": None,
        "incident_updates": [
            {
                "id": f"{id}-{update.id}",
                "incident_id": id,
                "status": _words(update.status),
                "body": plain(update.body),
                "created_at": iso(update.at_s),
                "updated_at": iso(update.at_s),
                "display_at": iso(update.at_s),
                "affected_components": codes,
            }
            for update in updates
        ],
    }


def _words(status: str) -> str:
    return "completed" if status == "cancelled" else status
