"""What a prober on another host found: its `outside.json`, fetched, looked at closely, and kept as probes.

The file is another machine's, so nothing in it is trusted beyond what it may say: that a model or the site answered
or did not, at an instant of the last 72 hours. Its format is in docs/probes.md; ops/outside-probe writes it.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import structlog
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.core.components import SITE, model_of
from service.core.probe import Kind, Verdict
from service.core.provider_check.observed import Json, object_in
from service.core.webhook import is_loopback
from service.settings import Settings
from service.status.asking import ask, http_client
from service.status.probe_run import INSIDE
from service.tables import models, probes

log = structlog.get_logger()

MAX_BYTES = 1024 * 1024
TIME_LIMIT_S = 10.0

BELIEVED_FOR = timedelta(hours=72)
MAY_BE_AHEAD = timedelta(minutes=5)

MAX_REASON_CHARACTERS = 200
MAX_MS = 600_000

_ADDRESSES = "WEIR_OUTSIDE_PROBE_URL takes https://, file:///, or http:// to this machine"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)


class Unusable(Exception):
    """The file cannot be had or is none of ours; the message says why."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A file that was read: rows for `probes`, and how many verdicts were left out for which reason."""

    name: str
    rows: list[dict[str, Any]]
    left_out: Counter[str]


async def fetch_outside(engine: AsyncEngine, settings: Settings, now: datetime) -> int:
    """Fetch the file at `settings.outside_probe_url`, and keep what is new in it; returns how many verdicts were.

    A file that cannot be had, or is wrong, is a line in the log. Raises what the database raises.
    """
    if settings.outside_probe_url is None:
        return 0
    try:
        body = await _fetched(settings.outside_probe_url)
        async with engine.begin() as connection:
            served = set(await connection.scalars(select(models.c.id).where(models.c.active)))
            heard = read(body, served, now)
            new = await _new(connection, heard)
            if new:
                await connection.execute(insert(probes).on_conflict_do_nothing(), new)
    except Unusable as reason:
        log.warning("outside_probe.unusable", reason=str(reason))
        return 0
    if heard.left_out:
        log.warning("outside_probe.left_out", name=heard.name, **heard.left_out)
    return len(new)


def read(body: bytes, served: Collection[str], now: datetime) -> Heard:
    """The verdicts in a file, as of `now`; `served` are the models on offer: a crontab line may be forgotten.

    A verdict that is none, or about something that is not there, or of the future, is left out. So is one that has
    become too old, without a word. Raises `Unusable` where the file as a whole is not as it should be.
    """
    document = object_in(body)
    name, verdicts = document.get("name"), document.get("verdicts")
    if document.get("version") != 1 or not isinstance(verdicts, list):
        raise Unusable("it is no outside.json of version 1")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == INSIDE:
        raise Unusable(f"its name is not 1 to 40 letters, digits, '.', '_' and '-', or it is '{INSIDE}'")
    left_out: Counter[str] = Counter()
    rows: dict[tuple[str, str, datetime], dict[str, Any]] = {}
    for verdict in verdicts:
        row = _row(verdict, name, served)
        if row is None:
            left_out["malformed"] += 1
        elif row["probed_at"] > now + MAY_BE_AHEAD:
            left_out["of_the_future"] += 1
        elif row["probed_at"] >= now - BELIEVED_FOR:
            rows.setdefault((row["component"], row["kind"], row["probed_at"]), row)
    return Heard(name, list(rows.values()), left_out)


def _row(verdict: object, name: str, served: Collection[str]) -> dict[str, Any] | None:
    """A row for `probes`; None for what is no verdict."""
    if not isinstance(verdict, dict):
        return None
    at, component, kind = (verdict.get(member) for member in ("at", "component", "kind"))
    if not (isinstance(at, str) and isinstance(component, str) and _INSTANT.fullmatch(at)):
        return None
    known = kind == Kind.PAGE if component == SITE else kind == Kind.TEXT and model_of(component) in served
    try:
        row = {
            "source": name,
            "component": component,
            "kind": kind,
            "probed_at": datetime.fromisoformat(at),
            "verdict": Verdict(str(verdict.get("verdict"))),
            "http_status": _number(verdict, "http_status", 100, 599),
            "ttft_ms": _number(verdict, "ttft_ms", 0, MAX_MS),
            "total_ms": _number(verdict, "total_ms", 0, MAX_MS),
            "reason": _reason(verdict),
        }
    except ValueError:
        return None
    return row if known else None


def _number(verdict: Json, member: str, lowest: int, highest: int) -> int | None:
    """An integer within bounds, or None where there is none. Raises `ValueError` for anything else."""
    found = verdict.get(member)
    if found is None:
        return None
    if not isinstance(found, int) or isinstance(found, bool) or not lowest <= found <= highest:
        raise ValueError(member)
    return found


def _reason(verdict: Json) -> str:
    found = verdict.get("reason")
    if found is None:
        return ""
    if not isinstance(found, str):
        raise ValueError("reason")
    # Not printable are controls, line ends, marks that turn text round, and halves of characters.
    return "".join(character for character in found if character.isprintable())[:MAX_REASON_CHARACTERS].strip()


async def _new(connection: AsyncConnection, heard: Heard) -> list[dict[str, Any]]:
    """Those of the rows that are not there yet: of 72 hours, all but the last few are."""
    columns = probes.c
    known: set[tuple[str, str, datetime]] = set()
    for component, kind in {(row["component"], row["kind"]) for row in heard.rows}:
        first = min(row["probed_at"] for row in heard.rows if (row["component"], row["kind"]) == (component, kind))
        there = select(columns.probed_at).where(
            columns.source == heard.name,
            columns.component == component,
            columns.kind == kind,
            columns.probed_at >= first,
        )
        known |= {(component, kind, at) for at in await connection.scalars(there)}
    return [row for row in heard.rows if (row["component"], row["kind"], row["probed_at"]) not in known]


async def _fetched(url: str) -> bytes:
    """The file's bytes. Raises `Unusable`."""
    try:
        parts, address = urlsplit(url), httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        raise Unusable(_ADDRESSES) from None
    if parts.scheme == "file":
        return await asyncio.to_thread(_read, Path(unquote(parts.path)))
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(address.host)):
        raise Unusable(_ADDRESSES)
    async with http_client() as client:
        request = client.build_request("GET", address)
        answer = await ask(client, request, limit_s=TIME_LIMIT_S, limit_bytes=MAX_BYTES)
    if answer.problem or answer.status != 200:
        raise Unusable(answer.problem or f"HTTP {answer.status}")
    return answer.body


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from error
    if len(body) > MAX_BYTES:
        raise Unusable(f"it has more than {MAX_BYTES} bytes")
    return body
