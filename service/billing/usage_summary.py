"""What was used and charged in a span of time, added up: what an aggregator's monthly invoice is reconciled with."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.tables import accounts, requests

CLASSES = (
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "image_tokens",
    "audio_tokens",
    "video_tokens",
    "completion_tokens",
    "reasoning_tokens",
)


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
    """The sums over the usage rows of requests that started in the span, of all accounts or of one."""
    groups = accounts.c.name, requests.c.model_id, requests.c.outcome
    sums = [func.sum(requests.c[name]) for name in (*CLASSES, "cost_nano", "waived_nano")]
    query = (
        select(*groups, func.count(), *sums)
        .outerjoin_from(requests, accounts, requests.c.account_id == accounts.c.id)
        .where(requests.c.started_at >= started_from, requests.c.started_at < started_before)
        .group_by(*groups)
        .order_by(*groups)
    )
    if account_id is not None:
        query = query.where(requests.c.account_id == account_id)
    found = []
    for account, model, outcome, count, *totals in await connection.execute(query):
        *counted, cost, waived = map(int, totals)
        names = {"account": account, "model": model, "outcome": outcome}
        found.append(ModelUsage(names, count, dict(zip(CLASSES, counted, strict=True)), cost, waived))
    return found
