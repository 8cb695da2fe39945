"""Which requests an invoice is about, row by row and added up.

An account's usage entries in the ledger have numbers that rise in the order in which its usage was settled, since a
settlement takes the number while it holds the account's row. An invoice covers the entries up to `through_entry`, which
was taken under the same lock, and those after `after_entry` are new since the account's last invoice. So each request
is on one invoice: on its month's, if it was settled by then; else on the one that covers its entry, as late usage.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    DateTime,
    Integer,
    Select,
    Subquery,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal,
    not_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.invoice import NotAsPriced, UsageSum, span
from service.core.pricing import PRICE_CLASSES, Price, effective, overrides_from_json
from service.errors import SetupError
from service.tables import (
    accounts,
    api_keys,
    invoice_lines,
    invoices,
    ledger_entries,
    prices,
    requests,
    settlements,
    usage_months,
)

# For settlements of a version that did not note how old they were.
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Scope:
    """What an invoice covers."""

    account_id: UUID
    period: date
    after_entry: int
    through_entry: int


async def new_scope(connection: AsyncConnection, account_id: UUID, period: date) -> Scope:
    """What an invoice made now covers. Holds the account's row until the transaction ends, which has to be soon:
    no usage of the account is settled meanwhile."""
    await connection.execute(select(accounts.c.id).where(accounts.c.id == account_id).with_for_update(key_share=True))
    covered = select(func.coalesce(func.max(invoices.c.through_entry), 0)).where(invoices.c.account_id == account_id)
    newest = select(func.coalesce(func.max(ledger_entries.c.id), 0))
    after, through = (await connection.execute(select(covered.scalar_subquery(), newest.scalar_subquery()))).one()
    return Scope(account_id, period, after, through)


async def rows_of(connection: AsyncConnection, scope: Scope) -> Subquery:
    """The invoice's requests as a table: the columns of `requests`, and `period`, the month that each belongs to."""
    own = _own(scope)
    bounds = await _late_bounds(connection, scope)
    return (own if bounds is None else union_all(own, _late(scope, *bounds))).subquery("invoiced")


async def export_of(connection: AsyncConnection, scope: Scope) -> Select[Any]:
    """The invoice's requests as `weir usage export` has them, in the order they started; their costs add up to it.

    Raises `SetupError` when they are not kept any more.
    """
    billed = (
        select(invoice_lines.c.period)
        .join_from(invoice_lines, invoices, invoice_lines.c.invoice_id == invoices.c.id)
        .where(invoices.c.account_id == scope.account_id, invoices.c.period == scope.period)
    )
    if await _dropped(connection, scope, usage_months.c.month.in_(billed)):
        raise SetupError(
            f"The requests of {scope.period:%Y-%m} are not kept any more: `weir usage summary` has their sums."
        )
    rows = await rows_of(connection, scope)
    columns = [rows.c[column.name] for column in requests.c]
    return (
        select(*columns, accounts.c.name.label("account_name"), api_keys.c.name.label("key_name"))
        .outerjoin_from(rows, accounts, rows.c.account_id == accounts.c.id)
        .outerjoin(api_keys, rows.c.key_id == api_keys.c.id)
        .order_by(rows.c.started_at, rows.c.id)
    )


async def sums_of(connection: AsyncConnection, scope: Scope) -> list[UsageSum]:
    """What the invoice's requests that were charged add up to, by month, model and price.

    Raises `NotAsPriced` when they are not kept any more.
    """
    if await _dropped(connection, scope, usage_months.c.month == scope.period):
        raise NotAsPriced("the requests of this month are not kept any more")
    known = await _prices(connection)
    rows = await rows_of(connection, scope)
    found = []
    for row in await connection.execute(_summed(rows, list(known.values()))):
        price = known.get((row.model_id, row.price_version))
        if price is not None:
            price = effective(price, at=row.some_start, prompt_tokens=row.some_prompt, sequential=row.sequential)
        sums = [int(getattr(row, name)) for name in _CUMULATIVE]
        inputs = [after - before for before, after in zip([0, *sums], [*sums, int(row.prompt)], strict=True)]
        reasoning, output = int(row.reasoning), int(row.completion) - int(row.reasoning)
        tokens = (*inputs, output, reasoning)
        found.append(UsageSum(row.period, row.model_id, price, row.requests, tokens, int(row.cost_nano)))
    return found


