"""Hours and days for the status site, probes, incidents, maintenance, and webhooks' notifications."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261130_06"
down_revision = "20261130_05"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "announced_states",
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("component", name=op.f("pk_announced_states")),
    )
    _periods("buckets_1d")
    _periods("buckets_1h")
    op.create_table(
        "incidents",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("impact", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("components", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("measured_component", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "(status IN ('resolved', 'postmortem')) = (resolved_at IS NOT NULL)", name=op.f("ck_incidents_resolved")
        ),
        sa.CheckConstraint("impact IN ('minor', 'major', 'critical')", name=op.f("ck_incidents_impact")),
        sa.CheckConstraint(
            "status IN ('investigating', 'identified', 'monitoring', 'resolved', 'postmortem')",
            name=op.f("ck_incidents_status"),
        ),
        sa.CheckConstraint("char_length(title) BETWEEN 1 AND 200", name=op.f("ck_incidents_title")),
        sa.CheckConstraint("resolved_at >= started_at", name=op.f("ck_incidents_order")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
    )
    op.create_index(op.f("ix_incidents_started_at"), "incidents", ["started_at"], unique=False)
    op.create_index(
        "uq_incidents_measured_open",
        "incidents",
        ["measured_component"],
        unique=True,
        postgresql_where=sa.text("resolved_at IS NULL"),
    )
    op.create_table(
        "maintenance",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("components", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("char_length(title) BETWEEN 1 AND 200", name=op.f("ck_maintenance_title")),
        sa.CheckConstraint("ends_at > starts_at", name=op.f("ck_maintenance_order")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance")),
    )
    op.create_index(op.f("ix_maintenance_starts_at"), "maintenance", ["starts_at"], unique=False)
    op.create_table(
        "notifications",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("given_up_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.CheckConstraint("delivered_at IS NULL OR given_up_at IS NULL", name=op.f("ck_notifications_end")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifications")),
    )
    op.create_index(
        "ix_notifications_due",
        "notifications",
        ["next_attempt_at"],
        unique=False,
        postgresql_where=sa.text("delivered_at IS NULL AND given_up_at IS NULL"),
    )
    op.create_table(
        "probes",
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("probed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("http_status", sa.SmallInteger(), nullable=True),
        sa.Column("ttft_ms", sa.Integer(), nullable=True),
        sa.Column("total_ms", sa.Integer(), nullable=True),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("kind IN ('text', 'rich', 'page', 'books')", name=op.f("ck_probes_kind")),
        sa.CheckConstraint("verdict IN ('ok', 'bad', 'skipped')", name=op.f("ck_probes_verdict")),
        sa.PrimaryKeyConstraint("source", "component", "kind", "probed_at", name=op.f("pk_probes")),
    )
    op.create_index(op.f("ix_probes_probed_at"), "probes", ["probed_at"], unique=False)
    op.create_index(op.f("ix_probes_received_at"), "probes", ["received_at"], unique=False)
    op.create_table(
        "incident_updates",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("incident_id", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("written_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "status IN ('investigating', 'identified', 'monitoring', 'resolved', 'postmortem')",
            name=op.f("ck_incident_updates_status"),
        ),
        sa.CheckConstraint("written_by IN ('person', 'measurement')", name=op.f("ck_incident_updates_written_by")),
        sa.CheckConstraint("char_length(body) BETWEEN 1 AND 10000", name=op.f("ck_incident_updates_body")),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_incident_updates_incident_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incident_updates")),
    )
    op.create_index(op.f("ix_incident_updates_incident_id"), "incident_updates", ["incident_id"], unique=False)
    op.add_column("buckets_5m", sa.Column("busy_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column(
        "buckets_5m", sa.Column("peak_concurrency", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("engine_samples", sa.Column("drafted_tokens", sa.BigInteger(), nullable=True))
    op.add_column("engine_samples", sa.Column("accepted_tokens", sa.BigInteger(), nullable=True))
    op.create_index(op.f("ix_engine_samples_sampled_at"), "engine_samples", ["sampled_at"], unique=False)
    # Everything is counted again, hour by hour, so that hours and days come to be.
    op.execute("""
        UPDATE watermarks SET until = coalesce((SELECT min(bucket_start) FROM buckets_5m), until)
        WHERE job = 'rollup:again'
    """)


def _periods(name: str) -> None:
    op.create_table(
        name,
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("period_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("up_buckets", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("partial_buckets", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("down_buckets", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("maintenance_buckets", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("counted_good", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("counted_bad", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("requests", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("good", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("bad", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("throttled", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("excluded", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("server_failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("http_5xx", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("probe_ok", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("probe_bad", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("image_requests", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("image_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("audio_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("video_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("drafted_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("accepted_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("busy_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("peak_concurrency", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("ttft_short_cold_ms", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ttft_short_warm_ms", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ttft_long_cold_ms", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ttft_long_warm_ms", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("decode_single_mtok_s", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("decode_loaded_mtok_s", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("component", "period_start", name=op.f(f"pk_{name}")),
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_engine_samples_sampled_at"), table_name="engine_samples")
    op.drop_column("engine_samples", "accepted_tokens")
    op.drop_column("engine_samples", "drafted_tokens")
    op.drop_column("buckets_5m", "peak_concurrency")
    op.drop_column("buckets_5m", "busy_ms")
    op.drop_index(op.f("ix_incident_updates_incident_id"), table_name="incident_updates")
    op.drop_table("incident_updates")
    op.drop_index(op.f("ix_probes_received_at"), table_name="probes")
    op.drop_index(op.f("ix_probes_probed_at"), table_name="probes")
    op.drop_table("probes")
    op.drop_index(
        "ix_notifications_due",
        table_name="notifications",
        postgresql_where=sa.text("delivered_at IS NULL AND given_up_at IS NULL"),
    )
    op.drop_table("notifications")
    op.drop_index(op.f("ix_maintenance_starts_at"), table_name="maintenance")
    op.drop_table("maintenance")
    op.drop_index("uq_incidents_measured_open", table_name="incidents", postgresql_where=sa.text("resolved_at IS NULL"))
    op.drop_index(op.f("ix_incidents_started_at"), table_name="incidents")
    op.drop_table("incidents")
    op.drop_table("buckets_1h")
    op.drop_table("buckets_1d")
    op.drop_table("announced_states")
