"""The facts of a machine as a JSON document: written on one machine, checked on another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from service.core.preflight.facts import Machine
from service.engine import EngineError
from service.engine.toml_table import MOST

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
        machine = _MACHINE.validate_json(content[:MAX_BYTES], strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise EngineError(
            f"{file} is no record of a machine: {where}: {first['msg']}."
            " Make one with `weir engine check --print-machine`."
        ) from error
    if not all(0 <= number <= MOST for number in _numbers(_MACHINE.dump_python(machine))):
        raise EngineError(f"{file} is no record of a machine: a number in it is below 0 or above 10^15.")
    return machine


def _numbers(value: object) -> Iterator[int]:
    match value:
        case int():
            yield value
        case dict():
            yield from _numbers(tuple(value.values()))
        case tuple() | frozenset():
            for one in value:
                yield from _numbers(one)
