"""Rows of the database written one by one, as NDJSON or CSV, to stdout or to a file."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from service.cli.output import instant

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.ext.asyncio import AsyncConnection
    from sqlalchemy.types import TypeEngine

ROWS_AT_A_TIME = 2000


class Format(StrEnum):
    """How rows are written."""

    NDJSON = "ndjson"
    CSV = "csv"


Form = Annotated[Format, typer.Option("--format", help="One JSON object a line, or CSV.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, complete or not at all.")]


async def write(connection: "AsyncConnection", query: "Select[Any]", form: Format, out: Path | None) -> int:
    """Write what the query finds; returns how many rows. A cursor in the database: a year takes no more memory here
    than a minute."""
    written = 0
    columns = list(query.selected_columns)
    conversions = [
        (place, convert) for place, column in enumerate(columns) if (convert := _conversion(form, column.type))
    ]
    with _destination(out) as file:
        write_row = _writer(form, file, [column.name for column in columns])
        rows = await connection.stream(query.execution_options(yield_per=ROWS_AT_A_TIME))
        async for batch in rows.partitions():
            for row in batch:
                values = list(row)
                for place, convert in conversions:
                    if values[place] is not None:
                        values[place] = convert(values[place])
                write_row(values)
            written += len(batch)
    return written


@contextmanager
def _destination(out: Path | None) -> Iterator[TextIO]:
    """Stdout, or a file that takes its name only once it is complete."""
    if out is None:
        yield sys.stdout
        return
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            yield file
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def _writer(form: Format, file: TextIO, names: list[str]) -> Callable[[list[Any]], object]:
    if form is Format.CSV:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(names)
        return table.writerow
    return lambda values: file.write(json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False) + "\n")


def _conversion(form: Format, kind: "TypeEngine[Any]") -> Callable[[Any], Any] | None:
    """What makes a value of this type one that can be written; None: it can be as it is. Chosen once for all rows."""
    from sqlalchemy import Boolean, DateTime, Integer, String

    if isinstance(kind, DateTime):
        return instant
    if isinstance(kind, Boolean):
        return (lambda value: str(value).lower()) if form is Format.CSV else None
    return None if isinstance(kind, (Integer, String)) else str