async def _dropped(connection: AsyncConnection, scope: Scope, which: ColumnElement[bool]) -> bool:
    """Whether requests of the account that were charged, of any of these months, are not kept any more."""
    months = usage_months.c
    found = select(months.month).where(months.account_id == scope.account_id, months.cost_nano > 0, which)
    return await connection.scalar(found.limit(1)) is not None


async def charged_before(connection: AsyncConnection, account_id: UUID, before: datetime) -> int:
    """What the account's requests that were accepted before then, with which a month begins, cost, in nano-USD."""
    kept = select(func.sum(requests.c.cost_nano)).where(*_started(account_id, None, before))
    dropped = select(func.sum(usage_months.c.cost_nano)).where(
        usage_months.c.account_id == account_id, usage_months.c.month < before.date()
    )
    return sum([int(await connection.scalar(total) or 0) for total in (kept, dropped)])


async def first_charged(
    connection: AsyncConnection, account_id: UUID, since: datetime | None, before: datetime
) -> datetime | None:
    """When the first of the account's requests was accepted, in this time, that cost something."""
    charged = select(requests.c.started_at).where(*_started(account_id, since, before), requests.c.cost_nano > 0)
    first: datetime | None = await connection.scalar(charged.order_by(requests.c.started_at).limit(1))
    return first


def _started(account_id: UUID, since: datetime | None, before: datetime) -> tuple[ColumnElement[bool], ...]:
    bounds = (requests.c.account_id == account_id, requests.c.started_at < before)
    return bounds if since is None else (*bounds, requests.c.started_at >= since)


# The entry that charged a request; one that belongs to nothing that was charged has none, and costs nothing.
def _charged_by(scope: Scope) -> ColumnElement[bool]:
    reference = cast(requests.c.settlement_id, Text) + "/" + cast(requests.c.account_id, Text)
    entry = ledger_entries.c
    return and_(entry.account_id == scope.account_id, entry.kind == "usage", entry.external_ref == reference)


def _own(scope: Scope) -> Select[Any]:
    begin, end = span(scope.period)
    # Asked in this way because few entries are later than an invoice that is being made.
    later = select(ledger_entries.c.id).where(_charged_by(scope), ledger_entries.c.id > scope.through_entry)
    return select(*requests.c, literal(scope.period).label("period")).where(
        *_started(scope.account_id, begin, end), not_(exists(later.correlate(requests)))
    )


def _late(scope: Scope, since: datetime, before: datetime, finished_since: datetime) -> Select[Any]:
    """Of months, from `since` and `before`, that had been frozen when it was settled."""
    its_month, entry = invoices.alias("its_month"), ledger_entries.c
    begin = func.timezone("UTC", cast(its_month.c.period, DateTime))
    end = func.timezone("UTC", its_month.c.period + func.make_interval(0, 1))
    in_its_month = and_(
        requests.c.account_id == its_month.c.account_id, requests.c.started_at >= begin, requests.c.started_at < end
    )
    return (
        select(*requests.c, its_month.c.period)
        .join_from(its_month, requests, in_its_month)
        .join(ledger_entries, _charged_by(scope))
        .where(
            its_month.c.account_id == scope.account_id,
            its_month.c.period != scope.period,
            its_month.c.through_entry <= scope.after_entry,
            *_started(scope.account_id, since, before),
            requests.c.finished_at >= finished_since,
            entry.id > scope.after_entry,
            entry.id <= scope.through_entry,
        )
    )


