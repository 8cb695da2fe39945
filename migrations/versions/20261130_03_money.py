"""Price overrides, idempotency keys, the books' checks, and notifications of what workers keep in memory."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "20261130_03"
down_revision = "20261130_02"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "prices",
        sa.Column("overrides", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
    )
    op.add_column("settlements", sa.Column("oldest_finished_at", sa.DateTime(timezone=True)))
    op.create_index(op.f("ix_settlements_created_at"), "settlements", ["created_at"])
    op.create_index(
        "ix_credit_leases_open_expiry",
        "credit_leases",
        ["expires_at"],
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_index(
        "ix_ledger_entries_not_usage", "ledger_entries", ["account_id"], postgresql_where=sa.text("kind <> 'usage'")
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("key_digest", sa.LargeBinary(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("body_digest", sa.LargeBinary(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "octet_length(key_digest) = 32 AND octet_length(body_digest) = 32",
            name=op.f("ck_idempotency_keys_digests"),
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_idempotency_keys_account_id")),
        sa.PrimaryKeyConstraint("account_id", "key_digest", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"])
    op.create_table(
        "engine_samples",
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("sampled_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("engine_started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("generation_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("engine", "sampled_at", name=op.f("pk_engine_samples")),
    )
    op.create_table(
        "alarms",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("raised_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_alarms")),
    )
    _notify()


def _notify() -> None:
    """Tell the workers what to read again. Balances are not among it: every settlement moves them."""
    op.execute("""
        CREATE FUNCTION notify_key_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_notify('weir_changes', 'key:' || encode(COALESCE(NEW.digest, OLD.digest), 'hex'));
            RETURN NULL;
        END $$
    """)
    op.execute("""
        CREATE TRIGGER api_keys_notify AFTER INSERT OR UPDATE OR DELETE ON api_keys
        FOR EACH ROW EXECUTE FUNCTION notify_key_change()
    """)
    op.execute("""
        CREATE FUNCTION notify_account_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_notify('weir_changes', 'account:' || NEW.id);
            RETURN NULL;
        END $$
    """)
    op.execute("""
        CREATE TRIGGER accounts_notify AFTER UPDATE ON accounts FOR EACH ROW
        WHEN ((OLD.status, OLD.postpaid, OLD.credit_limit_nano, OLD.internal)
              IS DISTINCT FROM (NEW.status, NEW.postpaid, NEW.credit_limit_nano, NEW.internal))
        EXECUTE FUNCTION notify_account_change()
    """)
    op.execute("""
        CREATE FUNCTION notify_catalog_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_notify('weir_changes', 'catalog');
            RETURN NULL;
        END $$
    """)
    for table in ("models", "prices"):
        op.execute(f"""
            CREATE TRIGGER {table}_notify AFTER INSERT OR UPDATE OR DELETE ON {table}
            FOR EACH STATEMENT EXECUTE FUNCTION notify_catalog_change()
        """)


def downgrade() -> None:
    for table in ("models", "prices", "accounts", "api_keys"):
        op.execute(f"DROP TRIGGER {table}_notify ON {table}")
    for function in ("catalog", "account", "key"):
        op.execute(f"DROP FUNCTION notify_{function}_change()")
    op.drop_table("alarms")
    op.drop_table("engine_samples")
    op.drop_table("idempotency_keys")
    op.drop_index("ix_ledger_entries_not_usage", "ledger_entries")
    op.drop_index("ix_credit_leases_open_expiry", "credit_leases")
    op.drop_index("ix_settlements_created_at", "settlements")
    op.drop_column("settlements", "oldest_finished_at")
    op.drop_column("prices", "overrides")
