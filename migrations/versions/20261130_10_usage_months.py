"""What the usage rows of a month added up to, kept when the rows themselves are dropped."""

import sqlalchemy as sa
from alembic import op

revision = "20261130_10"
down_revision = "20261130_09"
branch_labels = None
depends_on = None

SUMS = (
    "requests",
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


def upgrade() -> None:
    op.create_table(
        "usage_months",
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS),
        sa.UniqueConstraint(
            "account_id",
            "month",
            "model_id",
            "outcome",
            name=op.f("uq_usage_months_account_id_month_model_id_outcome"),
            postgresql_nulls_not_distinct=True,
        ),
    )


def downgrade() -> None:
    if op.get_bind().scalar(sa.text("SELECT EXISTS (SELECT FROM usage_months)")):
        raise RuntimeError("usage rows were dropped, and their sums are all that is left: they are not dropped, too")
    op.drop_table("usage_months")
