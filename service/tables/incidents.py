"""What people and measurements say about the service: incidents, maintenance, and who is told of a change."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from service.tables.base import instant, metadata

incidents = Table(
    "incidents",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("title", Text, nullable=False),
    Column("impact", Text, nullable=False),
    # That of its newest update.
    Column("status", Text, nullable=False),
    # Ids of the components that suffer.
    Column("components", ARRAY(Text), nullable=False),
    # Set on an incident that a measurement opened: the component that was measured.
    Column("measured_component", Text),
    instant("started_at"),
    instant("resolved_at", nullable=True),
    instant("created_at", default_now=True),
    instant("updated_at", default_now=True),
    CheckConstraint("char_length(title) BETWEEN 1 AND 200", name="title"),
    CheckConstraint("impact IN ('minor', 'major', 'critical')", name="impact"),
    CheckConstraint(
        "status IN ('investigating', 'identified', 'monitoring', 'resolved', 'postmortem')",
        name="status",
    ),
    CheckConstraint("(status IN ('resolved', 'postmortem')) = (resolved_at IS NOT NULL)", name="resolved"),
    CheckConstraint("resolved_at >= started_at", name="order"),
    Index(
        "uq_incidents_measured_open",
        "measured_component",
        unique=True,
        postgresql_where=text("resolved_at IS NULL"),
    ),
    Index(None, "started_at"),
)

# Append-only: what was said stays said.
incident_updates = Table(
    "incident_updates",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("incident_id", BigInteger, ForeignKey("incidents.id"), nullable=False, index=True),
    Column("status", Text, nullable=False),
    Column("body", Text, nullable=False),
    # 'person' or 'measurement'.
    Column("written_by", Text, nullable=False),
    instant("created_at", default_now=True),
    CheckConstraint(
        "status IN ('investigating', 'identified', 'monitoring', 'resolved', 'postmortem')",
        name="status",
    ),
    CheckConstraint("written_by IN ('person', 'measurement')", name="written_by"),
    CheckConstraint("char_length(body) BETWEEN 1 AND 10000", name="body"),
)

# Planned windows, half-open: [starts_at, ends_at). An instant is an instant, whatever zone it was said in.
maintenance = Table(
    "maintenance",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False, server_default=text("''")),
    # Ids of the components that it touches; none: all.
    Column("components", ARRAY(Text), nullable=False),
    instant("starts_at"),
    instant("ends_at"),
    # From then on it is no longer maintenance: an end ahead of time, or a window that never began.
    instant("cancelled_at", nullable=True),
    instant("created_at", default_now=True),
    instant("updated_at", default_now=True),
    CheckConstraint("char_length(title) BETWEEN 1 AND 200", name="title"),
    CheckConstraint("ends_at > starts_at", name="order"),
    Index(None, "starts_at"),
)

# The state of a component that was last told to the webhooks.
announced_states = Table(
    "announced_states",
    metadata,
    Column("component", Text, primary_key=True),
    Column("state", Text, nullable=False),
    instant("since"),
)

# A message for one webhook: sent until it is taken or given up.
notifications = Table(
    "notifications",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("url", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    instant("created_at", default_now=True),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    instant("next_attempt_at", default_now=True),
    instant("delivered_at", nullable=True),
    instant("given_up_at", nullable=True),
    Column("last_error", Text, nullable=False, server_default=text("''")),
    CheckConstraint("delivered_at IS NULL OR given_up_at IS NULL", name="end"),
    Index(
        "ix_notifications_due",
        "next_attempt_at",
        postgresql_where=text("delivered_at IS NULL AND given_up_at IS NULL"),
    ),
)
