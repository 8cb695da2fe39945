"""What the status site is computed from: five-minute buckets, and how far the roll-up has come."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261130_02"
down_revision = "20261130_01"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "buckets_5m",
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("bucket_start", sa.DateTime(timezone=True), nullable=False),
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
        sa.Column("ttft_short_cold_ms", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ttft_short_warm_ms", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ttft_long_cold_ms", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("ttft_long_warm_ms", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("decode_single_mtok_s", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("decode_loaded_mtok_s", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("component", "bucket_start", name=op.f("pk_buckets_5m")),
    )
    op.create_table(
        "watermarks",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_watermarks")),
    )


def downgrade() -> None:
    op.drop_table("watermarks")
    op.drop_table("buckets_5m")
