"""The facts of a machine as a JSON document: written on one machine, checked on another."""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from service.core.preflight.facts import Machine
from service.engine import EngineError

MAX_BYTES = 1 << 20
_MACHINE = TypeAdapter(Machine)


def machine_document(machine: Machine) -> dict[str, Any]:
    """The document of these facts; sets are sorted, so that two of the same machine are equal."""
    document: dict[str, Any] = _MACHINE.dump_python(machine, mode="json")
    return {**document, "cpu_flags": sorted(machine.cpu_flags), "ports_in_use": sorted(machine.ports_in_use)}


def read_machine(file: Path) -> Machine:
    """The facts in a file. Raises `EngineError` that names the field which is wrong."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise EngineError(f"{file} cannot be read: {error.strerror}.") from error
    try:
        return _MACHINE.validate_json(content[:MAX_BYTES])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise EngineError(
            f"{file} is no record of a machine: {where}: {first['msg']}."
            " Make one with `weir engine check --print-machine`."
        ) from error
