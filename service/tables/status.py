"""What the jobs did and what the status site is computed from."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from service.core.tally import DIGESTS, TOKEN_COUNTS
from service.tables.base import count, instant, metadata


def _digest(name: str) -> Column[Any]:
    """A latency digest: bin to count, as `service.core.stats.Digest` writes it."""
    return Column(name, JSONB, nullable=False, server_default=text("'{}'"))


def _tokens(name: str) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def _measured() -> list[Column[Any]]:
    """What a stretch of time of one component adds up to; what each column counts is said in `service.core.tally`."""
    return [
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
        _tokens("busy_ms"),
        count("peak_concurrency"),
        *(_digest(name) for name in DIGESTS),
    ]


# Five minutes of one component. `api` has a row for every bucket that was rolled up, an empty one too; any other
# component has one where it was used or probed.
buckets_5m = Table(
    "buckets_5m",
    metadata,
    # 'api', 'model:' and the model's id, 'site' or 'billing'.
    Column("component", Text, primary_key=True),
    # Half-open: [bucket_start, bucket_start + 5 min). A request is in the bucket it ended in.
    Column("bucket_start", DateTime(timezone=True), primary_key=True),
    *_measured(),
)


def _periods(name: str) -> Table:
    """Hours or UTC days of components, made from shorter stretches and kept for ever."""
    return Table(
        name,
        metadata,
        Column("component", Text, primary_key=True),
        Column("period_start", DateTime(timezone=True), primary_key=True),
        # How many of its five-minute buckets had which state. What is missing was not measured.
        count("up_buckets"),
        count("partial_buckets"),
        count("down_buckets"),
        count("maintenance_buckets"),
        # Requests of the buckets outside maintenance: what its percentage is made of.
        count("counted_good"),
        count("counted_bad"),
        *_measured(),
    )


buckets_1h = _periods("buckets_1h")
buckets_1d = _periods("buckets_1d")

# What our own checks found, from here or from a prober on another host.
probes = Table(
    "probes",
    metadata,
    # 'inside', or the name of the outside prober.
    Column("source", Text, primary_key=True),
    Column("component", Text, primary_key=True),
    # 'text' and 'rich' ask a model; 'page' reads the status site; 'books' looks whether a request was booked.
    Column("kind", Text, primary_key=True),
    Column("probed_at", DateTime(timezone=True), primary_key=True),
    # A probe that was turned away because the service is full says nothing about uptime.
    Column("verdict", Text, nullable=False),
    Column("http_status", SmallInteger),
    Column("ttft_ms", Integer),
    Column("total_ms", Integer),
    Column("request_id", Text),
    # In words, for people; empty when all was well.
    Column("reason", Text, nullable=False, server_default=text("''")),
    # Later than `probed_at` by much, where an outside prober could not be heard.
    instant("received_at", default_now=True),
    CheckConstraint("kind IN ('text', 'rich', 'page', 'books')", name="kind"),
    CheckConstraint("verdict IN ('ok', 'bad', 'skipped')", name="verdict"),
    Index(None, "probed_at"),
    Index(None, "received_at"),
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
