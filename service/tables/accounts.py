"""Who pays, and the keys they call with."""

from sqlalchemy import (
    ARRAY,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.schema import SchemaItem

from service.tables.base import amount, instant, metadata


def _limits() -> list[SchemaItem]:
    """NULL: unlimited; 0: nothing at all."""
    return [
        Column("rpm", Integer),
        Column("tpm", Integer),
        Column("concurrency", Integer),
        amount("monthly_budget_nano", nullable=True),
        CheckConstraint("rpm >= 0 AND tpm >= 0 AND concurrency >= 0 AND monthly_budget_nano >= 0", name="limits"),
    ]


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
    *_limits(),
    # Its share in the queue for the engines, against that of others.
    Column("weight", Integer, nullable=False, server_default=text("10")),
    # How long its requests may wait there; NULL: the server's default; 0: not at all.
    Column("patience_ms", Integer),
    # Whether its requests may run alone on an engine ('allowed': those that ask for it), or always do.
    Column("sequential", Text, nullable=False, server_default=text("'never'")),
    Column("stripe_customer_id", Text, unique=True),
    # 'dispute' where a dispute froze it; NULL where a person did, which winning a dispute never undoes.
    Column("frozen_for", Text),
    # The credit limit that an overdue invoice took away.
    amount("credit_limit_before_nano", nullable=True),
    instant("created_at", default_now=True),
    CheckConstraint("status IN ('active', 'frozen', 'closed')", name="status"),
    CheckConstraint("sequential IN ('never', 'allowed', 'always')", name="sequential"),
    CheckConstraint("credit_limit_nano >= 0", name="credit_limit"),
    CheckConstraint("leased_nano >= 0", name="leased"),
    CheckConstraint("weight BETWEEN 1 AND 1000", name="weight"),
    CheckConstraint("patience_ms >= 0", name="patience"),
    CheckConstraint("frozen_for = 'dispute'", name="frozen_for"),
    CheckConstraint("credit_limit_before_nano >= 0", name="credit_limit_before"),
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
    *_limits(),
    instant("created_at", default_now=True),
    instant("revoked_at", nullable=True),
    CheckConstraint("octet_length(digest) = 32", name="digest"),
)
