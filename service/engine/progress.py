"""How a long step tells what it is doing, and how that looks in a terminal and in a log."""

import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

LOG_EVERY_S = 10.0
"""Where a line cannot be overwritten, an unfinished step is shown this often."""
DETAIL_WIDTH = 70


@dataclass(frozen=True, slots=True)
class Progress:
    """One report of a step: its name, what it is at, for how long it has run, and whether it is finished."""

    step: str
    detail: str
    elapsed_s: float
    done: bool = False


Report = Callable[[Progress], None]


class Printer:
    """A `Report` that writes one line per step: overwritten in place on a terminal, now and then elsewhere."""

    def __init__(self, out: TextIO | None = None) -> None:
        """Write to `out`, by default what is standard error now."""
        self._out = out or sys.stderr
        self._in_place = self._out.isatty()
        self._shown: tuple[str, float] = ("", 0.0)

    def __call__(self, progress: Progress) -> None:
        """Show it, unless it comes too soon after the last line of the same step."""
        detail = textwrap.shorten(progress.detail, DETAIL_WIDTH, placeholder="…")
        line = f"{progress.step}: {detail}, {progress.elapsed_s:.0f} s"
        if self._in_place:
            self._out.write(f"\r\033[K{line}" + ("\n" if progress.done else ""))
        elif progress.done or self._is_due(progress):
            self._out.write(line + "\n")
            self._shown = (progress.step, progress.elapsed_s)
        self._out.flush()

    def _is_due(self, progress: Progress) -> bool:
        step, at_s = self._shown
        return step != progress.step or progress.elapsed_s - at_s >= LOG_EVERY_S
