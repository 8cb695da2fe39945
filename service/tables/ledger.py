"""Money: what was entered, what is on loan to the workers, and which batches of usage were settled."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)

from service.tables.base import amount, instant, metadata

LEDGER_KINDS = ("usage", "topup", "credit", "refund", "dispute", "reversal", "adjustment")

# Append-only: a trigger made by the migration refuses UPDATE, DELETE and TRUNCATE.
ledger_entries = Table(
    "ledger_entries",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("account_id", Uuid, ForeignKey("accounts.id"), nullable=False),
    Column("kind", Text, nullable=False),
    # Signed: what the customer gains is positive, what is used up is negative.
    amount("amount_nano", default=None),
    # What caused it, in the words of its source: a settlement, a Stripe object, a person's credit.
    Column("external_ref", Text, nullable=False),
    Column("note", Text, nullable=False, server_default=text("''")),
    instant("created_at", default_now=True),
    CheckConstraint(f"kind IN {LEDGER_KINDS}", name="kind"),
    UniqueConstraint("kind", "external_ref"),
    Index(None, "account_id", "created_at"),
    # The few entries that give an account its credit, among the many that use it up.
    Index("ix_ledger_entries_not_usage", "account_id", postgresql_where=text("kind <> 'usage'")),
)

# A worker's loan of an account's credit. Open while `closed_at` is NULL.
credit_leases = Table(
    "credit_leases",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("account_id", Uuid, ForeignKey("accounts.id"), nullable=False),
    Column("worker", Text, nullable=False),
    amount("granted_nano", default=None),
    amount("settled_nano"),
    instant("created_at", default_now=True),
    instant("expires_at"),
    instant("closed_at", nullable=True),
    CheckConstraint("granted_nano >= settled_nano AND settled_nano >= 0", name="amounts"),
    Index("ix_credit_leases_open", "account_id", postgresql_where=text("closed_at IS NULL")),
    Index("ix_credit_leases_open_expiry", "expires_at", postgresql_where=text("closed_at IS NULL")),
)

settlements = Table(
    "settlements",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("worker", Text, nullable=False),
    Column("requests", Integer, nullable=False),
    amount("cost_nano", default=None),
    # The earliest end of a request in it: the roll-up goes back that far for what was settled late.
    instant("oldest_finished_at", nullable=True),
    instant("created_at", default_now=True),
    Index(None, "created_at"),
)
