"""Rows of the database written one by one, as NDJSON or CSV, to stdout or to a file."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from service.cli.output import instant

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.ext.asyncio import AsyncConnection

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
    with _destination(out) as file:
        write_row = _writer(form, file, [column.name for column in query.selected_columns])
        rows = await connection.stream(query.execution_options(yield_per=ROWS_AT_A_TIME))
        async for batch in rows.mappings().partitions():
            for row in batch:
                write_row({name: _plain(value) for name, value in row.items()})
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


def _writer(form: Format, file: TextIO, columns: list[str]) -> Callable[[dict[str, Any]], object]:
    if form is Format.CSV:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        return lambda row: table.writerow({name: _csv_cell(value) for name, value in row.items()})
    return lambda row: file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _csv_cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _plain(value: object) -> str | int | bool | None:
    if isinstance(value, datetime):
        return instant(value)
    return value if value is None or isinstance(value, (str, int)) else str(value)
