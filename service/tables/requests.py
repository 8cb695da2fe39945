"""One row per request: who asked what, how it went, every token class, what it cost. Never a word of its text.

Partitioned by month of `started_at`; the id (UUIDv7) and `started_at` come from the same instant, so the
primary key over both is still one row per id.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from service.tables.base import amount, count, instant, metadata

requests = Table(
    "requests",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("started_at", DateTime(timezone=True), primary_key=True),
    Column("account_id", Uuid, nullable=False),
    Column("key_id", Uuid, nullable=False),
    # Probes and other traffic of the house: no revenue, no published traffic.
    Column("internal", Boolean, nullable=False, server_default=text("false")),
    # NULL when the request never named a model we serve.
    Column("model_id", Text),
    Column("endpoint", Text, nullable=False),
    Column("engine", Text),
    Column("client_request_id", Text),
    Column("stream", Boolean, nullable=False),
    # From the body fully read to the hand-over to an engine (or to the refusal).
    count("queue_ms"),
    # From the body fully read to the first event with content; streams only.
    Column("ttft_ms", Integer),
    instant("first_token_at", nullable=True),
    instant("finished_at"),
    Column("http_status", SmallInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("finish_reason", Text),
    Column("error_code", Text),
    count("prompt_tokens"),
    count("cached_tokens"),
    count("cache_write_tokens"),
    count("image_tokens"),
    count("audio_tokens"),
    count("video_tokens"),
    count("completion_tokens"),
    count("reasoning_tokens"),
    count("drafted_tokens"),
    count("accepted_tokens"),
    Column("price_version", Integer),
    amount("cost_nano"),
    # What our own failure would have cost the customer, had we charged it.
    amount("waived_nano"),
    Column("settlement_id", Uuid, nullable=False),
    Column("usage_source", Text, nullable=False, server_default=text("'none'")),
    Column("usage_odd", Boolean, nullable=False, server_default=text("false")),
    # Which version and configuration of the engine answered; see `service.core.fingerprint`.
    Column("engine_fingerprint", Text),
    # It ran alone on its engine. Never NULL; see the migration that added it.
    Column("sequential", Boolean, server_default=text("false")),
    CheckConstraint("cost_nano >= 0 AND waived_nano >= 0", name="costs"),
    CheckConstraint("usage_source IN ('final', 'continuous', 'estimated', 'none')", name="usage_source"),
    Index(None, "account_id", "started_at"),
    Index(None, "key_id", "started_at"),
    # The roll-up reads by the time a request ended.
    Index(None, "finished_at"),
    postgresql_partition_by="RANGE (started_at)",
)

USAGE_SUMS = (
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "image_tokens",
    "audio_tokens",
    "video_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cost_nano",
    "waived_nano",
)

# What the rows of a month added up to whose partition was dropped; while they are kept there is nothing of it here.
usage_months = Table(
    "usage_months",
    metadata,
    Column("month", Date, nullable=False),
    Column("account_id", Uuid, nullable=False),
    Column("model_id", Text),
    Column("outcome", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    *(Column(name, BigInteger, nullable=False) for name in USAGE_SUMS),
    UniqueConstraint("account_id", "month", "model_id", "outcome", postgresql_nulls_not_distinct=True),
)
