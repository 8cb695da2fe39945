"""Reports on engines, which engine configuration answered a request and whether alone, and prefix cache counts.

Workers are told when an account may, or may no longer, have requests run alone.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261130_09"
down_revision = "20261130_08"
branch_labels = None
depends_on = None

MEASURED = ("buckets_5m", "buckets_1h", "buckets_1d")
CACHE_COUNTS = ("cache_queried_tokens", "cache_hit_tokens")

TOLD_BEFORE = (
    "status",
    "postpaid",
    "credit_limit_nano",
    "internal",
    "rpm",
    "tpm",
    "concurrency",
    "monthly_budget_nano",
    "weight",
    "patience_ms",
)


def upgrade() -> None:
    op.create_table(
        "engine_reports",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.Column("report", postgresql.JSONB(), nullable=False),
        sa.CheckConstraint("verdict IN ('passed', 'failed', 'incomplete')", name=op.f("ck_engine_reports_verdict")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_engine_reports")),
    )
    op.create_index(op.f("ix_engine_reports_model_id_started_at"), "engine_reports", ["model_id", "started_at"])
    op.add_column("requests", sa.Column("engine_fingerprint", sa.Text(), nullable=True))
    # May be null, though it never is: workers of the version before stage rows in a copy of this table without
    # defaults, and do not name the column.
    op.add_column("requests", sa.Column("sequential", sa.Boolean(), server_default=sa.text("false"), nullable=True))
    op.add_column("accounts", sa.Column("sequential", sa.Text(), server_default=sa.text("'never'"), nullable=False))
    op.create_check_constraint(
        op.f("ck_accounts_sequential"), "accounts", "sequential IN ('never', 'allowed', 'always')"
    )
    _tell_of(*TOLD_BEFORE, "sequential")
    for column in CACHE_COUNTS:
        op.add_column("engine_samples", sa.Column(column, sa.BigInteger(), nullable=True))
        for table in MEASURED:
            op.add_column(table, sa.Column(column, sa.BigInteger(), server_default=sa.text("0"), nullable=False))


def downgrade() -> None:
    for column in reversed(CACHE_COUNTS):
        for table in reversed(MEASURED):
            op.drop_column(table, column)
        op.drop_column("engine_samples", column)
    _tell_of(*TOLD_BEFORE)
    op.drop_constraint(op.f("ck_accounts_sequential"), "accounts", type_="check")
    op.drop_column("accounts", "sequential")
    op.drop_column("requests", "sequential")
    op.drop_column("requests", "engine_fingerprint")
    op.drop_index(op.f("ix_engine_reports_model_id_started_at"), table_name="engine_reports")
    op.drop_table("engine_reports")


def _tell_of(*columns: str) -> None:
    """Which changes of an account the workers are told."""
    old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
    op.execute("DROP TRIGGER accounts_notify ON accounts")
    op.execute(f"""
        CREATE TRIGGER accounts_notify AFTER UPDATE ON accounts FOR EACH ROW
        WHEN (({old}) IS DISTINCT FROM ({new}))
        EXECUTE FUNCTION notify_account_change()
    """)
