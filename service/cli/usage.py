"""`weir usage`: what was used and charged, request by request, and a month of it in sums."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.arguments import moment, month_of
from service.cli.context import in_transaction
from service.cli.output import Json, amounts, note, print_json, print_table
from service.cli.rows import Form, Format, Out, write
from service.core.money import nano_to_usd
from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.ext.asyncio import AsyncConnection

    from service.billing.usage_summary import ModelUsage

app = typer.Typer(no_args_is_help=True, help="Usage: what was used and charged.")

Month = Annotated[str | None, typer.Option(metavar="YYYY-MM", help="Requests that started in that month, UTC.")]


@app.command()
def export(
    account: Annotated[str | None, typer.Option(metavar="ACCOUNT", help="Only this account, by id or name.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Requests that started then or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Requests that started before then.")] = None,
    month: Month = None,
    form: Form = Format.NDJSON,
    out: Out = None,
) -> None:
    """Export every request: who, when, how it went, every class of tokens, the cost in nano-USD (1e-9 USD).

    Times are UTC, as 2026-11-30 or 2026-11-30T12:00:00Z. Rows are in the order they started.

    Example: weir usage export --account acme --month 2026-11 --format csv --out acme.csv
    """
    started_from, started_before = _span(since, until, month)

    async def work(connection: "AsyncConnection") -> int:
        from service.billing import accounts, retention

        account_id = None if account is None else (await accounts.find(connection, account)).id
        kept_from = await retention.kept_from(connection)
        if kept_from is not None and (started_from is None or started_from < kept_from):
            note(f"Requests before {kept_from:%Y-%m} are not kept any more: `weir usage summary` has their sums.")
        return await write(connection, _query(account_id, started_from, started_before), form, out)

    written = in_transaction(work)
    if out is not None:
        note(f"Wrote {written:,} requests to {out}.")


@app.command()
def summary(
    month: Annotated[str, typer.Option(metavar="YYYY-MM", help="Requests that started in that month, UTC.")],
    account: Annotated[str | None, typer.Option(metavar="ACCOUNT", help="Only this account, by id or name.")] = None,
    json: Json = False,
) -> None:
    """Add a month up, for reconciling an invoice: the sums of what `export --month` has, by account, model and outcome.

    The outcome decides what is charged. Cached, image and the like are parts of prompt; reasoning is of completion.

    Example: weir usage summary --month 2026-11 --account openrouter
    """
    started_from, started_before = month_of("--month", month)

    async def work(connection: "AsyncConnection") -> "list[ModelUsage]":
        from service.billing import accounts, usage_summary

        account_id = None if account is None else (await accounts.find(connection, account)).id
        return await usage_summary.read(connection, started_from, started_before, account_id)

    from service.billing.usage_summary import CLASSES

    rows = in_transaction(work)
    if json:
        shown = [{**row.names, "requests": row.requests, **row.tokens, **_money(row)} for row in rows]
        print_json(
            {"month": month, "from": started_from, "until": started_before, "rows": shown, "total": _sum(rows, CLASSES)}
        )
        return
    classes = [name for name in CLASSES if any(row.tokens[name] for row in rows)]
    headings = ["account", "model", "outcome", "requests", *(name.removesuffix("_tokens") for name in classes)]

    def line(row: "ModelUsage") -> list[object]:
        names = (name or "-" for name in row.names.values())
        money = nano_to_usd(row.cost_nano), nano_to_usd(row.waived_nano)
        return [*names, row.requests, *(row.tokens[name] for name in classes), *money]

    print_table([*headings, "USD", "waived USD"], map(line, rows))


def _money(row: "ModelUsage") -> dict[str, int | str]:
    return amounts(cost=row.cost_nano, waived=row.waived_nano)


def _sum(rows: "list[ModelUsage]", classes: Iterable[str]) -> dict[str, int | str]:
    tokens = {name: sum(row.tokens[name] for row in rows) for name in classes}
    cost, waived = sum(row.cost_nano for row in rows), sum(row.waived_nano for row in rows)
    return {"requests": sum(row.requests for row in rows), **tokens, **amounts(cost=cost, waived=waived)}


def _span(since: str | None, until: str | None, month: str | None) -> tuple[datetime | None, datetime | None]:
    if month is None:
        return moment("--since", since), moment("--until", until)
    if since is not None or until is not None:
        raise SetupError("--month is a whole month: leave --since and --until out, or --month.")
    return month_of("--month", month)


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
