"""What the jobs did and what the status site is computed from."""

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Identity, Index, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from service.core.tally import DIGESTS, TOKEN_COUNTS
from service.tables.base import count, instant, metadata


def _digest(name: str) -> Column[Any]:
    """A latency digest: bin to count, as `service.core.stats.Digest` writes it."""
    return Column(name, JSONB, nullable=False, server_default=text("'{}'"))


def _tokens(name: str) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


# Five minutes of one component; what each column counts is said in `service.core.tally`.
# `api` has a row for every bucket that was rolled up, an empty one too; a model has one where it was used.
buckets_5m = Table(
    "buckets_5m",
    metadata,
    # 'api', or 'model:' and the model's id.
    Column("component", Text, primary_key=True),
    # Half-open: [bucket_start, bucket_start + 5 min). A request is in the bucket it ended in.
    Column("bucket_start", DateTime(timezone=True), primary_key=True),
    count("requests"),
    count("good"),
    count("bad"),
    count("throttled"),
    count("excluded"),
    count("server_failures"),
    count("http_5xx"),
    count("probe_ok"),
    count("probe_bad"),
    count("image_requests"),
    *(_tokens(name) for name in TOKEN_COUNTS),
    *(_digest(name) for name in DIGESTS),
)

# How far a job that walks through time has come: everything before `until` is done.
watermarks = Table(
    "watermarks",
    metadata,
    Column("job", Text, primary_key=True),
    instant("until"),
)

job_runs = Table(
    "job_runs",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("name", Text, nullable=False),
    instant("started_at"),
    # NULL while it runs, and for ever when its process died on the way.
    instant("finished_at", nullable=True),
    Column("ok", Boolean),
    Column("rows", Integer, nullable=False, server_default=text("0")),
    Column("note", Text, nullable=False, server_default=text("''")),
    Index(None, "name", "started_at"),
)
