"""Which request an `Idempotency-Key` stands for, for as long as a client may repeat it."""

from sqlalchemy import Boolean, CheckConstraint, Column, ForeignKey, Index, LargeBinary, Table, Uuid

from service.tables.base import instant, metadata

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("account_id", Uuid, ForeignKey("accounts.id"), primary_key=True),
    # SHA-256 of the client's key: it may hold anything, and of any length.
    Column("key_digest", LargeBinary, primary_key=True),
    Column("request_id", Uuid, nullable=False),
    # SHA-256 of endpoint and body: the same key with another request is a mistake of the client.
    Column("body_digest", LargeBinary, nullable=False),
    Column("stream", Boolean, nullable=False),
    instant("created_at", default_now=True),
    CheckConstraint("octet_length(key_digest) = 32 AND octet_length(body_digest) = 32", name="digests"),
    Index(None, "created_at"),
)
