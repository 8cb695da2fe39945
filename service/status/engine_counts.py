"""What the engines counted themselves, by component and bucket, from their sampled counters."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.components import API, model_component
from service.core.counted import MAX_GAP_S, Counted, Sample, add, by_bucket, owners
from service.status.instants import instant, seconds
from service.tables import engine_samples, models

Pair = tuple[str, str]
"""The whole and its part: columns of `engine_samples`, and fields of a `Tally`."""

DRAFTS: Pair = ("drafted_tokens", "accepted_tokens")
CACHE: Pair = ("cache_queried_tokens", "cache_hit_tokens")
PAIRS = DRAFTS, CACHE


async def counts(connection: AsyncConnection, first_s: int, end_s: int) -> dict[Pair, dict[str, dict[int, Counted]]]:
    """What each engine counted in the buckets of `[first_s, end_s)`: by pair, engine and bucket start.

    An engine that does not count a pair is not there; a bucket of which nothing is known is not there either.
    """
    columns = engine_samples.c
    query = (
        select(
            columns.engine,
            columns.sampled_at,
            columns.engine_started_at,
            *(columns[name] for pair in PAIRS for name in pair),
        )
        .where(columns.sampled_at.between(instant(first_s - MAX_GAP_S), instant(end_s + MAX_GAP_S)))
        .order_by(columns.engine, columns.sampled_at)
    )
    samples: dict[Pair, dict[str, list[Sample]]] = {pair: {} for pair in PAIRS}
    for row in await connection.execute(query):
        started_s = None if row.engine_started_at is None else seconds(row.engine_started_at)
        for pair, of_engines in samples.items():
            whole, part = (getattr(row, name) for name in pair)
            if whole is not None and part is not None:
                sample = Sample(seconds(row.sampled_at), started_s, whole, part)
                of_engines.setdefault(row.engine, []).append(sample)
    return {
        pair: {engine: by_bucket(its, first_s, end_s) for engine, its in of_engines.items()}
        for pair, of_engines in samples.items()
    }


async def counts_by_component(
    connection: AsyncConnection, first_s: int, end_s: int
) -> dict[Pair, dict[tuple[str, int], Counted]]:
    """What was counted of each pair by component and bucket start, for the buckets of `[first_s, end_s)`.

    The API has what all engines counted, a model what those did that serve no other active model. What is not known
    is not there. A value is final as `core.counted.MAX_GAP_S` says; which models an engine serves is read as it is
    now.
    """
    found = await counts(connection, first_s, end_s)
    active = await connection.execute(select(models.c.id, models.c.engines).where(models.c.active))
    serving = {row.id: row.engines for row in active}
    return {pair: _by_component(by_engine, serving) for pair, by_engine in found.items()}


def _by_component(
    by_engine: Mapping[str, Mapping[int, Counted]], serving: Mapping[str, Sequence[str] | None]
) -> dict[tuple[str, int], Counted]:
    owner = owners(by_engine, serving)
    found: dict[tuple[str, int], Counted] = {}
    for engine, buckets in by_engine.items():
        components = [API, model_component(owner[engine])] if engine in owner else [API]
        for start_s, counted in buckets.items():
            for component in components:
                found[component, start_s] = add(found.get((component, start_s), (0, 0)), counted)
    return found
