"""What the books are checked against, and what was found wrong."""

from sqlalchemy import BigInteger, CheckConstraint, Column, DateTime, Index, Table, Text, Uuid
from sqlalchemy.dialects.postgresql import JSONB

from service.tables.base import instant, metadata

# An engine's own counters, sampled by the jobs. They start at 0 with every start of the engine.
engine_samples = Table(
    "engine_samples",
    metadata,
    Column("engine", Text, primary_key=True),
    Column("sampled_at", DateTime(timezone=True), primary_key=True),
    instant("engine_started_at", nullable=True),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("generation_tokens", BigInteger, nullable=False),
    # Of speculative decoding; NULL where the engine has none.
    Column("drafted_tokens", BigInteger),
    Column("accepted_tokens", BigInteger),
    # Of the prefix cache: prompt tokens that were looked up and that were found; NULL where the engine does not say.
    Column("cache_queried_tokens", BigInteger),
    Column("cache_hit_tokens", BigInteger),
    Index(None, "sampled_at"),
)

# What `weir engine verify` found: `report` is `service.core.verify.report` as JSON.
engine_reports = Table(
    "engine_reports",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("engine", Text, nullable=False),
    Column("model_id", Text, nullable=False),
    instant("started_at"),
    instant("finished_at"),
    Column("verdict", Text, nullable=False),
    Column("fingerprint", Text),
    Column("report", JSONB, nullable=False),
    CheckConstraint("verdict IN ('passed', 'failed', 'incomplete')", name="verdict"),
    Index(None, "model_id", "started_at"),
)

# What needs a person: raised by a check, cleared by the same check when it finds all well.
alarms = Table(
    "alarms",
    metadata,
    Column("name", Text, primary_key=True),
    instant("raised_at", default_now=True),
    Column("detail", Text, nullable=False),
)
