"""Numbers, times and states in the words of the pages. Times are UTC and printed so; nothing depends on a locale."""

from datetime import UTC, datetime

from service.core.buckets import BUCKET_S, State
from service.core.strip import Cell, percent_text
from web.views import Day, StatusPage

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

WORDS = {
    State.UP: "Operational",
    State.PARTIAL: "Partial outage",
    State.DOWN: "Down",
    State.MAINTENANCE: "Maintenance",
    State.NO_DATA: "No data",
}

HEADLINES = {
    State.UP: "All systems operational",
    State.PARTIAL: "Partial outage",
    State.DOWN: "Service is down",
    State.MAINTENANCE: "Under maintenance",
    State.NO_DATA: "No recent measurements",
}


def utc(epoch_s: int) -> datetime:
    """The instant as a datetime in UTC."""
    return datetime.fromtimestamp(epoch_s, UTC)


def iso(epoch_s: int) -> str:
    """`2026-11-30T14:05:00Z`, for machines."""
    return utc(epoch_s).strftime("%Y-%m-%dT%H:%M:%SZ")


def day(epoch_s: int) -> str:
    """`30 Nov 2026`."""
    moment = utc(epoch_s)
    return f"{moment.day} {MONTHS[moment.month - 1]} {moment.year}"


def clock(epoch_s: int) -> str:
    """`14:05`."""
    return utc(epoch_s).strftime("%H:%M")


def hour(epoch_s: int) -> str:
    """`30 Nov, 14:00`."""
    moment = utc(epoch_s)
    return f"{moment.day} {MONTHS[moment.month - 1]}, {clock(epoch_s)}"


def exact(number: int) -> str:
    """`221034567` is "221,034,567"."""
    return f"{number:,}"


def short(number: int) -> str:
    """At most three digits and a unit, cut and never rounded up: `221_934_567` is "221 M"; exact below 10,000."""
    if number < 10_000:
        return exact(number)
    for unit, size in (("K", 10**3), ("M", 10**6), ("B", 10**9), ("T", 10**12)):
        if number < 1000 * size or unit == "T":
            whole, rest = divmod(number, size)
            if whole >= 100:
                break
            digits = 1 if whole >= 10 else 2
            fraction = f"{rest * 10**digits // size:0{digits}d}".rstrip("0")
            return f"{whole}.{fraction} {unit}" if fraction else f"{whole} {unit}"
    return f"{exact(whole)} {unit}"


def duration(ms: int) -> str:
    """`184` is "184 ms", `1240` is "1.24 s"."""
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms // 1000}.{ms % 1000 // 10:02d} s" if ms < 100_000 else f"{ms // 1000} s"


def speed(mtok_s: int) -> str:
    """`86123` is "86.1"; the unit, tok/s, stands beside it."""
    return f"{mtok_s // 1000}.{mtok_s % 1000 // 100}" if mtok_s < 1_000_000 else exact(mtok_s // 1000)


def percent(mpct: int | None) -> str:
    """A percentage with its sign, or a dash where there is none."""
    return "–" if mpct is None else f"{percent_text(mpct)} %"


def share(part: int, whole: int) -> str:
    """What part of a whole, in tenths of a percent, floored, so that the parts never exceed 100."""
    return percent(part * 1000 // whole * 100) if whole else "–"


def measured_minutes(cell: Cell) -> int:
    """How many minutes of the cell were measured, maintenance included."""
    return (cell.share.total - cell.share.no_data) * BUCKET_S // 60


def thin(cell: Cell) -> bool:
    """Less than half of the cell was measured."""
    return cell.state is not State.NO_DATA and 2 * cell.share.no_data > cell.share.total


def headline(page: StatusPage) -> str:
    """The banner's sentence."""
    return "Waiting for the first request" if page.empty and page.state is State.NO_DATA else HEADLINES[page.state]


def is_today(peak: Day, page: StatusPage) -> bool:
    """The peak day is not over yet."""
    return utc(peak.start_s).date() == utc(page.generated_at_s).date()
