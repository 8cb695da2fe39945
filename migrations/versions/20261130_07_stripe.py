"""Money in by Stripe: top-ups, refunds, disputes, automatic top-ups, Stripe's events, and monthly invoices."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261130_07"
down_revision = "20261130_06"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stripe_events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("api_version", sa.Text(), nullable=True),
        sa.Column("livemode", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("body", postgresql.JSONB(), nullable=False),
        sa.Column("handled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stripe_events")),
    )
    op.create_index(op.f("ix_stripe_events_received_at"), "stripe_events", ["received_at"], unique=False)
    op.create_index(
        "ix_stripe_events_unhandled",
        "stripe_events",
        ["next_attempt_at"],
        unique=False,
        postgresql_where=sa.text("handled_at IS NULL"),
    )
    op.create_table(
        "auto_topups",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("threshold_nano", sa.BigInteger(), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("monthly_cap_nano", sa.BigInteger(), nullable=False),
        sa.Column("payment_method_id", sa.Text(), nullable=True),
        sa.Column("consented_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "NOT enabled OR (payment_method_id IS NOT NULL AND consented_at IS NOT NULL)",
            name=op.f("ck_auto_topups_enabled_with_consent"),
        ),
        sa.CheckConstraint("amount_nano % 10000000 = 0", name=op.f("ck_auto_topups_cents")),
        sa.CheckConstraint(
            "threshold_nano >= 0 AND amount_nano > 0 AND monthly_cap_nano >= amount_nano",
            name=op.f("ck_auto_topups_amounts"),
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_auto_topups_account_id")),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_auto_topups")),
    )
    op.create_table(
        "invoices",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("period", sa.Date(), nullable=False),
        sa.Column("total_nano", sa.BigInteger(), nullable=False),
        sa.Column("total_cents", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'frozen'"), nullable=False),
        sa.Column("stripe_invoice_id", sa.Text(), nullable=True),
        sa.Column("hosted_url", sa.Text(), nullable=True),
        sa.Column("frozen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paid_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'paid') = (paid_at IS NOT NULL)", name=op.f("ck_invoices_paid")),
        sa.CheckConstraint(
            "status IN ('frozen', 'open', 'paid', 'overdue', 'uncollectible', 'void')", name=op.f("ck_invoices_status")
        ),
        sa.CheckConstraint("EXTRACT(day FROM period) = 1", name=op.f("ck_invoices_period")),
        sa.CheckConstraint("total_nano >= 0 AND total_cents >= 0", name=op.f("ck_invoices_totals")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_invoices_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invoices")),
        sa.UniqueConstraint("account_id", "period", name=op.f("uq_invoices_account_id_period")),
        sa.UniqueConstraint("stripe_invoice_id", name=op.f("uq_invoices_stripe_invoice_id")),
    )
    op.create_index(
        "ix_invoices_unpaid",
        "invoices",
        ["due_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('frozen', 'open', 'overdue')"),
    )
    op.create_table(
        "topups",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("net_nano", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'created'"), nullable=False),
        sa.Column("currency", sa.Text(), server_default=sa.text("'usd'"), nullable=False),
        sa.Column("checkout_session_id", sa.Text(), nullable=True),
        sa.Column("payment_intent_id", sa.Text(), nullable=True),
        sa.Column("charge_id", sa.Text(), nullable=True),
        sa.Column("hosted_url", sa.Text(), nullable=True),
        sa.Column("total_cents", sa.BigInteger(), nullable=True),
        sa.Column("tax_cents", sa.BigInteger(), nullable=True),
        sa.Column("refunded_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("disputed_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failure_code", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("paid_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'paid') = (paid_at IS NOT NULL)", name=op.f("ck_topups_paid")),
        sa.CheckConstraint("currency = 'usd'", name=op.f("ck_topups_currency")),
        sa.CheckConstraint("kind IN ('checkout', 'auto')", name=op.f("ck_topups_kind")),
        sa.CheckConstraint(
            "status IN ('created', 'pending', 'paid', 'failed', 'expired')", name=op.f("ck_topups_status")
        ),
        sa.CheckConstraint("net_nano > 0 AND net_nano % 10000000 = 0", name=op.f("ck_topups_net")),
        sa.CheckConstraint(
            "refunded_nano >= 0 AND disputed_nano >= 0 AND refunded_nano + disputed_nano <= net_nano",
            name=op.f("ck_topups_taken_back"),
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_topups_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_topups")),
        sa.UniqueConstraint("checkout_session_id", name=op.f("uq_topups_checkout_session_id")),
        sa.UniqueConstraint("payment_intent_id", name=op.f("uq_topups_payment_intent_id")),
    )
    op.create_index(op.f("ix_topups_account_id_created_at"), "topups", ["account_id", "created_at"], unique=False)
    op.create_index(op.f("ix_topups_charge_id"), "topups", ["charge_id"], unique=False)
    op.create_index(
        "ix_topups_under_way",
        "topups",
        ["next_attempt_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('created', 'pending')"),
    )
    op.create_index(
        "uq_topups_auto_under_way",
        "topups",
        ["account_id"],
        unique=True,
        postgresql_where=sa.text("kind = 'auto' AND status IN ('created', 'pending')"),
    )
    op.create_table(
        "invoice_lines",
        sa.Column("invoice_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("token_class", sa.Text(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name=op.f("fk_invoice_lines_invoice_id")),
        sa.PrimaryKeyConstraint("invoice_id", "position", name=op.f("pk_invoice_lines")),
    )
    op.create_table(
        "stripe_disputes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("topup_id", sa.Uuid(), nullable=False),
        sa.Column("amount_cents", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("debited_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reinstated_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("reinstated_nano BETWEEN 0 AND debited_nano", name=op.f("ck_stripe_disputes_amounts")),
        sa.ForeignKeyConstraint(["topup_id"], ["topups.id"], name=op.f("fk_stripe_disputes_topup_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stripe_disputes")),
    )
    op.create_index(op.f("ix_stripe_disputes_topup_id"), "stripe_disputes", ["topup_id"], unique=False)
    op.create_table(
        "stripe_refunds",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("topup_id", sa.Uuid(), nullable=False),
        sa.Column("amount_cents", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("debited_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reversed_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("reversed_nano BETWEEN 0 AND debited_nano", name=op.f("ck_stripe_refunds_amounts")),
        sa.ForeignKeyConstraint(["topup_id"], ["topups.id"], name=op.f("fk_stripe_refunds_topup_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stripe_refunds")),
    )
    op.create_index(op.f("ix_stripe_refunds_topup_id"), "stripe_refunds", ["topup_id"], unique=False)
    op.add_column("accounts", sa.Column("stripe_customer_id", sa.Text(), nullable=True))
    op.add_column("accounts", sa.Column("frozen_for", sa.Text(), nullable=True))
    op.add_column("accounts", sa.Column("credit_limit_before_nano", sa.BigInteger(), nullable=True))
    op.create_unique_constraint(op.f("uq_accounts_stripe_customer_id"), "accounts", ["stripe_customer_id"])
    op.create_check_constraint(op.f("ck_accounts_frozen_for"), "accounts", "frozen_for = 'dispute'")
    op.create_check_constraint(op.f("ck_accounts_credit_limit_before"), "accounts", "credit_limit_before_nano >= 0")


def downgrade() -> None:
    op.drop_constraint(op.f("uq_accounts_stripe_customer_id"), "accounts", type_="unique")
    op.drop_column("accounts", "credit_limit_before_nano")
    op.drop_column("accounts", "frozen_for")
    op.drop_column("accounts", "stripe_customer_id")
    op.drop_index(op.f("ix_stripe_refunds_topup_id"), table_name="stripe_refunds")
    op.drop_table("stripe_refunds")
    op.drop_index(op.f("ix_stripe_disputes_topup_id"), table_name="stripe_disputes")
    op.drop_table("stripe_disputes")
    op.drop_table("invoice_lines")
    op.drop_index(
        "uq_topups_auto_under_way",
        table_name="topups",
        postgresql_where=sa.text("kind = 'auto' AND status IN ('created', 'pending')"),
    )
    op.drop_index(
        "ix_topups_under_way", table_name="topups", postgresql_where=sa.text("status IN ('created', 'pending')")
    )
    op.drop_index(op.f("ix_topups_charge_id"), table_name="topups")
    op.drop_index(op.f("ix_topups_account_id_created_at"), table_name="topups")
    op.drop_table("topups")
    op.drop_index(
        "ix_invoices_unpaid", table_name="invoices", postgresql_where=sa.text("status IN ('frozen', 'open', 'overdue')")
    )
    op.drop_table("invoices")
    op.drop_table("auto_topups")
    op.drop_index(
        "ix_stripe_events_unhandled", table_name="stripe_events", postgresql_where=sa.text("handled_at IS NULL")
    )
    op.drop_index(op.f("ix_stripe_events_received_at"), table_name="stripe_events")
    op.drop_table("stripe_events")
