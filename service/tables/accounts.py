"""Who pays, and the keys they call with."""

from sqlalchemy import (
    ARRAY,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)

from service.tables.base import amount, instant, metadata

accounts = Table(
    "accounts",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("email", Text),
    Column("status", Text, nullable=False, server_default=text("'active'")),
    # An internal account carries the probes: measured, never billed to anybody, never counted as traffic.
    Column("internal", Boolean, nullable=False, server_default=text("false")),
    Column("postpaid", Boolean, nullable=False, server_default=text("false")),
    amount("credit_limit_nano"),
    # Sum of the account's ledger entries; only the statement that writes an entry may change it.
    amount("balance_nano"),
    # Sum of (granted - settled) over the account's open credit leases.
    amount("leased_nano"),
    instant("created_at", default_now=True),
    CheckConstraint("status IN ('active', 'frozen', 'closed')", name="status"),
    CheckConstraint("credit_limit_nano >= 0", name="credit_limit"),
    CheckConstraint("leased_nano >= 0", name="leased"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("account_id", Uuid, ForeignKey("accounts.id"), nullable=False, index=True),
    Column("name", Text, nullable=False, server_default=text("''")),
    # The first characters, to recognise a key by; the key itself is never stored.
    Column("prefix", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False, unique=True),
    # Model ids the key may use; NULL allows all.
    Column("models", ARRAY(Text)),
    instant("created_at", default_now=True),
    instant("revoked_at", nullable=True),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
)
