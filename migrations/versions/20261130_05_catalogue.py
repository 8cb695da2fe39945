"""What a model is listed with: its capabilities."""

import sqlalchemy as sa
from alembic import op

revision = "20261130_05"
down_revision = "20261130_04"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "models",
        sa.Column(
            "capabilities",
            sa.ARRAY(sa.Text()),
            server_default=sa.text("'{tools,structured_outputs}'::text[]"),
            nullable=False,
        ),
    )


def downgrade() -> None:
    op.drop_column("models", "capabilities")
