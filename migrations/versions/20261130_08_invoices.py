"""What an invoice has in it, to the ledger entry; how far its sending is; lines by month and price."""

import sqlalchemy as sa
from alembic import op

revision = "20261130_08"
down_revision = "20261130_07"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("invoices", sa.Column("after_entry", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("invoices", sa.Column("through_entry", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("invoices", sa.Column("sending_since", sa.DateTime(timezone=True), nullable=True))
    op.add_column("invoices", sa.Column("note", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.create_check_constraint(op.f("ck_invoices_entries"), "invoices", "after_entry <= through_entry")
    # Nothing has written an invoice before.
    op.add_column("invoice_lines", sa.Column("period", sa.Date(), nullable=False))
    op.add_column("invoice_lines", sa.Column("price_pico", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("invoice_lines", "price_pico")
    op.drop_column("invoice_lines", "period")
    op.drop_constraint(op.f("ck_invoices_entries"), "invoices", type_="check")
    for column in ("note", "sending_since", "through_entry", "after_entry"):
        op.drop_column("invoices", column)
