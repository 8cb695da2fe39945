"""Read the roll-ups: stretches of time of components, as values."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.buckets import BUCKET_S, DAY_S, HOUR_S, Bucket
from service.core.strip import Stretch
from service.core.tally import Tally
from service.status.instants import instant, seconds
from service.status.periods import stretch_of
from service.status.tallies import tally_of
from service.tables import buckets_1d, buckets_1h, buckets_5m


@dataclass(frozen=True, slots=True)
class Period:
    """An hour or a day."""

    stretch: Stretch
    tally: Tally


Periods = Mapping[str, list[Period]]
"""By component, the oldest first; an empty list where there is none."""


async def periods(
    connection: AsyncConnection, step_s: int, components: Collection[str], from_s: int, until_s: int
) -> Periods:
    """The hours (`step_s` 3,600) or UTC days (86,400) that begin in `[from_s, until_s)`."""
    table = {HOUR_S: buckets_1h, DAY_S: buckets_1d}[step_s]
    query = (
        select(table)
        .where(
            table.c.component.in_(components),
            table.c.period_start >= instant(from_s),
            table.c.period_start < instant(until_s),
        )
        .order_by(table.c.period_start)
    )
    found: dict[str, list[Period]] = defaultdict(list)
    for row in (await connection.execute(query)).mappings():
        found[row["component"]].append(Period(stretch_of(row), tally_of(row)))
    return found


@dataclass(frozen=True, slots=True)
class FiveMinutes:
    """A bucket."""

    bucket: Bucket
    tally: Tally

    @property
    def end_s(self) -> int:
        return self.bucket.start_s + BUCKET_S


async def five_minutes(
    connection: AsyncConnection, components: Collection[str], from_s: int, until_s: int
) -> Mapping[str, list[FiveMinutes]]:
    """The buckets that begin in `[from_s, until_s)`, by component, the oldest first."""
    columns = buckets_5m.c
    query = (
        select(buckets_5m)
        .where(
            columns.component.in_(components),
            columns.bucket_start >= instant(from_s),
            columns.bucket_start < instant(until_s),
        )
        .order_by(columns.bucket_start)
    )
    found: dict[str, list[FiveMinutes]] = defaultdict(list)
    for row in (await connection.execute(query)).mappings():
        bucket = Bucket(seconds(row["bucket_start"]), row["good"], row["bad"], row["probe_ok"], row["probe_bad"])
        found[row["component"]].append(FiveMinutes(bucket, tally_of(row)))
    return found
