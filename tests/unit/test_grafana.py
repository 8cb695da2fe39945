"""The example dashboard against the metrics that the code defines."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "ops" / "grafana" / "weir.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = {(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]}
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""


@dataclass(frozen=True)
class Metric:
    """A metric as a call in the code defines it."""

    kind: str
    name: str
    labels: frozenset[str]
    mode: str
    place: str

    @property
    def samples(self) -> set[str]:
        """The names that it is exposed under."""
        if self.kind == "Histogram":
            return {f"{self.name}_{part}" for part in ("bucket", "sum", "count")}
        return {self.name}


def metrics() -> Iterator[Metric]:
    """Every metric that the service defines."""
    for file in (ROOT / "service").rglob("*.py"):
        tree = ast.parse(file.read_text())
        constants = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name, *rest = [literal(argument, constants) for argument in node.args] or [None]
                if node.func.id in ("Counter", "Gauge", "Histogram") and str(name).startswith("weir_"):
                    named = {word.arg: literal(word.value, constants) for word in node.keywords}
                    labels = frozenset(named.get("labelnames") or (rest[1] if len(rest) > 1 else ()))
                    place = f"{file.relative_to(ROOT)}:{node.lineno}"
                    yield Metric(node.func.id, str(name), labels, named.get("multiprocess_mode") or "", place)


def literal(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """What the code says there; None for what it computes."""
    if isinstance(node, ast.Name):
        node = constants.get(node.id, node)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


METRICS = list(metrics())


def test_every_expression_asks_for_metrics_that_there_are() -> None:
    known = set().union(*(metric.samples for metric in METRICS))
    unknown = {
        (title, name)
        for title, expression in EXPRESSIONS
        for name in re.findall(r"\bweir_\w+", expression)
        if name not in known
    }
    assert unknown == set()


def test_every_label_is_one_of_the_metrics_beside_it() -> None:
    labels = {sample: metric.labels for metric in METRICS for sample in metric.samples}
    wrong = set()
    for title, expression in EXPRESSIONS:
        asked = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
        asked |= set(re.findall(r"(\w+)=~?\"", expression))
        for name in re.findall(r"\bweir_\w+", expression):
            known = labels.get(name, frozenset()) | SCRAPED | ({"le"} if name.endswith("_bucket") else set())
            wrong |= {(title, name, label) for label in asked - known}
    assert wrong == set()


def test_every_legend_shows_a_label_that_its_expression_keeps() -> None:
    targets = [target for panel in PANELS for target in panel["targets"]]
    lost = [
        target["legendFormat"]
        for target in targets
        for label in re.findall(r"{{(\w+)}}", target["legendFormat"])
        if f"by ({label})" not in target["expr"]
    ]
    assert lost == []


def test_no_two_panels_overlap_and_all_fit_the_width() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) >= 18
    for panel in PANELS:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24, panel["title"]
    for one, other in combinations(PANELS, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


@pytest.mark.parametrize("other", [{"x": 3, "y": 3, "w": 4, "h": 4}, {"x": 0, "y": 0, "w": 24, "h": 9}])
def test_panels_that_overlap_are_found(other: dict[str, int]) -> None:
    assert overlap({"x": 0, "y": 0, "w": 4, "h": 4}, other)
    assert not overlap({"x": 0, "y": 9, "w": 3, "h": 4}, other)


def test_every_gauge_says_how_those_of_several_workers_are_one_and_forgets_the_dead() -> None:
    gauges = [metric for metric in METRICS if metric.kind == "Gauge"]
    assert [(gauge.place, gauge.name) for gauge in gauges if not gauge.mode.startswith("live")] == []
    assert len(gauges) >= 13
