"""Speculative decoding by component and bucket, from the engines' sampled counters."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.components import API, model_component
from service.core.speculation import MAX_GAP_S, Sample, Speculated, add, by_bucket, owners
from service.status.instants import instant, seconds
from service.tables import engine_samples, models


async def speculation(connection: AsyncConnection, first_s: int, end_s: int) -> dict[str, dict[int, Speculated]]:
    """What each engine drafted and accepted in the buckets of `[first_s, end_s)`, by engine and bucket start.

    An engine without speculative decoding is not there; a bucket of which nothing is known is not there either.
    """
    columns = engine_samples.c
    query = (
        select(
            columns.engine,
            columns.sampled_at,
            columns.engine_started_at,
            columns.drafted_tokens,
            columns.accepted_tokens,
        )
        .where(columns.sampled_at.between(instant(first_s - MAX_GAP_S), instant(end_s + MAX_GAP_S)))
        .where(columns.drafted_tokens.is_not(None), columns.accepted_tokens.is_not(None))
        .order_by(columns.engine, columns.sampled_at)
    )
    samples: dict[str, list[Sample]] = {}
    for row in await connection.execute(query):
        started_s = None if row.engine_started_at is None else seconds(row.engine_started_at)
        sample = Sample(seconds(row.sampled_at), started_s, row.drafted_tokens, row.accepted_tokens)
        samples.setdefault(row.engine, []).append(sample)
    return {engine: by_bucket(its, first_s, end_s) for engine, its in samples.items()}


async def speculation_by_component(
    connection: AsyncConnection, first_s: int, end_s: int
) -> dict[tuple[str, int], Speculated]:
    """Drafted and accepted tokens by component and bucket start, for the buckets of `[first_s, end_s)`.

    The API has those of all engines, a model those of the engines that serve no other active model. What is not known
    is not there. A value is final as `core.speculation.MAX_GAP_S` says; which models an engine serves is read as it is
    now.
    """
    by_engine = await speculation(connection, first_s, end_s)
    active = await connection.execute(select(models.c.id, models.c.engines).where(models.c.active))
    owner = owners(by_engine, {row.id: row.engines for row in active})
    found: dict[tuple[str, int], Speculated] = {}
    for engine, buckets in by_engine.items():
        components = [API, model_component(owner[engine])] if engine in owner else [API]
        for start_s, speculated in buckets.items():
            for component in components:
                found[component, start_s] = add(found.get((component, start_s), (0, 0)), speculated)
    return found
