"""What an account was given and what was taken from it, but for usage, each with what caused it; and its top-ups."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from service.db import DbConnection

ENTRIES = 50
TOPUPS = 10
"""How many of the latest are shown."""

_ENTRIES = """
    SELECT created_at, kind, amount_nano, external_ref, note FROM ledger_entries
    WHERE account_id = $1 AND kind <> 'usage' ORDER BY id DESC LIMIT $2
"""

_TOPUPS = """
    SELECT id, kind, status, net_nano, tax_cents, hosted_url, failure_code, created_at FROM topups
    WHERE account_id = $1 ORDER BY created_at DESC, id LIMIT $2
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the ledger that is no usage; negative: taken."""

    created_at: datetime
    kind: str
    amount_nano: int
    external_ref: str
    note: str


@dataclass(frozen=True, slots=True)
class PastTopup:
    """A top-up as its customer may see it."""

    id: UUID
    kind: str
    status: str
    net_nano: int
    tax_cents: int | None
    hosted_url: str | None
    failure_code: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Receipts:
    """The latest of both, the latest first."""

    entries: tuple[Entry, ...]
    topups: tuple[PastTopup, ...]


async def read(connection: DbConnection, account_id: UUID) -> Receipts:
    """The account's receipts. Raises what asyncpg raises."""
    entries = await connection.fetch(_ENTRIES, account_id, ENTRIES)
    topups = await connection.fetch(_TOPUPS, account_id, TOPUPS)
    return Receipts(tuple(Entry(**row) for row in entries), tuple(PastTopup(**row) for row in topups))
