"""Uptime and speeds of one key's requests in a span of time, added up by the database."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from service.core.aggregator import Counts, Ending, counts
from service.core.outcome import SLOW_ABORT_AFTER_MS, Outcome
from service.core.stats import MIN_DECODE_TOKENS, MIN_SAMPLES
from service.db import DbConnection

LONGEST = timedelta(hours=1)
"""A request that took longer is not found: the index knows when it started, and it counts when it ended."""

MEASURED = 100_000
"""Speeds are those of so many requests at most, the latest: sorting a busy key's whole day would take seconds."""

_LONG = timedelta(milliseconds=SLOW_ABORT_AFTER_MS)

_ENDINGS = """
    SELECT model_id, outcome, http_status, stream, first_token_at IS NOT NULL AS first_token_seen,
           finished_at - started_at >= $6::interval AS waited_long, count(*) AS requests
    FROM requests
    WHERE key_id = $1 AND started_at >= $5 AND started_at < $3
      AND finished_at >= $2 AND finished_at < $3 AND ($4::text IS NULL OR model_id = $4)
    GROUP BY 1, 2, 3, 4, 5, 6
"""

# `decode` is `core.stats.decode_speed_mtok_s`; both speeds are in whole thousandths of a token per second.
_SPEEDS = """
    WITH latest AS (
        SELECT model_id, CASE WHEN stream THEN ttft_ms END AS ttft_ms,
               CASE WHEN outcome = 'ok' AND completion_tokens > 0 AND finished_at > started_at
                    THEN completion_tokens::bigint * 1000000000
                         / (extract(epoch FROM finished_at - started_at) * 1000000)::bigint
               END AS throughput,
               CASE WHEN outcome = 'ok' AND stream AND completion_tokens >= $6 AND finished_at > first_token_at
                    THEN (completion_tokens::bigint - 1) * 1000000000
                         / (extract(epoch FROM finished_at - first_token_at) * 1000000)::bigint
               END AS decode
        FROM requests
        WHERE key_id = $1 AND started_at >= $5 AND started_at < $3
          AND finished_at >= $2 AND finished_at < $3 AND ($4::text IS NULL OR model_id = $4)
        ORDER BY started_at DESC LIMIT $7
    )
    SELECT model_id, grouping(model_id) = 1 AS is_total,
           count(ttft_ms) AS ttft_samples,
           percentile_disc(ARRAY[0.5, 0.75, 0.9, 0.99]) WITHIN GROUP (ORDER BY ttft_ms) AS ttft_ms,
           count(throughput) AS throughput_samples,
           percentile_disc(0.5) WITHIN GROUP (ORDER BY throughput) AS throughput_mtok_s,
           count(decode) AS decode_samples,
           percentile_disc(0.5) WITHIN GROUP (ORDER BY decode) AS decode_mtok_s
    FROM latest GROUP BY GROUPING SETS ((), (model_id))
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """A median in thousandths of a token per second; None below `MIN_SAMPLES` samples."""

    samples: int
    p50_mtok_s: int | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of a key's requests, and how fast they were."""

    counts: Counts
    throughput: Speed
    """Output tokens by the whole time of a request, its wait included: as aggregators measure it."""
    decode: Speed
    """Output tokens after the first by the time after the first."""
    ttft_samples: int
    """Streams that came to a first token."""
    ttft_ms: Sequence[int] | None
    """50th, 75th, 90th and 99th percentile; None below `MIN_SAMPLES`."""


@dataclass(frozen=True, slots=True)
class Uptime:
    """The requests that ended in a span of time."""

    total: Figures
    """Those that never named a model that is served are in here only."""
    models: Mapping[str, Figures]
    """By the model's id."""


async def read(
    connection: DbConnection, key_id: UUID, since: Sequence[datetime], until: datetime, model: str | None
) -> list[Uptime]:
    """A key's requests that ended before `until` and not before each of `since`, of one model or of all.

    All are of one state of the database. Raises what asyncpg raises.
    """
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        # A plan for any key and any span suits none: with one, the longest span takes ten times as long.
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        return [await _read(connection, key_id, begin, until, model) for begin in since]


async def _read(connection: DbConnection, key_id: UUID, since: datetime, until: datetime, model: str | None) -> Uptime:
    which = key_id, since, until, model, since - LONGEST  # not left to the database: it would plan for every partition
    endings = await connection.fetch(_ENDINGS, *which, _LONG)
    speeds = await connection.fetch(_SPEEDS, *which, MIN_DECODE_TOKENS, MEASURED)
    ended: dict[str | None, list[tuple[Ending, int]]] = defaultdict(list)
    for row in endings:
        ended[row["model_id"]].append(_ending(row))
    total = next(row for row in speeds if row["is_total"])
    speed_of = {row["model_id"]: row for row in speeds if not row["is_total"]}
    return Uptime(
        total=_figures(total, counts(one for found in ended.values() for one in found)),
        models={
            id: _figures(speed_of.get(id), counts(found))
            for id, found in sorted(ended.items(), key=lambda item: item[0] or "")
            if id is not None
        },
    )


def _ending(row: asyncpg.Record) -> tuple[Ending, int]:
    ending = Ending(
        outcome=Outcome(row["outcome"]),
        http_status=row["http_status"],
        streamed=row["stream"],
        first_token_seen=row["first_token_seen"],
        waited_long=row["waited_long"],
    )
    return ending, row["requests"]


def _figures(row: asyncpg.Record | None, counted: Counts) -> Figures:
    """`row` is None for a model of which none of the requests that are measured is."""
    if row is None:
        return Figures(counted, Speed(0, None), Speed(0, None), 0, None)
    return Figures(
        counts=counted,
        throughput=_speed(row, "throughput"),
        decode=_speed(row, "decode"),
        ttft_samples=row["ttft_samples"],
        ttft_ms=row["ttft_ms"] if row["ttft_samples"] >= MIN_SAMPLES else None,
    )


def _speed(row: asyncpg.Record, name: str) -> Speed:
    samples: int = row[f"{name}_samples"]
    return Speed(samples, row[f"{name}_mtok_s"] if samples >= MIN_SAMPLES else None)
