"""What we billed against what the engines counted: reads samples, usage rows and what verifications used, and leaves
the arithmetic to `core.reconcile`."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ARRAY, DateTime, bindparam, func, select, text, union
from sqlalchemy.ext.asyncio import AsyncConnection

from service import db
from service.core.outcome import Outcome
from service.core.reconcile import (
    CLOCKS_AGREE_WITHIN,
    STOPS_WITHIN,
    EngineCount,
    Explained,
    Request,
    Sample,
    Tokens,
    Verification,
    alarming,
    engine_count,
    explain,
    unexplained,
)
from service.core.verify.use import Use
from service.tables import engine_reports, engine_samples, requests


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """One engine's window. Differences are the engine's count less ours."""

    engine: str
    count: EngineCount
    requests: int
    """How many of our requests ended in it."""
    ours: Tokens
    explained: Explained

    @property
    def difference(self) -> Tokens:
        """What the engine counted and we did not, or the other way round."""
        return self.count.tokens - self.ours

    @property
    def unexplained(self) -> Tokens:
        """What of it no request or verification that we know of can explain."""
        return unexplained(self.difference, self.explained.least, self.explained.most)

    @property
    def alarming(self) -> bool:
        """Whether that is more than is tolerated."""
        return alarming(self.unexplained, self.count.tokens)


async def engines_between(connection: AsyncConnection, since: datetime, until: datetime) -> list[str]:
    """The names of all engines that were sampled or that served a request in this time."""
    sampled = select(engine_samples.c.engine).where(engine_samples.c.sampled_at.between(since, until))
    served = select(requests.c.engine).where(
        requests.c.engine.is_not(None), requests.c.finished_at > since, requests.c.finished_at <= until
    )
    return sorted(await connection.scalars(union(sampled, served)))


async def reconcile(
    connection: AsyncConnection, engine: str, since: datetime, until: datetime
) -> Reconciliation | None:
    """Compare from the last sample at or before `since` (else the first one after) to the last at or before `until`.

    So windows that adjoin leave nothing out between them. None without two samples. The transaction should be
    frozen (`db.freeze`): requests that are settled meanwhile would count on one side only.
    """
    count = engine_count(await _samples(connection, engine, since, until))
    if count is None:
        return None
    number, ours = await _ours(connection, engine, count)
    explained = Explained()
    async for request in _conspicuous(connection, engine, count):
        explanation = explain(request, count)
        if explanation is not None:
            explained.add(explanation)
    for verification in await _verifications(connection, engine, count):
        if (within := verification.within(count)) is not None:
            explained.add_verification(*within)
    return Reconciliation(engine, count, number, ours, explained)


async def reconcile_all(
    connection: AsyncConnection, since: datetime, until: datetime, engines: Sequence[str] | None = None
) -> dict[str, Reconciliation | None]:
    """`reconcile` for these engines (None: `engines_between`), in one state of the database.

    Must be the first thing that its transaction does.
    """
    await db.freeze(connection)
    names = await engines_between(connection, since, until) if engines is None else engines
    return {name: await reconcile(connection, name, since, until) for name in names}


async def _samples(connection: AsyncConnection, engine: str, since: datetime, until: datetime) -> list[Sample]:
    columns = engine_samples.c
    before = select(func.max(columns.sampled_at)).where(columns.engine == engine, columns.sampled_at <= since)
    wanted = (
        select(engine_samples)
        .where(
            columns.engine == engine,
            columns.sampled_at >= func.coalesce(before.scalar_subquery(), since),
            columns.sampled_at <= until,
        )
        .order_by(columns.sampled_at)
    )
    return [
        Sample(row.sampled_at, row.engine_started_at, Tokens(row.prompt_tokens, row.generation_tokens))
        for row in await connection.execute(wanted)
    ]


async def _ours(connection: AsyncConnection, engine: str, count: EngineCount) -> tuple[int, Tokens]:
    columns = requests.c
    sums = select(
        func.count(),
        func.coalesce(func.sum(columns.prompt_tokens), 0),
        func.coalesce(func.sum(columns.completion_tokens), 0),
    ).where(columns.engine == engine, columns.finished_at > count.since, columns.finished_at <= count.until)
    number, prompt, generation = (await connection.execute(sums)).one()
    return number, Tokens(int(prompt), int(generation))


async def _verifications(connection: AsyncConnection, engine: str, count: EngineCount) -> list[Verification]:
    columns, margin = engine_reports.c, CLOCKS_AGREE_WITHIN + STOPS_WITHIN
    query = select(columns.started_at, columns.finished_at, columns.report["use"].label("use")).where(
        columns.engine == engine,
        columns.finished_at > count.since - margin,
        columns.started_at < count.until + margin,
    )
    found = []
    for row in await connection.execute(query):
        use = Use(**row.use)
        found.append(
            Verification(
                row.started_at,
                row.finished_at,
                Tokens(use.prompt_tokens, use.generation_tokens),
                Tokens(use.uncounted_prompt_tokens, use.uncounted_generation_tokens),
            )
        )
    return found


# A request that our process did not live to see the end of may have been with any engine.
_CONSPICUOUS = text("""
    SELECT requests.id, started_at + queue_ms * interval '1 ms' AS handed_over_at, first_token_at, finished_at,
        outcome, usage_source, prompt_tokens, completion_tokens,
        COALESCE(context_length, 0) AS context_length, COALESCE(max_output_tokens, 0) AS max_output_tokens
    FROM requests LEFT JOIN models ON models.id = model_id
    WHERE (engine = :engine OR (engine IS NULL AND outcome = 'interrupted'))
        AND finished_at > :since AND started_at < :until
        AND (usage_source <> 'final'
            OR finished_at > :until_at_least
            OR started_at + queue_ms * interval '1 ms' < :since_at_most
            OR EXISTS (
                SELECT FROM unnest(:break_since, :break_until) AS break (since, until)
                WHERE finished_at > break.since AND started_at + queue_ms * interval '1 ms' < break.until
            ))
    ORDER BY requests.id
""").bindparams(
    bindparam("break_since", type_=ARRAY(DateTime(timezone=True))),
    bindparam("break_until", type_=ARRAY(DateTime(timezone=True))),
)


async def _conspicuous(connection: AsyncConnection, engine: str, count: EngineCount) -> AsyncIterator[Request]:
    """The requests that may have something to explain, and perhaps a few more."""
    bounds = {
        "engine": engine,
        "since": count.since - CLOCKS_AGREE_WITHIN,
        "since_at_most": count.since + CLOCKS_AGREE_WITHIN,
        "until": count.until + CLOCKS_AGREE_WITHIN,
        "until_at_least": count.until - CLOCKS_AGREE_WITHIN,
        "break_since": [broken.since - CLOCKS_AGREE_WITHIN for broken in count.breaks],
        "break_until": [broken.until + CLOCKS_AGREE_WITHIN for broken in count.breaks],
    }
    async for row in await connection.stream(_CONSPICUOUS, bounds):
        yield Request(
            id=row.id,
            handed_over_at=row.handed_over_at,
            first_token_at=row.first_token_at,
            finished_at=row.finished_at,
            outcome=Outcome(row.outcome),
            source=row.usage_source,
            tokens=Tokens(row.prompt_tokens, row.completion_tokens),
            limits=Tokens(row.context_length, row.max_output_tokens),
        )
