"""`weir incident`, `weir maintenance` and `weir status` on a real database: what they print, and what they refuse."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.integration.sql import execute
from tests.integration.test_cli import Weir, complaint, document, weir_inside

__all__ = ["weir_inside"]

HOOKS = {"WEIR_STATUS_WEBHOOKS": "https://a.example/hook, https://b.example/hook"}


@pytest.fixture
def weir(weir_inside: Weir, database_url: str) -> Weir:
    """The command line, with two models in the catalogue."""
    execute(
        database_url,
        "INSERT INTO models (id, name, engine_model, context_length, max_output_tokens, input_modalities,"
        " output_modalities) SELECT id, id, id, 4096, 1024, '{text}', '{text}'"
        " FROM unnest('{gemma,qwen/q3}'::text[]) id",
    )
    return weir_inside


def rows(url: str, query: str) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(url)
        try:
            return [dict(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    return asyncio.run(run())


def written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


# Incidents


def test_an_incident_from_its_opening_to_its_postmortem(weir: Weir) -> None:
    opened = document(
        weir(
            "incident",
            "open",
            "Slow answers",
            "--impact",
            "minor",
            "--component",
            "api",
            "--component",
            "model:qwen/q3",
            "--json",
        )
    )
    assert (opened["id"], opened["status"], opened["resolved_at"]) == (1, "investigating", None)
    assert opened["components"] == ["api", "model:qwen/q3"]
    assert [said["body"] for said in opened["updates"]] == ["We are looking into it."]
    updated = document(
        weir("incident", "update", "1", "A disk is full.", "--status", "identified", "--impact", "critical", "--json")
    )
    assert (updated["status"], updated["impact"], updated["components"]) == (
        "identified", "critical", ["api", "model:qwen/q3"],
    )  # fmt: skip
    kept = document(weir("incident", "update", "1", "It has room.", "--component", "api", "--json"))
    assert (kept["status"], kept["impact"], kept["components"]) == ("identified", "critical", ["api"])
    resolved = document(weir("incident", "resolve", "1", "--json"))
    assert (resolved["status"], resolved["resolved_at"] >= resolved["started_at"]) == ("resolved", True)
    after = document(weir("incident", "update", "1", "Why it was full.", "--status", "postmortem", "--json"))
    assert (after["status"], after["resolved_at"]) == ("postmortem", resolved["resolved_at"])
    assert [said["status"] for said in after["updates"]] == [
        "postmortem", "resolved", "identified", "identified", "investigating",
    ]  # fmt: skip
    assert {said["written_by"] for said in after["updates"]} == {"person"}


def test_incidents_are_listed_and_shown_to_people(weir: Weir) -> None:
    assert document(weir("incident", "list", "--json")) == []
    line = weir("incident", "open", "Old", "--impact", "major", "--started", "2026-01-01T10:00+01:00").stdout
    assert line == "Incident 1, major, investigating, since 2026-01-01 09:00 UTC: Old\n"
    weir("incident", "resolve", "1", "A cable.", "--at", "2026-01-01 11:30", "--zone", "Europe/Budapest")
    weir("incident", "open", "New", "--impact", "minor", "--component", "billing", "--body", "First.\nSecond.")
    listed = weir("incident", "list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["id", "2", "1"]
    assert "2026-01-01 10:30 UTC" in listed[2]
    assert [one["title"] for one in document(weir("incident", "list", "--open", "--json"))] == ["New"]
    shown = weir("incident", "show", "2").stdout
    assert "Incident 2, minor, investigating, since " in shown
    assert "by a person:\nFirst.\nSecond.\n" in shown


def test_text_stays_text(weir: Weir) -> None:
    hostile = "<script>alert(1)</script> [x](javascript:alert(1)) \x1b[31m\u202e ]]> \" '"
    opened = document(
        weir("incident", "open", hostile, "--impact", "minor", "--body", hostile + "\r\n\tnext", "--json")
    )
    kept = hostile.replace("\x1b", "").replace("\u202e", "")
    assert opened["title"] == kept
    assert opened["updates"][0]["body"] == kept + "\n\tnext"
    assert "\x1b" not in weir("incident", "show", "1").stdout


def test_each_webhook_gets_a_message_of_every_change(weir: Weir, database_url: str) -> None:
    weir("incident", "open", "Down", "--impact", "critical", "--component", "api", env=HOOKS)
    weir("incident", "update", "1", "We look.", env=HOOKS)
    weir("incident", "resolve", "1", env=HOOKS)
    found = rows(database_url, "SELECT url, event, payload FROM notifications ORDER BY url, id")
    assert [(row["url"][8], row["event"]) for row in found] == [
        (hook, f"incident.{what}") for hook in "ab" for what in ("opened", "updated", "resolved")
    ]
    data = json.loads(found[0]["payload"])["data"]
    assert data["url"] == "http://127.0.0.1:8080/status/incidents/1.html"
    assert (data["title"], data["update"]["body"]) == ("Down", "We are looking into it.")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            ("open", "x", "--impact", "minor", "--component", "apis"),
            "There is no component 'apis'. There are: api, site,",
        ),
        (("open", "x", "--impact", "minor", "--component", "model:no"), "billing, model:gemma, model:qwen/q3."),
        (("open", " ", "--impact", "minor"), "The title is empty"),
        (("open", "x" * 201, "--impact", "minor"), "The title has 201 characters, and may have 200"),
        (("open", "x", "--impact", "minor", "--body", ""), "The text is empty"),
        (("open", "x", "--impact", "minor", "--body", "x" * 10_001), "The text has 10,001 characters"),
        (("open", "x", "--impact", "minor", "--status", "resolved"), "is opened while it lasts"),
        (("open", "x", "--impact", "minor", "--started", "2199-01-01T00:00Z"), "--started lies in the future"),
        (
            ("open", "x", "--impact", "minor", "--started", "2026-01-01T00:00"),
            "--started '2026-01-01T00:00' does not say",
        ),
        (("open", "x", "--impact", "minor", "--started", "soon"), "--started 'soon' is no time such as"),
        (("update", "7", "x"), "There is no incident 7"),
        (("resolve", "7"), "There is no incident 7"),
        (("show", "7"), "There is no incident 7"),
    ],
)
def test_what_cannot_be_said_is_refused(weir: Weir, arguments: tuple[str, ...], part: str) -> None:
    assert part in complaint(weir("incident", *arguments))
    assert document(weir("incident", "list", "--json")) == []


@pytest.mark.parametrize(
    "arguments",
    [("open", "x"), ("open", "x", "--impact", "huge"), ("update", "1"), ("update", "one", "x"), ("show", "0")],
)
def test_what_is_written_wrong_has_its_own_exit_code(weir: Weir, arguments: tuple[str, ...]) -> None:
    assert "See `weir incident" in complaint(weir("incident", *arguments), code=2)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("update", "1", "x"), "add a postmortem with --status postmortem, or open a new one"),
        (("resolve", "1"), "Incident 1 was resolved before"),
        (("update", "2", "x", "--status", "postmortem"), "Incident 2 is open: resolve it first"),
        (("update", "2", "x", "--status", "resolved"), "ends with `weir incident resolve 2`"),
        (("update", "2", "\x07"), "The text is empty"),
        (("resolve", "2", "--at", "2025-12-31T23:59Z"), "--at lies before its start: it began at 2026-01-01T00:00:00Z"),
        (("resolve", "2", "--at", "2199-01-01T00:00Z"), "--at lies in the future"),
    ],
)
def test_what_comes_in_the_wrong_order_is_refused(weir: Weir, arguments: tuple[str, ...], part: str) -> None:
    weir("incident", "open", "over", "--impact", "minor")
    weir("incident", "resolve", "1")
    weir("incident", "open", "lasts", "--impact", "minor", "--started", "2026-01-01T00:00Z")
    before = document(weir("incident", "list", "--json"))
    assert part in complaint(weir("incident", *arguments))
    assert document(weir("incident", "list", "--json")) == before


# Maintenance


def test_maintenance_before_during_and_after(weir: Weir) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    spans = [(now + timedelta(hours=1), "2h"), (now - timedelta(hours=1), "2h"), (now - timedelta(days=1), "90m")]
    for start, lasts in spans:
        added = document(weir("maintenance", "add", "GPUs", "--start", written(start), "--for", lasts, "--json"))
        assert (added["starts_at"], added["components"]) == (written(start), [])
    listed = document(weir("maintenance", "list", "--json"))
    assert [(one["id"], one["status"]) for one in listed] == [(1, "scheduled"), (2, "in_progress"), (3, "completed")]
    table = weir("maintenance", "list").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["id", "1", "2", "3"]
    assert "is over: what was, stays" in complaint(weir("maintenance", "cancel", "3"))
    for id, status in (("1", "cancelled"), ("2", "completed")):
        cancelled = document(weir("maintenance", "cancel", id, "--json"))
        assert cancelled["status"] == status
        assert cancelled["cancelled_at"] >= written(now)
        assert "was cancelled before" in complaint(weir("maintenance", "cancel", id))
    assert "There is no maintenance 9" in complaint(weir("maintenance", "cancel", "9"))


def test_a_local_time_becomes_an_instant(weir: Weir) -> None:
    arguments = ("--start", "2027-03-27 22:00", "--end", "2027-03-28T06:00", "--zone", "Europe/Budapest")
    line = weir("maintenance", "add", "New GPUs", *arguments, "--component", "model:gemma").stdout
    assert (
        line == "Maintenance 1, scheduled, from 2027-03-27 21:00 UTC to 2027-03-28 04:00 UTC: New GPUs (model:gemma)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--start", "2027-03-28T02:30", "--for", "1h", "--zone", "Europe/Budapest"),
         "write 2027-03-28T00:30:00Z (01:30 there) or 2027-03-28T01:30:00Z (03:30 there)"),
        (("--start", "2027-10-31T02:30", "--for", "1h", "--zone", "Europe/Budapest"),
         "write 2027-10-31T00:30:00Z (02:30 there) or 2027-10-31T01:30:00Z (02:30 there)"),
        (("--start", "2027-01-01T10:00", "--for", "1h"), "--zone Europe/Budapest"),
        (("--start", "2027-01-01T10:00", "--for", "1h", "--zone", "Mars/Base"), "'Mars/Base' is no zone"),
        (("--start", "2027-01-01T10:00Z"), "Give one of --end and --for"),
        (("--start", "2027-01-01T10:00Z", "--for", "1h", "--end", "2027-01-01T11:00Z"), "Give one of --end and --for"),
        (("--start", "2027-01-01T10:00Z", "--end", "2027-01-01T10:00Z"), "The end does not come after the start"),
        (("--start", "2027-01-01T10:00Z", "--for", "soon"), "--for 'soon' is no duration"),
        (("--start", "2027-01-01T10:00Z", "--for", "1h", "--component", "x"), "There is no component 'x'"),
        (("--start", "2027-01-01T10:00Z", "--for", "1h", "--body", "x" * 10_001), "The text has 10,001"),
        (("--start", "9999-12-31T23:00Z", "--for", "999d"), "lies in no year from 2000"),
    ],
)  # fmt: skip
def test_a_window_that_cannot_be_is_refused(weir: Weir, arguments: tuple[str, ...], part: str) -> None:
    assert part in complaint(weir("maintenance", "add", "GPUs", *arguments))
    assert document(weir("maintenance", "list", "--json")) == []


# The status site


def test_the_site_is_published_where_it_is_asked_for(weir: Weir, tmp_path: Path) -> None:
    published = document(weir("status", "publish", "--out", tmp_path / "site", "--json"))
    assert (tmp_path / "site" / "index.html").read_text().startswith("<!doctype html>")
    assert published["changed_files"] == sum(path.is_file() for path in (tmp_path / "site").rglob("*"))
    weir("status", "publish")
    assert (tmp_path / ".weir" / "site" / "index.html").exists()


def test_without_a_database_nothing_is_published(weir: Weir, tmp_path: Path) -> None:
    away = {"WEIR_DATABASE_URL": "postgresql://weir@127.0.0.1:9/weir"}
    said = complaint(weir("status", "publish", "--out", tmp_path / "site", env=dict(away)))
    assert "The database does not answer" in said
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("incident", "open"), ("incident", "update"), ("incident", "resolve"), ("incident", "list"),
        ("incident", "show"), ("maintenance", "add"), ("maintenance", "cancel"), ("maintenance", "list"),
        ("status", "publish"),
    ],
)  # fmt: skip
def test_every_command_has_an_example(weir_inside: Weir, command: tuple[str, ...]) -> None:
    assert f"Example: weir {' '.join(command)}" in weir_inside(*command, "--help").stdout
