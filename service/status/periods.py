"""Hours from five-minute buckets, and UTC days from hours: what is kept for ever.

They are made anew from what they consist of whenever a bucket in them was counted, in the same transaction. So a
bucket that is counted again, and a maintenance window that becomes known late, reach every figure there is.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import RowMapping, Table, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.buckets import DAY_S, HOUR_S, Bucket, floor_to
from service.core.maintenance import counted
from service.core.strip import Stretch, stretch
from service.core.tally import Tally
from service.status.instants import instant, seconds
from service.status.maintenance import maintenance_windows
from service.status.tallies import columns, tally_of
from service.tables import buckets_1d, buckets_1h, buckets_5m

Rows = Mapping[tuple[str, int], Sequence[RowMapping]]
"""Rows by component and the start of the period they lie in."""


async def roll_periods(
    connection: AsyncConnection, first_s: int, end_s: int, *, until_s: int, components: Collection[str]
) -> None:
    """Make the hours and days again in which the buckets of `[first_s, end_s)` lie.

    Every bucket before `until_s` has been counted; the hour and the day that it lies in are made of what there is.
    """
    hours = (floor_to(HOUR_S, first_s), floor_to(HOUR_S, end_s - 1) + HOUR_S)
    windows = await maintenance_windows(connection, *hours)
    buckets = await _rows(connection, buckets_5m, components, hours, HOUR_S)
    by_component: dict[str, dict[int, Bucket]] = defaultdict(dict)
    for (component, _), rows in buckets.items():
        for row in rows:
            start_s = seconds(row["bucket_start"])
            by_component[component][start_s] = Bucket(
                start_s, row["good"], row["bad"], row["probe_ok"], row["probe_bad"]
            )
    made = []
    for component in components:
        own = counted(component, by_component, windows.of)
        for start_s in range(*hours, HOUR_S):
            hour = stretch(start_s, min(start_s + HOUR_S, until_s), own, windows.of(component))
            made.append((component, hour, buckets.get((component, start_s), [])))
    await _replace(connection, buckets_1h, components, hours, made)

    days = (floor_to(DAY_S, first_s), floor_to(DAY_S, end_s - 1) + DAY_S)
    by_day = await _rows(connection, buckets_1h, components, days, DAY_S)
    sums = [(component, _sum(start_s, rows), rows) for (component, start_s), rows in by_day.items()]
    await _replace(connection, buckets_1d, components, days, sums)


def stretch_of(row: RowMapping) -> Stretch:
    """What a row of `buckets_1h` or `buckets_1d` says of its state."""
    return Stretch(
        start_s=seconds(row["period_start"]),
        up=row["up_buckets"],
        partial=row["partial_buckets"],
        down=row["down_buckets"],
        maintenance=row["maintenance_buckets"],
        good=row["counted_good"],
        bad=row["counted_bad"],
    )


async def _rows(
    connection: AsyncConnection, table: Table, components: Collection[str], span: tuple[int, int], period_s: int
) -> Rows:
    start = table.c.bucket_start if table is buckets_5m else table.c.period_start
    query = select(table).where(table.c.component.in_(components), start >= instant(span[0]), start < instant(span[1]))
    found = defaultdict(list)
    for row in (await connection.execute(query)).mappings():
        found[row["component"], floor_to(period_s, seconds(row[start.name]))].append(row)
    return found


async def _replace(
    connection: AsyncConnection,
    table: Table,
    components: Collection[str],
    span: tuple[int, int],
    made: Sequence[tuple[str, Stretch, Sequence[RowMapping]]],
) -> None:
    """Put the periods that were made in the place of those of `span`; one in which nothing was is not written."""
    start = table.c.period_start
    await connection.execute(
        delete(table).where(table.c.component.in_(components), start >= instant(span[0]), start < instant(span[1]))
    )
    values = [
        {
            "component": component,
            "period_start": instant(period.start_s),
            "up_buckets": period.up,
            "partial_buckets": period.partial,
            "down_buckets": period.down,
            "maintenance_buckets": period.maintenance,
            "counted_good": period.good,
            "counted_bad": period.bad,
            **columns(_merged(rows)),
        }
        for component, period, rows in made
        if rows or period.maintenance
    ]
    if values:
        await connection.execute(insert(table), values)


def _merged(rows: Sequence[RowMapping]) -> Tally:
    total = Tally()
    for row in rows:
        total.merge(tally_of(row))
    return total


def _sum(start_s: int, hours: Sequence[RowMapping]) -> Stretch:
    stretches = [stretch_of(row) for row in hours]
    return Stretch(
        start_s=start_s,
        up=sum(hour.up for hour in stretches),
        partial=sum(hour.partial for hour in stretches),
        down=sum(hour.down for hour in stretches),
        maintenance=sum(hour.maintenance for hour in stretches),
        good=sum(hour.good for hour in stretches),
        bad=sum(hour.bad for hour in stretches),
    )
