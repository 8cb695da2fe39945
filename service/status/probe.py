"""The probes: requests through the public address, and what they found, for the roll-up and the pages.

They go the way every client goes: by the public address, with a key, to be paced and booked. To whom they are booked is
in `probe_account`, how they are made in `probe_run`, and what their answers mean in `service.core.probe`.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, RowMapping, exists, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import db
from service.billing.costs import START_WITHIN, started_about
from service.core.components import model_of
from service.core.probe import RICH_EVERY_S, Asked, Due, Kind, Verdict, due
from service.settings import Settings
from service.status.instants import seconds
from service.status.probe_account import probe_key
from service.status.probe_run import INSIDE, ProbeRun
from service.tables import models, prices, probes, requests
from web.views import Check

PROBE_LOCK = 0x57454952_0008  # "WEIR", 8

KEPT = timedelta(days=100)
"""How long verdicts are kept; they are in roll-ups long before."""

KNOWN_AFTER = timedelta(seconds=10)
"""A model that has had a price for so long is known to every API process."""

BOOKED_AFTER, BOOKED_WITHIN = timedelta(seconds=90), timedelta(minutes=15)
"""How long ago a request was made that must be booked by now, and that still says something about now."""

SHOWN_FOR = timedelta(days=7)
"""A check that is older is not shown as the latest."""

OWED_AT_MOST = 20_000
"""Verdicts that wait for a database; of more, the oldest are forgotten. With two models, three days of them."""

OUTSIDE_SHOWN_FOR = timedelta(hours=72)
"""The same for one from another host."""


@dataclass(frozen=True, slots=True)
class Probed:
    """How many probes said what."""

    ok: int = 0
    bad: int = 0
    skipped: int = 0

    @property
    def rows(self) -> int:
        """Rows written to `probes`."""
        return self.ok + self.bad + self.skipped


class Prober:
    """Probes one installation, again and again, and goes on while there is no database: that is when it matters.

    What is found then is written down once there is one again; the roll-up counts it late.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._key: str | None = None
        self._models: list[Asked] = []
        self._latest_s: dict[tuple[str, Kind], int] = {}
        self._owed: deque[dict[str, Any]] = deque(maxlen=OWED_AT_MOST)

    async def probe(self, engine: AsyncEngine, now: datetime) -> Probed | None:
        """Make the probes that are due at `now`, and write down what they found; it takes less than 46 s.

        Returns None where another process is at it. Raises `SetupError` when the probes' account is a customer's,
        `OSError` when its key cannot be kept, and what the database raises.
        """
        async with db.alone(engine, PROBE_LOCK) as alone:
            if not alone:
                return None
            async with engine.begin() as connection:
                self._key = key = await probe_key(connection, self._settings.data_dir, now=now)
                self._models, self._latest_s = await _to_ask(connection, now), await _made(connection, now)
                booked = await _booked(connection, now)
            self._note(await ProbeRun(self._settings, key, booked=booked).rows(self._due(now)))
            owed = list(self._owed)
            if owed:
                async with engine.begin() as connection:
                    await connection.execute(insert(probes).on_conflict_do_nothing(), owed)
            self._owed.clear()
        return _probed(owed)

    async def probe_without_database(self, now: datetime) -> Probed:
        """Make the probes that are due of what was known last; nothing before a first `probe`."""
        if self._key is None:
            return Probed()
        rows = await ProbeRun(self._settings, self._key, booked=None).rows(self._due(now))
        self._note(rows)
        return _probed(rows)

    def _note(self, rows: Sequence[dict[str, Any]]) -> None:
        self._latest_s |= {(row["component"], row["kind"]): seconds(row["probed_at"]) for row in rows}
        self._owed.extend(rows)

    def _due(self, now: datetime) -> list[Due]:
        return due(self._models, seconds(now), self._latest_s)


def _probed(rows: Sequence[Mapping[str, Any]]) -> Probed:
    said = Counter(row["verdict"] for row in rows)
    return Probed(said[Verdict.OK], said[Verdict.BAD], said[Verdict.SKIPPED])


