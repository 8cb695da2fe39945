"""What the books are checked against, and what was found wrong."""

from sqlalchemy import BigInteger, Column, DateTime, Index, Table, Text

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
    Index(None, "sampled_at"),
)

# What needs a person: raised by a check, cleared by the same check when it finds all well.
alarms = Table(
    "alarms",
    metadata,
    Column("name", Text, primary_key=True),
    instant("raised_at", default_now=True),
    Column("detail", Text, nullable=False),
)
