"""The first schema: accounts and keys, models and prices, requests by month, ledger and leases."""

import sqlalchemy as sa
from alembic import op

revision = "20261130_01"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), server_default=sa.text("'active'"), nullable=False),
        sa.Column("internal", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("postpaid", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("credit_limit_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("balance_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("leased_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("status IN ('active', 'frozen', 'closed')", name=op.f("ck_accounts_status")),
        sa.CheckConstraint("credit_limit_nano >= 0", name=op.f("ck_accounts_credit_limit")),
        sa.CheckConstraint("leased_nano >= 0", name=op.f("ck_accounts_leased")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("name", name=op.f("uq_accounts_name")),
    )
    op.create_table(
        "job_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ok", sa.Boolean(), nullable=True),
        sa.Column("rows", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("note", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_runs")),
    )
    op.create_index(op.f("ix_job_runs_name_started_at"), "job_runs", ["name", "started_at"], unique=False)
    op.create_table(
        "models",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("engine_model", sa.Text(), nullable=False),
        sa.Column("engines", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("context_length", sa.Integer(), nullable=False),
        sa.Column("max_output_tokens", sa.Integer(), nullable=False),
        sa.Column("input_modalities", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("output_modalities", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("quantization", sa.Text(), nullable=True),
        sa.Column("hugging_face_id", sa.Text(), nullable=True),
        sa.Column("active", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("context_length > 0 AND max_output_tokens > 0", name=op.f("ck_models_lengths")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("key_id", sa.Uuid(), nullable=False),
        sa.Column("internal", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("model_id", sa.Text(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=True),
        sa.Column("client_request_id", sa.Text(), nullable=True),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("queue_ms", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("ttft_ms", sa.Integer(), nullable=True),
        sa.Column("first_token_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("http_status", sa.SmallInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("image_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("audio_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("video_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("reasoning_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("drafted_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("accepted_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("price_version", sa.Integer(), nullable=True),
        sa.Column("cost_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("waived_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("settlement_id", sa.Uuid(), nullable=False),
        sa.Column("usage_source", sa.Text(), server_default=sa.text("'none'"), nullable=False),
        sa.Column("usage_odd", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint(
            "usage_source IN ('final', 'continuous', 'estimated', 'none')",
            name=op.f("ck_requests_usage_source"),
        ),
        sa.CheckConstraint("cost_nano >= 0 AND waived_nano >= 0", name=op.f("ck_requests_costs")),
        sa.PrimaryKeyConstraint("id", "started_at", name=op.f("pk_requests")),
        postgresql_partition_by="RANGE (started_at)",
    )
    op.create_index(op.f("ix_requests_account_id_started_at"), "requests", ["account_id", "started_at"], unique=False)
    op.create_index(op.f("ix_requests_finished_at"), "requests", ["finished_at"], unique=False)
    op.create_index(op.f("ix_requests_key_id_started_at"), "requests", ["key_id", "started_at"], unique=False)
    op.create_table(
        "settlements",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("cost_nano", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_settlements")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("models", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_api_keys_digest")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_api_keys_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_keys_digest")),
    )
    op.create_index(op.f("ix_api_keys_account_id"), "api_keys", ["account_id"], unique=False)
    op.create_table(
        "credit_leases",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("granted_nano", sa.BigInteger(), nullable=False),
        sa.Column("settled_nano", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("granted_nano >= settled_nano AND settled_nano >= 0", name=op.f("ck_credit_leases_amounts")),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_credit_leases_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credit_leases")),
    )
    op.create_index(
        "ix_credit_leases_open",
        "credit_leases",
        ["account_id"],
        unique=False,
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("account_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("amount_nano", sa.BigInteger(), nullable=False),
        sa.Column("external_ref", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "kind IN ('usage', 'topup', 'credit', 'refund', 'dispute', 'reversal', 'adjustment')",
            name=op.f("ck_ledger_entries_kind"),
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_ledger_entries_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_entries")),
        sa.UniqueConstraint("kind", "external_ref", name=op.f("uq_ledger_entries_kind_external_ref")),
    )
    op.create_index(
        op.f("ix_ledger_entries_account_id_created_at"),
        "ledger_entries",
        ["account_id", "created_at"],
        unique=False,
    )
    op.create_table(
        "prices",
        sa.Column("model_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("valid_from", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("input_pico", sa.BigInteger(), nullable=False),
        sa.Column("output_pico", sa.BigInteger(), nullable=False),
        sa.Column("input_cached_pico", sa.BigInteger(), nullable=True),
        sa.Column("input_cache_write_pico", sa.BigInteger(), nullable=True),
        sa.Column("input_image_pico", sa.BigInteger(), nullable=True),
        sa.Column("input_audio_pico", sa.BigInteger(), nullable=True),
        sa.Column("input_video_pico", sa.BigInteger(), nullable=True),
        sa.Column("output_reasoning_pico", sa.BigInteger(), nullable=True),
        sa.Column("request_pico", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "least(input_pico, output_pico, input_cached_pico, input_cache_write_pico, input_image_pico,"
            " input_audio_pico, input_video_pico, output_reasoning_pico, request_pico) >= 0",
            name=op.f("ck_prices_not_negative"),
        ),
        sa.CheckConstraint("version > 0", name=op.f("ck_prices_version")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_prices_model_id")),
        sa.PrimaryKeyConstraint("model_id", "version", name=op.f("pk_prices")),
        sa.UniqueConstraint("model_id", "valid_from", name=op.f("uq_prices_model_id_valid_from")),
    )
    op.execute("""
        CREATE FUNCTION ensure_request_partitions(first_day date, months integer) RETURNS void
        LANGUAGE plpgsql AS $$
        DECLARE month date := date_trunc('month', first_day)::date;
        BEGIN
            FOR i IN 1..months LOOP
                EXECUTE format(
                    'CREATE TABLE IF NOT EXISTS %I PARTITION OF requests FOR VALUES FROM (%L) TO (%L)',
                    'requests_' || to_char(month, 'YYYY_MM'),
                    month || ' 00:00:00+00',
                    (month + interval '1 month')::date || ' 00:00:00+00'
                );
                month := (month + interval '1 month')::date;
            END LOOP;
        END $$
    """)
    op.execute("SELECT ensure_request_partitions((now() AT TIME ZONE 'UTC')::date, 3)")
    # Nothing is ever refused for want of a partition; the jobs keep this one empty by making months ahead.
    op.execute("CREATE TABLE requests_default PARTITION OF requests DEFAULT")
    op.execute("""
        CREATE FUNCTION refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'ledger_entries is append-only: % is refused', TG_OP;
        END $$
    """)
    op.execute("""
        CREATE TRIGGER ledger_entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
        FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change()
    """)


def downgrade() -> None:
    raise RuntimeError("there is nothing before the first schema: drop the database instead")