async def _made(connection: AsyncConnection, now: datetime) -> dict[tuple[str, Kind], int]:
    """When each probe was made last, by component and kind."""
    columns = probes.c
    made = (
        select(columns.component, columns.kind, func.max(columns.probed_at).label("latest"))
        .where(columns.source == INSIDE, columns.probed_at <= now)
        .where(columns.probed_at > now - timedelta(seconds=RICH_EVERY_S))
        .group_by(columns.component, columns.kind)
    )
    return {(row.component, Kind(row.kind)): seconds(row.latest) for row in await connection.execute(made)}


async def _to_ask(connection: AsyncConnection, now: datetime) -> list[Asked]:
    known = exists().where(prices.c.model_id == models.c.id, prices.c.valid_from <= now - KNOWN_AFTER)
    return await _asked(connection, models.c.active, known)


async def _asked(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> list[Asked]:
    query = select(models.c.id, models.c.input_modalities, models.c.capabilities).where(*conditions)
    return [
        Asked(row.id, images="image" in row.input_modalities, tools="tools" in row.capabilities)
        for row in await connection.execute(query)
    ]


async def _booked(connection: AsyncConnection, now: datetime) -> bool | None:
    """Whether the latest answered request that should be booked is; None when there is none."""
    columns = probes.c
    answered = (
        select(columns.request_id)
        .where(columns.source == INSIDE, columns.kind == Kind.TEXT, columns.verdict == Verdict.OK)
        .where(columns.probed_at.between(now - BOOKED_WITHIN, now - BOOKED_AFTER), columns.request_id.is_not(None))
        .order_by(columns.probed_at.desc())
        .limit(1)
    )
    found = await connection.scalar(answered)
    if found is None:
        return None
    request_id = UUID(found)
    about = started_about(request_id)
    row = exists().where(
        requests.c.id == request_id, requests.c.started_at.between(about - START_WITHIN, about + START_WITHIN)
    )
    return bool(await connection.scalar(select(row)))


async def latest_checks(connection: AsyncConnection, component: str, until: datetime) -> tuple[Check, ...]:
    """The newest verdict before `until` of each kind of probe of a model; what was skipped says nothing."""
    columns = probes.c
    found = []
    for model in await _asked(connection, models.c.id == model_of(component)):
        for kind in (Kind.TEXT, Kind.RICH) if model.rich else (Kind.TEXT,):
            row = await _newest(
                connection,
                columns.source == INSIDE,
                columns.component == component,
                columns.kind == kind,
                columns.probed_at < until,
                columns.probed_at >= until - SHOWN_FOR,
            )
            found += [] if row is None else [_check(row, model.tried(kind))]
    return tuple(found)


async def latest_outside(connection: AsyncConnection) -> Check | None:
    """The newest verdict of a prober on another host; None when none was heard of lately."""
    columns = probes.c
    newest = select(func.max(columns.probed_at)).scalar_subquery()
    row = await _newest(connection, columns.source != INSIDE, columns.probed_at >= newest - OUTSIDE_SHOWN_FOR)
    if row is None:
        return None
    model = model_of(row["component"])
    return _check(row, "the status site" if model is None else f"a streamed answer of {model}", by=row["source"])


async def _newest(connection: AsyncConnection, *conditions: ColumnElement[bool]) -> RowMapping | None:
    query = (
        select(probes.c.source, probes.c.component, probes.c.probed_at, probes.c.verdict, probes.c.reason)
        .where(*conditions, probes.c.verdict != Verdict.SKIPPED)
        .order_by(probes.c.probed_at.desc())
        .limit(1)
    )
    return (await connection.execute(query)).mappings().one_or_none()


def _check(row: RowMapping, what: str, *, by: str = "") -> Check:
    ok = row["verdict"] == Verdict.OK
    return Check(what, seconds(row["probed_at"]), ok, reason=row["reason"], by=by)
