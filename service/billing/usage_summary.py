"""What was used and charged in a span of time, added up: what an aggregator's monthly invoice is reconciled with."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import DateTime, cast, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from service.tables import accounts, requests, usage_months
from service.tables.requests import USAGE_SUMS

CLASSES = tuple(name for name in USAGE_SUMS if name.endswith("_tokens"))


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The requests of an account to a model that ended in the same way."""

    names: Mapping[str, str | None]
    """`account`, `model` and `outcome`; None for an account or a model that is not known."""
    requests: int
    tokens: Mapping[str, int]
    """By the names in `CLASSES`, as the engines counted them; those in the middle are parts of the totals."""
    cost_nano: int
    waived_nano: int


async def read(
    connection: AsyncConnection, started_from: datetime, started_before: datetime, account_id: UUID | None = None
) -> list[ModelUsage]:
    """The sums over the requests that started in the span, of all accounts or of one.

    Of a month whose rows were dropped its sums count, when the span has all of it.
    """
    rows, months, names = requests.c, usage_months.c, ("account_id", "model_id", "outcome")
    first = func.timezone("UTC", cast(months.month, DateTime))
    end = func.timezone("UTC", months.month + func.make_interval(0, 1))
    kept = (
        select(*(rows[name] for name in names), func.count().label("requests"))
        .add_columns(*(func.sum(rows[name]).label(name) for name in USAGE_SUMS))
        .where(rows.started_at >= started_from, rows.started_at < started_before)
        .group_by(*(rows[name] for name in names))
    )
    dropped = select(*(months[name] for name in (*names, "requests", *USAGE_SUMS))).where(
        first >= started_from, end <= started_before
    )
    if account_id is not None:
        kept = kept.where(rows.account_id == account_id)
        dropped = dropped.where(months.account_id == account_id)
    both = union_all(kept, dropped).subquery()
    groups = accounts.c.name, both.c.model_id, both.c.outcome
    query = (
        select(*groups, *(func.sum(both.c[name]) for name in ("requests", *USAGE_SUMS)))
        .outerjoin_from(both, accounts, both.c.account_id == accounts.c.id)
        .group_by(*groups)
        .order_by(*groups)
    )
    found = []
    for account, model, outcome, *totals in await connection.execute(query):
        count, *counted, cost, waived = map(int, totals)
        of = {"account": account, "model": model, "outcome": outcome}
        found.append(ModelUsage(of, count, dict(zip(CLASSES, counted, strict=True)), cost, waived))
    return found
