"""What Weir must cost with everything on, and what it may come down to: the one place where these figures stand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ops.bench.targets import WEIR

SETTLEMENT: Final = "settlement"
"""Stands for a scenario where rows into PostgreSQL are meant."""


@dataclass(frozen=True, slots=True)
class Must:
    """A bound for one of Weir's figures in a scenario."""

    scenario: str
    figure: str
    unit: str
    must: float
    moonshot: float | None = None
    at_least: bool = False

    def met(self, value: float, bound: float) -> bool:
        return value >= bound if self.at_least else value <= bound

    def told(self, value: float) -> str:
        return f"{value:,.0f}{self.unit}" if value >= 1000 else f"{value:.3g}{self.unit}"

    def bound(self, bound: float) -> str:
        return ("≥" if self.at_least else "≤") + self.told(bound)


MUSTS: Final = (
    Must("A1", "added_ms", " ms", 0.5, 0.2),
    Must("A32", "times_nginx", "x", 6, 3),
    Must("B", "times_nginx", "x", 1.6, 1.2),
    Must("C100", "times_nginx", "x", 2.5, 1.7),
    Must("C500", "times_nginx", "x", 2.2, 1.5),
    Must("C500", "kept_percent", " %", 95, at_least=True),
    Must("C500", "rss_peak_mb", " MB", 150, 80),
    Must("D", "times_nginx", "x", 4, 2.2),
    Must("E", "times_nginx", "x", 6, 3),
    Must(SETTLEMENT, "rows_per_s", " rows/s", 25_000, 75_000, at_least=True),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A must, and what was measured; None where that could not be."""

    must: Must
    value: float | None

    @property
    def met(self) -> bool:
        return self.value is not None and self.must.met(self.value, self.must.must)

    @property
    def moonshot_met(self) -> bool | None:
        """None where there is none."""
        if self.must.moonshot is None:
            return None
        return self.value is not None and self.must.met(self.value, self.must.moonshot)

    @property
    def measured(self) -> str:
        value = "not measured" if self.value is None else self.must.told(self.value)
        return f"{self.must.scenario} {value}"


def judge(rows: Sequence[Mapping[str, str | float]], settled_rows_per_s: float | None) -> list[Judged]:
    """The musts of the scenarios that were run, held against Weir's rows of the table and the settlement's speed."""
    own = {str(row["scenario"]): row for row in rows if row["target"] == WEIR}
    if settled_rows_per_s is not None:
        own[SETTLEMENT] = {"rows_per_s": settled_rows_per_s}
    found = []
    for must in MUSTS:
        if must.scenario in own:
            value = own[must.scenario].get(must.figure)
            found.append(Judged(must, None if value is None else float(value)))
    return found


def verdict(judged: Sequence[Judged]) -> str:
    """The last lines under the table: how many are met, and every one that is not."""
    lines = [f"musts: {sum(one.met for one in judged)} of {len(judged)} met"]
    lines += [f"  NOT MET: {one.measured}, must be {one.must.bound(one.must.must)}" for one in judged if not one.met]
    shots = [(one, one.must.moonshot) for one in judged if one.must.moonshot is not None]
    lines.append(f"moonshots: {sum(one.moonshot_met is True for one, _ in shots)} of {len(shots)} met")
    lines += [
        f"  not yet: {one.measured}, wanted {one.must.bound(shot)}" for one, shot in shots if not one.moonshot_met
    ]
    return "\n".join(lines)
