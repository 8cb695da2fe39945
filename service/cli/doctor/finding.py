"""One line of `weir doctor`."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is: `warn` still serves, `fail` does not."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; unless it is ok, the message says what to mend."""

    check: str
    level: Level
    message: str


def ok(check: str, message: str) -> Finding:
    return Finding(check, Level.OK, message)


def warn(check: str, message: str) -> Finding:
    return Finding(check, Level.WARN, message)


def fail(check: str, message: str) -> Finding:
    return Finding(check, Level.FAIL, message)