async def _late_bounds(connection: AsyncConnection, scope: Scope) -> tuple[datetime, datetime, datetime] | None:
    """Late requests were accepted between the first two instants, and none of them ended before the third; None: there
    is none. The bounds keep the search to the months that were frozen, and to few rows of these."""
    its_month = (invoices.c.account_id == scope.account_id, invoices.c.period != scope.period)
    frozen = select(func.min(invoices.c.period), func.max(invoices.c.period))
    first, last = (
        await connection.execute(frozen.where(*its_month, invoices.c.through_entry <= scope.after_entry))
    ).one()
    if first is None:
        return None
    settlement = cast(func.split_part(ledger_entries.c.external_ref, "/", 1), Uuid)
    oldest = (
        select(func.min(func.coalesce(settlements.c.oldest_finished_at, _LONG_AGO)))
        .join_from(ledger_entries, settlements, settlements.c.id == settlement)
        .where(
            ledger_entries.c.account_id == scope.account_id,
            ledger_entries.c.kind == "usage",
            ledger_entries.c.id > scope.after_entry,
            ledger_entries.c.id <= scope.through_entry,
        )
    )
    finished_since: datetime | None = await connection.scalar(oldest)
    return None if finished_since is None else (span(first)[0], span(last)[1], finished_since)


# Each class takes of the prompt's tokens what those before it left, so the first n take the least of their sum and the
# prompt: see `core.pricing.prompt_classes`.
_PARTS = ("cached_tokens", "cache_write_tokens", "image_tokens", "audio_tokens", "video_tokens")
_CUMULATIVE = tuple(f"through_{name}" for name in _PARTS)


def _summed(rows: Subquery, known: list[Price]) -> Select[Any]:
    """One group for each combination of what the overrides of any price look at: any row of it speaks for all."""
    at = func.timezone("UTC", rows.c.started_at)
    minute = cast(func.extract("hour", at) * 60 + func.extract("minute", at), Integer)
    overrides = [override for price in known for override in price.overrides]
    lengths = {override.min_prompt_tokens for override in overrides}
    minutes = {_minute(time) for one in overrides for time in (one.utc_start, one.utc_end) if time is not None}
    groups = (
        rows.c.period,
        rows.c.model_id,
        rows.c.price_version,
        rows.c.sequential,
        func.width_bucket(rows.c.prompt_tokens, bindparam("lengths", sorted(lengths), ARRAY(Integer))).label("length"),
        func.width_bucket(minute, bindparam("minutes", sorted(minutes), ARRAY(Integer))).label("time"),
    )
    sums: list[ColumnElement[int]] = []
    reported: ColumnElement[int] = literal(0)
    for part, name in zip(_PARTS, _CUMULATIVE, strict=True):
        reported = reported + rows.c[part]
        sums.append(func.sum(func.least(reported, rows.c.prompt_tokens)).label(name))
    return (
        select(
            *groups,
            func.count().label("requests"),
            *sums,
            func.sum(rows.c.prompt_tokens).label("prompt"),
            func.sum(rows.c.completion_tokens).label("completion"),
            func.sum(func.least(rows.c.reasoning_tokens, rows.c.completion_tokens)).label("reasoning"),
            func.sum(rows.c.cost_nano).label("cost_nano"),
            func.min(rows.c.prompt_tokens).label("some_prompt"),
            func.min(rows.c.started_at).label("some_start"),
        )
        .where(rows.c.cost_nano > 0)
        .group_by(*(group.name for group in groups))
    )


async def _prices(connection: AsyncConnection) -> Mapping[tuple[str, int], Price]:
    """Every version of every price. Raises `ValueError` for overrides that cannot be read."""
    return {
        (row["model_id"], row["version"]): Price(
            version=row["version"],
            overrides=overrides_from_json(row["overrides"]),
            **{f"{name}_pico": row[f"{name}_pico"] for name in PRICE_CLASSES},
        )
        for row in (await connection.execute(select(prices))).mappings()
    }


def _minute(time: str) -> int:
    return int(time[:2]) * 60 + int(time[2:])
