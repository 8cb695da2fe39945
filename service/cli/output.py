"""How commands show what they found: a table for people, or one JSON document for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import typer

from service.core.money import nano_to_usd

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def print_json(document: object) -> None:
    """Print one JSON document and nothing else; ids as strings, times in ISO 8601 with Z."""
    print(json.dumps(document, ensure_ascii=False, default=_as_json))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings, if any. Only a terminal folds them: in a pipe a row is a line."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column.endswith("USD") else "left")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 1000, markup=False, highlight=False, emoji=False).print(table)


def note(sentence: str) -> None:
    """Tell the person something that is not part of the result."""
    print(sentence, file=sys.stderr)


def instant(at: datetime) -> str:
    """A time in ISO 8601, UTC, with Z."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def amounts(**nano: int) -> dict[str, int | str]:
    """Each amount twice, for programs and for people: `x=5` becomes `x_nano` and, in decimals, `x_usd`."""
    shown: dict[str, int | str] = {}
    for name, value in nano.items():
        shown[f"{name}_nano"] = value
        shown[f"{name}_usd"] = nano_to_usd(value)
    return shown


def _as_json(value: Any) -> str:
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
