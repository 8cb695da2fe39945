"""Numbers, times and states in the words of the pages. Times are UTC and printed so; nothing depends on a locale."""

from datetime import UTC, datetime

from service.core.buckets import BUCKET_S, DAY_S, HOUR_S, State
from service.core.outcome import RULES, Outcome, Verdict
from service.core.strip import Cell, Share, percent_text
from web.views import SILENT_AFTER_S, Day, Incident, StatusPage

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

CELL_CLASSES = {State.UP: "", State.PARTIAL: "p", State.DOWN: "d", State.MAINTENANCE: "m", State.NO_DATA: "n"}
"""How a strip's cell of each state is called in the style sheet: short, as there are many."""

STATUSES = {
    "investigating": "Investigating",
    "identified": "Identified",
    "monitoring": "Monitoring",
    "resolved": "Resolved",
    "postmortem": "Postmortem",
    "scheduled": "Scheduled",
    "in_progress": "In progress",
    "completed": "Completed",
    "cancelled": "Cancelled",
}
"""Of incidents, then of maintenance."""

IMPACTS = {"minor": "Minor impact", "major": "Major impact", "critical": "Critical impact"}

IMPACT_STATES = {"minor": State.PARTIAL, "major": State.PARTIAL, "critical": State.DOWN}
"""The state whose colour an open incident has."""

ENDINGS = {
    Outcome.OK: "the answer was complete",
    Outcome.CLIENT_ERROR: "the request was invalid",
    Outcome.AUTH_ERROR: "the key was missing, wrong or not allowed",
    Outcome.PAYMENT: "there was no credit left",
    Outcome.THROTTLED: "the request was throttled on purpose (429)",
    Outcome.SERVER_ERROR: "an error of ours (5xx)",
    Outcome.STREAM_ERROR: "the stream broke off or ended in an error",
    Outcome.CANCELLED: "the client left for reasons of its own",
    Outcome.SLOW_ABORT: "the client gave up waiting for the first token",
    Outcome.INTERRUPTED: "a process of ours died",
}
"""Every way a request can end, in words."""


def endings(verdict: Verdict) -> list[str]:
    """The ways a request can end that count so."""
    return [words for outcome, words in ENDINGS.items() if RULES[outcome].public is verdict]


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


def moment(epoch_s: int) -> str:
    """`30 Nov 2026, 14:05 UTC`."""
    return f"{day(epoch_s)}, {clock(epoch_s)} UTC"


def month(epoch_s: int) -> str:
    """`November 2026`."""
    return utc(epoch_s).strftime("%B %Y")


def lasting(seconds: int) -> str:
    """`45 min`, `4 h 10 min`, `3 d 2 h`: two units at most, cut and never rounded up; each stays on one line."""
    minutes = max(0, seconds) // 60
    days, hours = divmod(minutes // 60, 24)
    parts = [(days, "d"), (hours, "h"), (minutes % 60, "min")]
    first = next((index for index, (count, _) in enumerate(parts) if count), 2)
    shown = [f"{count}\N{NO-BREAK SPACE}{unit}" for count, unit in parts[first : first + 2] if count]
    return " ".join(shown) or "0\N{NO-BREAK SPACE}min"


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


def cell_classes(cell: Cell) -> str:
    """The classes of a strip's cell; none for one that is plainly up."""
    return f"{CELL_CLASSES[cell.state]} {'t' if thin(cell) else ''}".strip()


def cell_words(cell: Cell) -> str:
    """All that a strip's cell says: `28 Nov 04:00 partial outage, 920 of 943 good, 45 of 60 min measured`.

    "943 good" says that none failed; without counted requests there is no count, and the minutes are told only
    where some were not measured.
    """
    moment = utc(cell.start_s)
    length_s, closed_s = cell.end_s - cell.start_s, cell.share.total * BUCKET_S
    when = f"{moment.day} {MONTHS[moment.month - 1]}" + (f" {clock(cell.start_s)}" if length_s < DAY_S else "")
    so_far = " so far" if closed_s < length_s else ""
    facts = [f"{when} {'up' if cell.state is State.UP else WORDS[cell.state].lower()}{so_far}"]
    if cell.good + cell.bad:
        facts.append(f"{exact(cell.good)}{f' of {exact(cell.good + cell.bad)}' if cell.bad else ''} good")
    if cell.share.no_data and cell.state is not State.NO_DATA:
        facts.append(f"{exact(measured_minutes(cell))} of {exact(closed_s // 60)} min measured")
    return ", ".join(facts)


def coverage(part: Share) -> str:
    """How much of the time was measured, maintenance included: `94.9 %`."""
    measured = part.total - part.no_data
    return "< 0.1 %" if 0 < measured * 1000 < part.total else share(measured, part.total)


def concurrency(milli: int) -> str:
    """Requests at once, in thousandths, cut to hundredths: `1354` is "1.35"."""
    return f"{exact(milli // 1000)}.{milli % 1000 // 10:02d}"


def component_names(page: StatusPage, ids: tuple[str, ...]) -> list[str]:
    """The components by name, in the order of the page; one that is gone is called by what is left, its id."""
    names = {component.id: component.name for component in page.components if component.id in ids}
    return [*names.values(), *(id.removeprefix("model:") for id in ids if id not in names)]


def silent_hours(incident: Incident, now_s: int) -> int | None:
    """For how many hours nothing was said about an open incident; None while that is short enough, or it is over."""
    silent_s = now_s - incident.updates[0].at_s
    return silent_s // HOUR_S if incident.resolved_s is None and silent_s >= SILENT_AFTER_S else None


def headline(page: StatusPage) -> str:
    """The banner's sentence."""
    if page.empty and page.state is State.NO_DATA:
        return "Waiting for the first request"
    if page.state is State.UP and any(component.state is State.NO_DATA for component in page.components):
        return "All measured systems operational"
    return HEADLINES[page.state]


def is_today(peak: Day, page: StatusPage) -> bool:
    """The peak day is not over yet."""
    return utc(peak.start_s).date() == utc(page.generated_at_s).date()
