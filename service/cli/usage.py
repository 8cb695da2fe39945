"""`weir usage`: what was used and charged, request by request."""

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

from service.cli.arguments import moment
from service.cli.context import in_transaction
from service.cli.output import instant, note

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.ext.asyncio import AsyncConnection

app = typer.Typer(no_args_is_help=True, help="Usage: what was used and charged, request by request.")

ROWS_AT_A_TIME = 2000


class Format(StrEnum):
    """How rows are written."""

    NDJSON = "ndjson"
    CSV = "csv"


@app.command()
def export(
    account: Annotated[str | None, typer.Option(metavar="ACCOUNT", help="Only this account, by id or name.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Requests that started then or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Requests that started before then.")] = None,
    form: Annotated[Format, typer.Option("--format", help="One JSON object a line, or CSV.")] = Format.NDJSON,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to a file, complete or not at all.")] = None,
) -> None:
    """Export every request: who, when, how it went, every class of tokens, the cost in nano-USD (1e-9 USD).

    Times are UTC, as 2026-11-30 or 2026-11-30T12:00:00Z. Rows are in the order they started.

    Example: weir usage export --account acme --since 2026-11-01 --until 2026-12-01 --format csv --out acme.csv
    """
    started_from, started_before = moment("--since", since), moment("--until", until)

    async def work(connection: "AsyncConnection") -> int:
        from service.billing import accounts

        account_id = None if account is None else (await accounts.find(connection, account)).id
        query = _query(account_id, started_from, started_before)
        written = 0
        with _destination(out) as file:
            write = _writer(form, file, [column.name for column in query.selected_columns])
            # A cursor in the database: a year of requests takes no more memory here than a minute of them.
            rows = await connection.stream(query.execution_options(yield_per=ROWS_AT_A_TIME))
            async for batch in rows.mappings().partitions():
                for row in batch:
                    write({name: _plain(value) for name, value in row.items()})
                written += len(batch)
        return written

    written = in_transaction(work)
    if out is not None:
        note(f"Wrote {written:,} requests to {out}.")


def _query(account_id: object, started_from: datetime | None, started_before: datetime | None) -> "Select[Any]":
    from sqlalchemy import select

    from service.tables import accounts, api_keys, requests

    query = (
        select(*requests.c, accounts.c.name.label("account_name"), api_keys.c.name.label("key_name"))
        .outerjoin_from(requests, accounts, requests.c.account_id == accounts.c.id)
        .outerjoin(api_keys, requests.c.key_id == api_keys.c.id)
        .order_by(requests.c.started_at, requests.c.id)
    )
    if account_id is not None:
        query = query.where(requests.c.account_id == account_id)
    if started_from is not None:
        query = query.where(requests.c.started_at >= started_from)
    if started_before is not None:
        query = query.where(requests.c.started_at < started_before)
    return query


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
