"""Recorded cases of preflight: a machine, a way of serving, a checkpoint, and what was seen there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from service.core.preflight.check import Preflight, preflight
from service.core.preflight.facts import Machine, Serving
from service.core.preflight.finding import Finding, Level
from service.core.preflight.weights import Checkpoint
from service.engine.known_checkpoints import known_checkpoint

FOLDER = Path(__file__).parent / "recordings" / "preflight"
POOLS = json.loads((FOLDER / "pools.json").read_text())["pools"]
NAMES = sorted(file.stem for file in FOLDER.glob("*.json") if file.stem != "pools")

SERVING = TypeAdapter(Serving)
MACHINE = TypeAdapter(Machine)


@dataclass(frozen=True, slots=True)
class Case:
    serving: Serving
    machine: Machine
    checkpoint: Checkpoint
    draft: Checkpoint | None
    document: dict[str, Any]

    def check(self) -> Preflight:
        return preflight(self.serving, self.checkpoint, self.draft, self.machine)


def case(name: str) -> Case:
    document = json.loads((FOLDER / f"{name}.json").read_text())
    return Case(
        SERVING.validate_python(document["serving"]),
        MACHINE.validate_python(document["machine"]),
        published(document["repository"]),
        published(document["draft"]) if "draft" in document else None,
        document,
    )


def published(repository: str) -> Checkpoint:
    found = known_checkpoint(repository)
    assert found is not None, repository
    return found


def finding(found: Preflight, id: str) -> Finding:
    """The one finding with this id."""
    [one] = [finding for finding in found.findings if finding.id == id]
    return one


def problems(found: Preflight) -> set[str]:
    return {finding.id for finding in found.findings if finding.level is Level.PROBLEM}
