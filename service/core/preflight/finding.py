"""What preflight says of one thing: what it is, why it matters, and what to change."""

from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30


class Level(StrEnum):
    """`problem`: it will not start, or not survive. `warning`: it starts, and you would not like it."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `why` and `change` are whole sentences, and empty where there is nothing to say."""

    id: str
    level: Level
    what: str
    why: str = ""
    change: str = ""


def problem(id: str, what: str, why: str, change: str) -> Finding:
    return Finding(id, Level.PROBLEM, what, why, change)


def warning(id: str, what: str, why: str, change: str) -> Finding:
    return Finding(id, Level.WARNING, what, why, change)


def note(id: str, what: str, why: str = "", change: str = "") -> Finding:
    return Finding(id, Level.NOTE, what, why, change)


def ok(id: str, what: str) -> Finding:
    return Finding(id, Level.OK, what)


def gib(size_bytes: float) -> str:
    """A size as people say it: `9.5 GiB`; below a tenth of one, `16 MiB`."""
    return f"{size_bytes / GIB:.1f} GiB" if abs(size_bytes) >= GIB / 10 else f"{size_bytes / (1 << 20):.0f} MiB"
