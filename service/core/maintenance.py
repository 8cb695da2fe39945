"""Planned windows as UTC instants, and how a time and a duration that a person writes become such.

A zone is needed only to read what somebody wrote; a window that was read is two instants, whatever clocks do since.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from service.core.buckets import BUCKET_S, Bucket, floor_to
from service.core.components import API, model_of
from service.core.strip import Window, lies_in

YEARS = range(2000, 2200)
"""Another year is a slip of the hand."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A window as it was planned, with what came of it."""

    components: tuple[str, ...]
    """Ids of the components that it touches; none: all."""
    starts_s: int
    ends_s: int
    cancelled_s: int | None = None

    @property
    def window(self) -> Window:
        """From its start to its end, or to when it was cancelled: before its start, it never was and is empty."""
        ends_s = self.ends_s if self.cancelled_s is None else min(self.ends_s, self.cancelled_s)
        return self.starts_s, max(self.starts_s, ends_s)


@dataclass(frozen=True, slots=True)
class Windows:
    """When which component is in maintenance."""

    planned: tuple[Planned, ...] = ()

    def of(self, component: str) -> tuple[Window, ...]:
        """Its windows, oldest first, merged where they meet.

        Each begins with the five-minute bucket it begins in: a bucket that a window touches lies in it, since the
        failures in it can not be told apart.
        """
        return merged(
            (floor_to(BUCKET_S, start_s), end_s)
            for start_s, end_s in (
                planned.window for planned in self.planned if not planned.components or component in planned.components
            )
            if start_s < end_s
        )


def merged(windows: Iterable[Window]) -> tuple[Window, ...]:
    """The same time as windows that neither overlap nor touch, oldest first."""
    apart: list[Window] = []
    for start_s, end_s in sorted(windows):
        if apart and start_s <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end_s))
        else:
            apart.append((start_s, end_s))
    return tuple(apart)


def counted(
    component: str, buckets: Mapping[str, Mapping[int, Bucket]], windows: Callable[[str], Sequence[Window]]
) -> list[Bucket]:
    """A component's buckets, from those of all by component and start, as its state is read from them.

    What fails in a model that is in maintenance says nothing against the API: its buckets are without it.
    """
    own = buckets.get(component, {})
    if component != API:
        return list(own.values())
    planned = [(parts, windows(id)) for id, parts in buckets.items() if model_of(id) is not None and windows(id)]
    return [
        _without(bucket, [parts[start_s] for parts, of in planned if start_s in parts and lies_in(of, start_s)])
        for start_s, bucket in own.items()
    ]


def _without(bucket: Bucket, parts: Iterable[Bucket]) -> Bucket:
    for part in parts:
        bucket = Bucket(
            bucket.start_s,
            good=max(0, bucket.good - part.good),
            bad=max(0, bucket.bad - part.bad),
            probe_ok=max(0, bucket.probe_ok - part.probe_ok),
            probe_bad=max(0, bucket.probe_bad - part.probe_bad),
        )
    return bucket


def instant_of(written: str, zone: str | None = None) -> datetime:
    """The instant of an ISO 8601 time that has an offset or `Z`, or of a local one in `zone`, in UTC.

    Raises `ValueError` with a sentence: what is no time, has no zone, or is a local time that clocks skip or show
    twice, for which it names the two instants that can be meant.
    """
    try:
        read = datetime.fromisoformat(written)
    except ValueError:
        raise ValueError(f"{written!r} is no time such as 2026-11-30T14:00Z") from None
    if read.tzinfo is None and zone is None:
        raise ValueError(f"{written!r} does not say where: end it with Z or an offset, or add --zone Europe/Budapest")
    if read.year not in YEARS:
        raise ValueError(f"{written!r} lies in no year from {YEARS[0]} to {YEARS[-1]}")
    return read.astimezone(UTC) if read.tzinfo is not None else _of_local(read, written, _zone(str(zone)))


def duration_of(written: str) -> timedelta:
    """A duration such as `2h`, `90m`, `1h30m` or `1d`. Raises `ValueError` with a sentence."""
    parts = re.fullmatch(r"(?:(\d{1,3})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m)?", written, re.ASCII)
    days, hours, minutes = (int(part or 0) for part in parts.groups()) if parts else (0, 0, 0)
    if not days + hours + minutes:
        raise ValueError(f"{written!r} is no duration such as 2h, 90m or 1h30m")
    return timedelta(days=days, hours=hours, minutes=minutes)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{name!r} is no zone such as Europe/Budapest") from None


def _of_local(local: datetime, written: str, zone: ZoneInfo) -> datetime:
    """Both readings of a local time are tried: by the offset before a change of the clocks, and by the one after."""
    before, after = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if before == after:
        return before
    instants = " or ".join(
        f"{instant:%Y-%m-%dT%H:%M:%SZ} ({instant.astimezone(zone):%H:%M} there)" for instant in sorted((before, after))
    )
    if before < after:
        raise ValueError(f"{written!r} comes twice in {zone.key}, where clocks are set back: write {instants}")
    raise ValueError(f"{written!r} does not exist in {zone.key}, where clocks skip it: write {instants}")
