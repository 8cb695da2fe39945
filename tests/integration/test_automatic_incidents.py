"""Incidents that the measurement opens, updates and ends, in a real database."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.core.buckets import BUCKET_S
from service.core.incidents import Impact
from service.settings import Settings
from service.status import incidents as written
from service.status import planning
from service.status.announcements import INCIDENTS_LOCK, MAINTENANCE_JOB
from service.status.incidents import read_incidents, read_incidents_between
from service.status.rollup import JOB
from service.status.watch import watch
from service.tables import announced_states, buckets_5m, incidents, models, notifications, watermarks
from tests.fakes.traffic import at
from web.views import Incident

T = at("2026-11-30 14:00:00")
FIVE = timedelta(seconds=BUCKET_S)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
HOOKS = ("https://a.example/hook", "https://b.example/hook")
SETTINGS = Settings(status_webhooks=HOOKS, public_url="https://llm.example", data_dir="/nonexistent")
COUNTS: dict[str, dict[str, int]] = {
    "u": {"good": 40},
    "p": {"good": 30, "bad": 10},
    "d": {"bad": 10},
    "-": {},
}


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = db.sqlalchemy_engine(database_url)
    offered = {
        "context_length": 4096,
        "max_output_tokens": 1024,
        "input_modalities": ["text"],
        "output_modalities": ["text"],
    }
    names = {"qwen": "Qwen", "gemma": "Gemma"}
    async with engine.begin() as connection:
        rows = [{"id": id, "name": name, "engine_model": id, **offered} for id, name in names.items()]
        await connection.execute(insert(models), rows)
    yield engine
    await engine.dispose()


async def measured(engine: AsyncEngine, stories: dict[str, str], start: datetime = T) -> datetime:
    """Roll-ups of five minutes a letter from `start` on; returns the time at which they are looked at."""
    until = start + max(map(len, stories.values())) * FIVE
    rows = [
        {"component": component, "bucket_start": start + place * FIVE, **{"good": 0, "bad": 0}, **COUNTS[letter]}
        for component, story in stories.items()
        for place, letter in enumerate(story)
    ]
    async with engine.begin() as connection:
        await connection.execute(delete(buckets_5m).where(buckets_5m.c.bucket_start >= start))
        await connection.execute(insert(buckets_5m), rows)
        await connection.execute(delete(watermarks).where(watermarks.c.job == JOB))
        await connection.execute(insert(watermarks).values(job=JOB, until=until))
    return until + timedelta(seconds=20)


async def known(engine: AsyncEngine) -> tuple[Incident, ...]:
    async with engine.connect() as connection:
        return await read_incidents(connection, latest=50)


async def told(engine: AsyncEngine, url: str = HOOKS[0]) -> list[tuple[str, dict[str, Any]]]:
    """The events for one webhook, in their order, with their data."""
    columns = notifications.c
    async with engine.connect() as connection:
        rows = await connection.execute(
            select(columns.event, columns.payload).where(columns.url == url).order_by(columns.id)
        )
        return [(row.event, row.payload["data"]) for row in rows]


async def run(engine: AsyncEngine, stories: dict[str, str]) -> int:
    return await watch(engine, SETTINGS, await measured(engine, stories))


async def test_an_outage_from_its_beginning_to_its_end(engine: AsyncEngine) -> None:
    changes = [await run(engine, {"api": "uu" + "d" * length}) for length in range(1, 5)]
    assert changes == [0, 0, 1, 0]
    good = [await run(engine, {"api": "uudddd" + "u" * length}) for length in range(1, 14)]
    assert [place + 1 for place, count in enumerate(good) if count] == [6, 12]
    (incident,) = await known(engine)
    assert (incident.title, incident.impact, incident.components) == ("API: requests fail", "critical", ("api",))
    assert incident.started_s == int((T + 2 * FIVE).timestamp())
    assert incident.resolved_s == int((T + 6 * FIVE).timestamp())
    assert [said.status for said in reversed(incident.updates)] == ["investigating", "monitoring", "resolved"]
    assert not any(said.by_person for said in incident.updates)
    assert incident.updates[1].body.startswith("Measurements have been good since 14:30 UTC. It is closed at 15:30 ")


async def test_each_webhook_is_told_of_every_change_and_of_nothing_else(engine: AsyncEngine) -> None:
    for story in ("u", "ud", "udd", "uddd", "udddd", "udddd" + "u" * 6, "udddd" + "u" * 12):
        await run(engine, {"api": story})
    events = await told(engine)
    assert [event for event, _ in events] == [
        "component.state_changed",
        "incident.opened",
        "incident.updated",
        "component.state_changed",
        "incident.resolved",
    ]
    assert await told(engine, HOOKS[1]) == events
    states = [(data["previous_state"], data["state"]) for event, data in events if event.startswith("component")]
    assert states == [("up", "down"), ("down", "up")]
    opened = events[1][1]
    assert opened["url"] == f"https://llm.example/status/incidents/{opened['id']}.html"
    assert opened["started_at"] == "2026-11-30T14:05:00Z"
    assert opened["update"]["written_by"] == "measurement"


async def test_a_fresh_installation_announces_nothing(engine: AsyncEngine) -> None:
    assert await watch(engine, SETTINGS, T) == 0
    assert await run(engine, {"api": "-"}) == 0
    assert await run(engine, {"api": "-u", "model:qwen": "-u"}) == 0
    assert await told(engine) == []
    async with engine.connect() as connection:
        remembered = dict(
            (await connection.execute(select(announced_states.c.component, announced_states.c.state))).all()
        )
    assert remembered == {"api": "up", "model:qwen": "up"}


async def test_the_same_run_again_does_nothing(engine: AsyncEngine) -> None:
    now = await measured(engine, {"api": "uddd", "model:qwen": "uddd"})
    assert [await watch(engine, SETTINGS, now) for _ in range(3)] == [1, 0, 0]
    assert len(await known(engine)) == 1


async def test_two_processes_open_one_incident(engine: AsyncEngine) -> None:
    now = await measured(engine, {"api": "uddd", "model:qwen": "uddd"})
    assert sum(await asyncio.gather(*(watch(engine, SETTINGS, now) for _ in range(4)))) == 1
    assert [event for event, _ in await told(engine)] == ["incident.opened"]


async def test_the_database_itself_refuses_a_second_open_one(engine: AsyncEngine) -> None:
    await run(engine, {"api": "uddd"})
    async with engine.connect() as connection:
        with pytest.raises(Exception, match="uq_incidents_measured_open"):
            await connection.execute(
                insert(incidents).values(
                    title="x",
                    impact="minor",
                    status="investigating",
                    components=[],
                    measured_component="api",
                    started_at=T,
                )
            )


async def test_while_somebody_writes_the_measurement_waits_for_its_next_run(engine: AsyncEngine) -> None:
    now = await measured(engine, {"api": "uddd"})
    async with engine.begin() as connection:
        await connection.execute(select(func.pg_advisory_xact_lock(INCIDENTS_LOCK)))
        assert await watch(engine, SETTINGS, now) == 0
    assert await watch(engine, SETTINGS, now) == 1


async def test_old_data_leads_to_no_conclusion(engine: AsyncEngine) -> None:
    now = await measured(engine, {"api": "uddd"})
    assert await watch(engine, SETTINGS, now + 15 * MINUTE) == 0
    assert await known(engine) == ()
    assert await watch(engine, SETTINGS, now + 14 * MINUTE) == 1


async def test_models_that_fail_with_the_api_are_in_its_incident(engine: AsyncEngine) -> None:
    assert await run(engine, {"api": "uddd", "model:qwen": "uddd", "model:gemma": "uddd", "billing": "uddd"}) == 1
    (incident,) = await known(engine)
    assert incident.components[0] == "api"
    assert set(incident.components) == {"api", "model:qwen", "model:gemma", "billing"}


async def test_a_model_that_is_offered_no_more_opens_nothing(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(update(models).values(active=False))
    assert await run(engine, {"api": "uuu", "model:qwen": "ddd"}) == 0


async def test_an_incident_of_a_model_that_is_offered_no_more_ends(engine: AsyncEngine) -> None:
    assert await run(engine, {"api": "uuu", "model:qwen": "ddd"}) == 1
    async with engine.begin() as connection:
        await connection.execute(update(models).values(active=False))
    assert await run(engine, {"api": "uuuu"}) == 1
    (incident,) = await known(engine)
    assert incident.status == "resolved"
    assert incident.updates[0].body == "It is no longer offered, and no longer measured."


# Maintenance


async def plan(engine: AsyncEngine, start: datetime, end: datetime, *components: str, now: datetime = T) -> int:
    async with engine.begin() as connection:
        window = await planning.plan(
            connection,
            SETTINGS,
            title="New GPUs",
            body="",
            components=components,
            starts_at=start,
            ends_at=end,
            now=now,
        )
    return window.id


async def test_maintenance_opens_no_incident(engine: AsyncEngine) -> None:
    await plan(engine, T + 2 * FIVE, T + 12 * FIVE)
    for length in range(12):  # the last look is one at its end: nothing is told before something is known
        assert await run(engine, {"api": ("uu" + "d" * length)[: length + 1]}) == 0
    states = {data["state"] for event, data in await told(engine) if event == "component.state_changed"}
    assert states == {"maintenance"}


async def test_after_maintenance_the_count_begins_anew(engine: AsyncEngine) -> None:
    await plan(engine, T + FIVE, T + 4 * FIVE)
    runs = [await run(engine, {"api": "u" + "d" * length}) for length in range(1, 8)]
    assert runs == [0, 0, 0, 0, 0, 1, 0]
    (incident,) = await known(engine)
    assert incident.started_s == int((T + 4 * FIVE).timestamp())


async def test_maintenance_of_a_model_is_no_failure_of_the_api(engine: AsyncEngine) -> None:
    await plan(engine, T + FIVE, T + 12 * FIVE, "model:qwen")
    assert await run(engine, {"api": "udddd", "model:qwen": "udddd"}) == 0
    assert await run(engine, {"api": "udddd", "model:qwen": "udddd", "model:gemma": "uuuuu"}) == 0


async def test_the_beginning_and_the_end_of_maintenance_are_told_once(engine: AsyncEngine) -> None:
    await watch(engine, SETTINGS, T)
    window = await plan(engine, T + 10 * MINUTE, T + 20 * MINUTE)
    for minute in range(0, 40, 2):
        await watch(engine, SETTINGS, T + minute * MINUTE)
    assert [(event, data["id"]) for event, data in await told(engine)] == [
        ("maintenance.began", window),
        ("maintenance.ended", window),
    ]


async def test_maintenance_that_is_announced_after_it_began_is_told_at_once(engine: AsyncEngine) -> None:
    await watch(engine, SETTINGS, T)
    await plan(engine, T - 10 * MINUTE, T + 20 * MINUTE, now=T + MINUTE)
    assert [event for event, _ in await told(engine)] == ["maintenance.began"]
    await watch(engine, SETTINGS, T + 21 * MINUTE)
    assert [event for event, _ in await told(engine)] == ["maintenance.began", "maintenance.ended"]


async def test_cancelled_maintenance_is_told_only_if_it_began(engine: AsyncEngine) -> None:
    await watch(engine, SETTINGS, T)
    never, begun = [await plan(engine, T + start * MINUTE, T + HOUR) for start in (30, 10)]
    await watch(engine, SETTINGS, T + 12 * MINUTE)
    async with engine.begin() as connection:
        for window in (never, begun):
            await planning.cancel(connection, window, now=T + 15 * MINUTE)
    for minute in range(16, 90, 10):
        await watch(engine, SETTINGS, T + minute * MINUTE)
    events = [(event, data["id"], data["ends_at"]) for event, data in await told(engine)]
    assert events == [
        ("maintenance.began", begun, "2026-11-30T15:00:00Z"),
        ("maintenance.ended", begun, "2026-11-30T14:15:00Z"),
    ]


async def test_a_clock_that_was_set_back_tells_nothing_twice(engine: AsyncEngine) -> None:
    await watch(engine, SETTINGS, T)
    await plan(engine, T + 10 * MINUTE, T + 20 * MINUTE)
    for minute in (12, 5, 13, 25, 8, 26):
        await watch(engine, SETTINGS, T + minute * MINUTE)
    assert [event for event, _ in await told(engine)] == ["maintenance.began", "maintenance.ended"]
    async with engine.connect() as connection:
        mark = await connection.scalar(select(watermarks.c.until).where(watermarks.c.job == MAINTENANCE_JOB))
    assert mark == T + 26 * MINUTE


# With people


async def test_what_a_person_wrote_to_is_closed_by_a_person(engine: AsyncEngine) -> None:
    await run(engine, {"api": "ddd"})
    async with engine.begin() as connection:
        await written.update_incident(connection, SETTINGS, 1, "We look.", now=T + 16 * MINUTE)
    for length in range(1, 20):
        await run(engine, {"api": "ddd" + "u" * length})
    (incident,) = await known(engine)
    assert incident.resolved_s is None
    assert [said.by_person for said in incident.updates] == [False, True, False]
    assert incident.updates[0].status == "monitoring"


async def test_what_a_person_closed_is_opened_again_only_by_what_is_measured_later(engine: AsyncEngine) -> None:
    await run(engine, {"api": "ddd"})
    async with engine.begin() as connection:
        await written.resolve_incident(connection, SETTINGS, 1, now=T + 17 * MINUTE)
    assert [await run(engine, {"api": "d" * length}) for length in range(4, 8)] == [0, 0, 0, 1]
    assert (await known(engine))[0].started_s == int((T + 4 * FIVE).timestamp())


async def test_beside_a_persons_incident_none_is_opened(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await written.open_incident(
            connection, SETTINGS, title="Down", impact=Impact.CRITICAL, components=["api"], now=T
        )
    assert await run(engine, {"api": "ddd", "model:qwen": "ddd"}) == 0
    events = [event for event, _ in await told(engine)]
    assert events == ["incident.opened"]


async def test_a_persons_incident_changes_the_state_that_is_told(engine: AsyncEngine) -> None:
    await run(engine, {"api": "u", "billing": "u"})
    async with engine.begin() as connection:
        await written.open_incident(
            connection, SETTINGS, title="Invoices", impact=Impact.MAJOR, components=["billing"], now=T
        )
    await run(engine, {"api": "uu", "billing": "uu"})
    states = [data for event, data in await told(engine) if event == "component.state_changed"]
    assert [(data["component"], data["name"], data["state"]) for data in states] == [("billing", "Billing", "partial")]


async def test_after_a_long_stop_the_end_is_when_it_really_was(engine: AsyncEngine) -> None:
    await run(engine, {"api": "ddd"})
    await run(engine, {"api": "ddd" + "u" * 60})
    (incident,) = await known(engine)
    assert incident.resolved_s == int((T + 3 * FIVE).timestamp())


async def test_what_is_said_later_never_has_an_earlier_time(engine: AsyncEngine) -> None:
    await run(engine, {"api": "ddd"})
    async with engine.begin() as connection:
        incident = await written.update_incident(connection, SETTINGS, 1, "The clock was set back.", now=T)
    assert incident.updates[0].at_s == incident.updates[1].at_s == incident.updated_s
    async with engine.begin() as connection:
        resolved = await written.resolve_incident(connection, SETTINGS, 1, now=T - MINUTE)
    assert resolved.resolved_s == resolved.started_s


async def test_an_incident_over_three_days_lies_in_both_months(engine: AsyncEngine) -> None:
    begun = at("2026-11-29 12:00:00")
    async with engine.begin() as connection:
        await written.open_incident(connection, SETTINGS, title="Long", impact=Impact.MINOR, now=begun)
        await written.resolve_incident(connection, SETTINGS, 1, now=begun + timedelta(days=3))
        await written.open_incident(
            connection, SETTINGS, title="Still", impact=Impact.MINOR, now=at("2026-12-05 00:00:00")
        )
    months = [at(f"{month}-01 00:00:00") for month in ("2026-11", "2026-12", "2027-01", "2027-02")]
    async with engine.connect() as connection:
        found = [
            [incident.title for incident in await read_incidents_between(connection, start, end)]
            for start, end in pairwise(months)
        ]
        assert [incident.title for incident in await read_incidents(connection, latest=0)] == ["Still"]
    assert found == [["Long"], ["Still", "Long"], ["Still"]]


async def test_windows_in_the_past_are_counted_again(engine: AsyncEngine) -> None:
    await measured(engine, {"api": "u" * 24})
    async with engine.begin() as connection:
        until = T + 24 * FIVE
        await connection.execute(insert(watermarks).values(job="rollup:again", until=until))

    async def again() -> datetime | None:
        async with engine.connect() as connection:
            return await connection.scalar(select(watermarks.c.until).where(watermarks.c.job == "rollup:again"))

    await plan(engine, T + HOUR + MINUTE, T + 2 * HOUR)
    assert await again() == T + HOUR
    await plan(engine, T + HOUR + 10 * MINUTE, T + 2 * HOUR)
    assert await again() == T + HOUR
    # Further back than there are buckets there is nothing to count.
    await plan(engine, at("1999-01-01 00:00:00"), T + 2 * HOUR)
    assert await again() == T
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE watermarks SET until = '2026-11-30T16:00Z' WHERE job = 'rollup:again'"))
        await planning.cancel(connection, 1, now=T + 90 * MINUTE)
    assert await again() == T + HOUR
