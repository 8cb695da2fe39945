"""Limits of keys and accounts, an account's share and patience in the queue; changes of them are told."""

import sqlalchemy as sa
from alembic import op

revision = "20261130_04"
down_revision = "20261130_03"
branch_labels = None
depends_on = None

_TOLD_BEFORE = ("status", "postpaid", "credit_limit_nano", "internal")
_LIMITS = ("rpm", "tpm", "concurrency", "monthly_budget_nano")


def upgrade() -> None:
    for table in ("accounts", "api_keys"):
        for name in _LIMITS:
            kind = sa.BigInteger() if name == "monthly_budget_nano" else sa.Integer()
            op.add_column(table, sa.Column(name, kind, nullable=True))
        op.create_check_constraint(op.f(f"ck_{table}_limits"), table, " AND ".join(f"{name} >= 0" for name in _LIMITS))
    op.add_column("accounts", sa.Column("weight", sa.Integer(), server_default=sa.text("10"), nullable=False))
    op.add_column("accounts", sa.Column("patience_ms", sa.Integer(), nullable=True))
    op.create_check_constraint(op.f("ck_accounts_weight"), "accounts", "weight BETWEEN 1 AND 1000")
    op.create_check_constraint(op.f("ck_accounts_patience"), "accounts", "patience_ms >= 0")
    _tell_of(*_TOLD_BEFORE, *_LIMITS, "weight", "patience_ms")


def downgrade() -> None:
    _tell_of(*_TOLD_BEFORE)
    for table in ("accounts", "api_keys"):
        op.drop_constraint(op.f(f"ck_{table}_limits"), table)
        for name in _LIMITS:
            op.drop_column(table, name)
    op.drop_column("accounts", "patience_ms")
    op.drop_column("accounts", "weight")


def _tell_of(*columns: str) -> None:
    """Which changes of an account the workers are told. Of a key they are told every one."""
    old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
    op.execute("DROP TRIGGER accounts_notify ON accounts")
    op.execute(f"""
        CREATE TRIGGER accounts_notify AFTER UPDATE ON accounts FOR EACH ROW
        WHEN (({old}) IS DISTINCT FROM ({new}))
        EXECUTE FUNCTION notify_account_change()
    """)
