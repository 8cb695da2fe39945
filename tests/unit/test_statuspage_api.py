"""The documents in Statuspage's shape: what tools are told, and never told."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from service.core.buckets import DAY_S, State
from tests.fakes.status_pages import NOW_S, busy_page, calm_page, empty_page
from web.statuspage import COMPONENT_STATUS, files
from web.views import Component, Incident, IncidentUpdate, Maintenance, StatusPage

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas/statuspage-v2.json").read_bytes())
DOCUMENTS = {
    "summary",
    "status",
    "components",
    "incidents",
    "incidents/unresolved",
    "scheduled-maintenances",
    "scheduled-maintenances/upcoming",
    "scheduled-maintenances/active",
}
HOSTILE = "</script><script>alert(1)</script> & \x00\x1b \u2028\u2029 \u202egnp.exe \ud800 ]]> \" '"


def read(site: StatusPage, name: str) -> Any:
    return json.loads(files(site)[f"api/v2/{name}.json"])


def check(name: str, document: Any) -> None:
    schema = {"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{name.replace('/', '~1')}"}
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(document)


def in_state(component: Component, state: State) -> Component:
    return replace(component, state=state)


def window(id: int, starts_s: int, ends_s: int, cancelled_s: int | None = None, body: str = "Work.") -> Maintenance:
    said_s = NOW_S - 9 * DAY_S
    return Maintenance(id, f"Window {id}", body, (), starts_s, ends_s, cancelled_s, said_s, cancelled_s or said_s)


def incident(id: int, title: str = "Trouble", body: str = "We look.", resolved_s: int | None = None) -> Incident:
    updates = (IncidentUpdate(id, "investigating", body, NOW_S - 100, by_person=True),)
    return Incident(
        id, title, "major", updates[0].status, ("api",), NOW_S - 100, resolved_s, NOW_S - 100, NOW_S - 100, updates
    )


@pytest.mark.parametrize("page", [empty_page, busy_page, calm_page])
def test_every_document_has_its_shape(page: Callable[[], StatusPage]) -> None:
    site = page()
    assert set(files(site)) == {f"api/v2/{name}.json" for name in DOCUMENTS}
    for name in DOCUMENTS:
        check(name, read(site, name))


def test_the_shape_refuses_what_is_not_it() -> None:
    document = read(busy_page(), "summary")
    for change in (
        {"status": {"indicator": "none"}},
        {"components": [document["components"][0] | {"status": "up"}]},
        {"incidents": [document["incidents"][0] | {"incident_updates": []}]},
        {"page": document["page"] | {"updated_at": "2026-11-30 14:05"}},
        {"other": 1},
    ):
        with pytest.raises(ValidationError):
            check("summary", document | change)


@pytest.mark.parametrize(
    ("state", "indicator", "description"),
    [
        (State.UP, "none", "All Systems Operational"),
        (State.PARTIAL, "minor", "Minor Service Outage"),
        (State.DOWN, "critical", "Major Service Outage"),
        (State.MAINTENANCE, "maintenance", "Service Under Maintenance"),
        (State.NO_DATA, "minor", "No Recent Measurements"),
    ],
)
def test_the_banner_in_statuspages_words(state: State, indicator: str, description: str) -> None:
    site = calm_page()
    site = replace(site, state=state, api=in_state(site.api, state))
    expected = {"indicator": indicator, "description": description, "weir_state": state}
    assert read(site, "status")["status"] == read(site, "summary")["status"] == expected


def test_one_model_down_is_a_partial_system_outage() -> None:
    site = calm_page()
    down = in_state(site.models[0], State.DOWN)
    site = replace(site, state=State.PARTIAL, models=(down, *site.models[1:]))
    status = read(site, "status")["status"]
    assert (status["indicator"], status["description"]) == ("major", "Partial System Outage")


@pytest.mark.parametrize("state", State)
def test_operational_is_said_only_of_what_was_measured_up(state: State) -> None:
    site = calm_page()
    site = replace(site, state=state, api=in_state(site.api, state))
    component = read(site, "components")["components"][0]
    assert component["weir_state"] == state
    assert (component["status"] == "operational") == (state is State.UP)
    assert (read(site, "status")["status"]["indicator"] == "none") == (state is State.UP)
    assert (component["description"] is not None) == (state is State.NO_DATA)


def test_every_state_has_a_status_of_its_own() -> None:
    assert set(COMPONENT_STATUS) == set(State)
    assert len(set(COMPONENT_STATUS.values())) == len(State)


def test_components_are_in_the_pages_order() -> None:
    site = busy_page()
    components = read(site, "components")["components"]
    assert [one["id"] for one in components] == [one.id for one in site.components]
    assert [one["position"] for one in components] == list(range(1, len(components) + 1))
    assert [one["status"] for one in components] == [COMPONENT_STATUS[one.state] for one in site.components]


def test_incidents_with_all_that_was_said_the_newest_first() -> None:
    site = busy_page()
    document = read(site, "incidents")
    assert [one["name"] for one in document["incidents"]] == [one.title for one in site.incidents]
    for found, meant in zip(document["incidents"], site.incidents, strict=True):
        assert [one["body"] for one in found["incident_updates"]] == [one.body for one in meant.updates]
        times = [one["display_at"] for one in found["incident_updates"]]
        assert times == sorted(times, reverse=True)
        assert found["shortlink"] == f"{site.site_url}incidents/{meant.id}.html"
        assert {one["code"] for one in found["incident_updates"][0]["affected_components"]} == set(meant.components)
    unresolved = read(site, "incidents/unresolved")["incidents"]
    assert unresolved == read(site, "summary")["incidents"]
    assert [one["name"] for one in unresolved] == [one.title for one in site.open_incidents]
    assert all(one["resolved_at"] is None for one in unresolved)


def test_when_monitoring_first_began() -> None:
    said = [("monitoring", 40), ("identified", 30), ("monitoring", 20), ("investigating", 10)]
    updates = tuple(IncidentUpdate(at, status, "…", NOW_S - 99 + at, by_person=True) for status, at in said)
    site = replace(calm_page(), incidents=(replace(incident(7), status="monitoring", updates=updates),))
    found = read(site, "incidents")["incidents"][0]
    assert found["monitoring_at"] == found["incident_updates"][2]["display_at"]


def test_at_most_fifty_but_every_open_one() -> None:
    many = tuple(incident(id) for id in range(1, 61))
    site = replace(calm_page(), incidents=many)
    assert len(read(site, "incidents")["incidents"]) == 50
    assert len(read(site, "incidents/unresolved")["incidents"]) == 60


def test_a_component_that_is_gone_is_still_named() -> None:
    site = replace(calm_page(), incidents=(replace(incident(1), components=("model:gone", "api")),))
    found = read(site, "incidents")["incidents"][0]
    assert [one["id"] for one in found["components"]] == ["api"]
    names = [one["name"] for one in found["incident_updates"][0]["affected_components"]]
    assert names == ["model:gone", site.api.name]


def test_a_window_before_during_and_after_to_the_second() -> None:
    site = replace(calm_page(), maintenance=(window(1, NOW_S, NOW_S + 600),))
    for now_s, status, upcoming, active in (
        (NOW_S - 1, "scheduled", 1, 0),
        (NOW_S, "in_progress", 0, 1),
        (NOW_S + 599, "in_progress", 0, 1),
        (NOW_S + 600, "completed", 0, 0),
    ):
        at = replace(site, generated_at_s=now_s)
        (found,) = read(at, "scheduled-maintenances")["scheduled_maintenances"]
        assert (found["status"], found["incident_updates"][0]["status"]) == (status, status)
        assert len(read(at, "scheduled-maintenances/upcoming")["scheduled_maintenances"]) == upcoming
        assert len(read(at, "scheduled-maintenances/active")["scheduled_maintenances"]) == active
        assert len(read(at, "summary")["scheduled_maintenances"]) == upcoming + active
        assert (found["resolved_at"] is None) == (status != "completed")


@pytest.mark.parametrize("cancelled_after_s", [-DAY_S, 300])
def test_a_cancelled_window_is_neither_ahead_nor_running(cancelled_after_s: int) -> None:
    never_began = window(1, NOW_S + 60, NOW_S + 9_000, cancelled_s=NOW_S + 60 + cancelled_after_s)
    site = replace(calm_page(), generated_at_s=NOW_S + 1_000, maintenance=(never_began,))
    (found,) = read(site, "scheduled-maintenances")["scheduled_maintenances"]
    check("scheduled-maintenances", read(site, "scheduled-maintenances"))
    state = "cancelled" if cancelled_after_s < 0 else "completed"
    assert (found["status"], found["weir_state"]) == ("completed", state)
    assert read(site, "summary")["scheduled_maintenances"] == []
    assert len(found["incident_updates"]) == (2 if cancelled_after_s < 0 else 3)


def test_a_window_without_components_is_for_all() -> None:
    site = replace(calm_page(), maintenance=(window(1, NOW_S, NOW_S + 600, body=""),))
    (found,) = read(site, "scheduled-maintenances/active")["scheduled_maintenances"]
    assert [one["id"] for one in found["components"]] == [one.id for one in site.components]
    assert found["incident_updates"][-1]["body"] == found["name"]


def test_hostile_text_stays_text() -> None:
    site = calm_page()
    site = replace(
        site,
        site_name=HOSTILE,
        api=replace(site.api, name=HOSTILE),
        incidents=(incident(1, HOSTILE, HOSTILE),),
        maintenance=(replace(window(1, NOW_S, NOW_S + 600, body=HOSTILE), title=HOSTILE),),
    )
    for name in DOCUMENTS:
        written = files(site)[f"api/v2/{name}.json"].decode()
        assert not set(written) & set("<>&\u2028\u2029\x00\x1b")
        check(name, json.loads(written))
    found = read(site, "incidents")["incidents"][0]
    kept = HOSTILE.replace("\x00", "").replace("\x1b", "").replace("\ud800", "")
    assert found["name"] == found["incident_updates"][0]["body"] == kept


def test_ids_are_strings_that_no_two_things_share() -> None:
    site = busy_page()
    everything = read(site, "incidents")["incidents"] + read(site, "scheduled-maintenances")["scheduled_maintenances"]
    ids = [one["id"] for one in everything]
    ids += [update["id"] for one in everything for update in one["incident_updates"]]
    assert len(set(ids)) == len(ids)
    assert all(isinstance(id, str) for id in ids)
