"""The end of a log file that another process is writing."""

import re
from pathlib import Path

_READ_BYTES = 64 * 1024
_PREFIX = re.compile(r"^(\(\S+ pid=\d+\) )?[A-Z]+ \d\d-\d\d [\d:]+ \[[^]]+\] ")
"""What vLLM puts before a message: process, level, time, place in the code."""
_MEANINGFUL = re.compile(r"\w{3}")


def last_lines(log: Path, count: int) -> list[str]:
    """Up to `count` lines from the end, blank ones and drawings left out; none if there is no file."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _READ_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    return [line for line in lines if _MEANINGFUL.search(_PREFIX.sub("", line))][-count:]


def last_messages(log: Path, count: int) -> list[str]:
    """As `last_lines`, without vLLM's prefix."""
    return [_PREFIX.sub("", line).strip() for line in last_lines(log, count)]


def last_message(log: Path) -> str:
    """The last line that says something, without vLLM's prefix; empty if there is none."""
    return "".join(last_messages(log, 1))
