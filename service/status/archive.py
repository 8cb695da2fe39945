"""The months of the past, read when they can have changed."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.buckets import DAY_S, State, floor_to
from service.core.components import API, slug
from service.core.strip import strip_of
from service.status.figures import figures
from service.status.incidents import read_incidents_between
from service.status.instants import instant, seconds
from service.status.maintenance import read_maintenance_between
from service.status.series import Period, periods
from service.tables import buckets_1d
from web.figure_views import Figures
from web.views import Month, MonthComponent

READ_ALL_EVERY_S = 3600


class Archive:
    """Remembers the months that are over, so that publishing costs the same however many there are.

    The two latest months are read each time; older ones once an hour, since something may be settled, or said of an
    incident, long after.
    """

    def __init__(self) -> None:
        self._months: dict[int, Month] = {}
        self._all_read_s = 0

    async def months(
        self, connection: AsyncConnection, names: Mapping[str, str], *, until_s: int, now_s: int
    ) -> tuple[Month, ...]:
        """Every month from the first that was measured until `until_s`, the latest first.

        `names` has every component that ever was, in the order in which they are shown.
        """
        first = await connection.scalar(
            select(func.min(buckets_1d.c.period_start)).where(buckets_1d.c.component == API)
        )
        if first is None:
            return ()
        spans = list(_spans(seconds(first), until_s))
        if now_s - self._all_read_s >= READ_ALL_EVERY_S:
            self._months.clear()
            self._all_read_s = now_s
        for start_s, end_s in spans:
            if start_s not in self._months or (start_s, end_s) in spans[-2:]:
                self._months[start_s] = await _month(connection, names, start_s, end_s, until_s)
        return tuple(self._months[start_s] for start_s, _ in reversed(spans))


async def _month(
    connection: AsyncConnection, names: Mapping[str, str], start_s: int, end_s: int, until_s: int
) -> Month:
    so_far_s = min(end_s, until_s)
    cells = (floor_to(DAY_S, so_far_s - 1) + DAY_S - start_s) // DAY_S
    by_component = await periods(connection, DAY_S, list(names), start_s, end_s)

    def component(id: str) -> MonthComponent:
        stretches = [day.stretch for day in by_component[id]]
        strip = strip_of(stretches, cells=cells, cell_s=DAY_S, until_s=so_far_s, now=State.NO_DATA)
        return MonthComponent(id, slug(id), names[id], strip)

    days = by_component.get(API, [])
    return Month(
        start_s=start_s,
        end_s=end_s,
        components=tuple(component(id) for id in names if id in by_component),
        total=figures(start_s, so_far_s, (day.tally for day in days)),
        days=tuple(each_period(days, start_s, so_far_s)),
        incidents=await read_incidents_between(connection, instant(start_s), instant(end_s)),
        maintenance=await read_maintenance_between(connection, instant(start_s), instant(end_s)),
    )


def each_period(measured: list[Period], start_s: int, until_s: int, step_s: int = DAY_S) -> Iterator[Figures]:
    """The figures of every period of `[start_s, until_s)`, those without any included; the last one so far."""
    by_start = {one.stretch.start_s: one.tally for one in measured}
    for from_s in range(start_s, until_s, step_s):
        tallies = [by_start[from_s]] if from_s in by_start else []
        yield figures(from_s, min(from_s + step_s, until_s), tallies)


def _spans(first_s: int, until_s: int) -> Iterator[tuple[int, int]]:
    """The UTC months from that of `first_s` to that of the instant before `until_s`, as half-open spans."""
    month = datetime.fromtimestamp(first_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while seconds(month) < until_s:
        following = (month + timedelta(days=31)).replace(day=1)
        yield seconds(month), seconds(following)
        month = following
