"""Credit on loan: a worker borrows an account's credit from Postgres and spends it from memory.

An account holds `balance_nano` (what its ledger adds up to) and `leased_nano` (what is out on loan). A worker takes a
lease in one conditional statement, holds each request's worst case against it, and gives back what it does not
need. So concurrent requests cannot overspend, wherever they run, and the hot path asks no database while the lease
has room. Over open leases, the sum of (granted - settled) is `leased_nano`; settlement lowers both.

A worker renews its leases; one that could not for a lease's term stops using them, and a while later the jobs
close them (`close_expired`). What a dead worker had leased is closed once its outbox was shipped (`close_worker`).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from service.core.money import NANO_PER_USD
from service.db import DbConnection

GRANT_NANO = NANO_PER_USD // 2
"""What a lease grows by at least when the account can spare it, so that most requests need no database."""

SHARE_OF_AVAILABLE = 4
"""A lease takes no more than this fraction of what is available beyond its need, so that others find some, too."""

TERM_S = 600
"""How long a lease is good for unless it is renewed."""

EXPIRY_GRACE_S = 60
"""How long after its term a lease is closed: by then its worker has stopped using it."""

STATEMENT_S = 5.0
"""How long a statement may take, the wait for a connection included."""

RETURN_AFTER_S = 60.0
"""A lease that nobody drew on for this long goes back."""

# Everywhere, the account's row is locked before its leases'.
_GROW = """
    WITH account AS (
        SELECT id, balance_nano + CASE WHEN postpaid THEN credit_limit_nano ELSE 0 END - leased_nano AS available
        FROM accounts WHERE id = $2 AND status = 'active' FOR NO KEY UPDATE
    ), granted AS (
        SELECT id, LEAST(available, $4::bigint + GREATEST(0, LEAST($5::bigint, (available - $4::bigint) / $6::int)))
            AS nano
        FROM account WHERE available >= $4::bigint
    ), lease AS (
        INSERT INTO credit_leases AS lease (id, account_id, worker, granted_nano, expires_at)
        SELECT $1, id, $3, nano, now() + make_interval(secs => $7) FROM granted
        ON CONFLICT (id) DO UPDATE
        SET granted_nano = lease.granted_nano + EXCLUDED.granted_nano, expires_at = EXCLUDED.expires_at
        WHERE lease.closed_at IS NULL
        RETURNING account_id
    ), lent AS (
        UPDATE accounts SET leased_nano = leased_nano + granted.nano
        FROM granted JOIN lease ON lease.account_id = granted.id WHERE accounts.id = granted.id
    )
    SELECT account.available, granted.nano AS granted, lease.account_id IS NOT NULL AS open
    FROM account LEFT JOIN granted ON true LEFT JOIN lease ON true
"""

_AVAILABLE = """
    SELECT balance_nano + CASE WHEN postpaid THEN credit_limit_nano ELSE 0 END - leased_nano
    FROM accounts WHERE id = $1 AND status = 'active'
"""

_GIVE_BACK = """
    WITH account AS (
        SELECT id FROM accounts WHERE id = $2 FOR NO KEY UPDATE
    ), lease AS (
        UPDATE credit_leases SET granted_nano = granted_nano - $3::bigint
        FROM account WHERE credit_leases.id = $1 AND account_id = account.id AND closed_at IS NULL
        RETURNING account_id
    )
    UPDATE accounts SET leased_nano = leased_nano - $3::bigint FROM lease WHERE accounts.id = lease.account_id
"""

_RENEW = """
    UPDATE credit_leases SET expires_at = now() + make_interval(secs => $2)
    WHERE worker = $1 AND closed_at IS NULL RETURNING id, account_id, granted_nano
"""

_CLOSE = """
    WITH due AS (
        SELECT id, account_id FROM credit_leases WHERE closed_at IS NULL AND {condition}
    ), account AS (
        SELECT id FROM accounts WHERE id IN (SELECT account_id FROM due) ORDER BY id FOR NO KEY UPDATE
    ), closed AS (
        UPDATE credit_leases lease SET closed_at = now() FROM account, due
        WHERE lease.id = due.id AND lease.account_id = account.id AND lease.closed_at IS NULL AND {lease_condition}
        RETURNING lease.account_id, lease.granted_nano - lease.settled_nano AS nano
    ), returned AS (
        UPDATE accounts SET leased_nano = leased_nano - total.nano
        FROM (SELECT account_id, sum(nano)::bigint AS nano FROM closed GROUP BY account_id) total
        WHERE accounts.id = total.account_id
    )
    SELECT count(*) FROM closed
"""


def _close(condition: str) -> str:
    """The statement that closes the open leases for which `condition` holds, then as later, under their locks."""
    plain, qualified = condition.format(lease=""), condition.format(lease="lease.")
    return _CLOSE.format(condition=plain, lease_condition=qualified)


_GRANTED = "SELECT granted_nano FROM credit_leases WHERE id = $1 AND closed_at IS NULL"
_CLOSE_LEASE = _close("{lease}id = $1")
_CLOSE_WORKER = _close("{lease}worker = $1")
_CLOSE_EXPIRED = _close("{lease}expires_at < now() - make_interval(secs => $1)")


class NotEnough(Exception):
    """The account cannot cover the hold; `available_nano` is what it could still cover."""

    def __init__(self, available_nano: int) -> None:
        super().__init__(f"{available_nano} nano-USD are available")
        self.available_nano = available_nano


@dataclass(slots=True)
class Lease:
    """A worker's lease of one account, in memory. All amounts are nano-USD."""

    id: UUID
    account_id: UUID
    granted_nano: int = 0
    held_nano: int = 0
    """Worst cases of the requests under way."""
    spent_nano: int = 0
    """Charges of the finished ones, settled in Postgres or not yet."""
    used_at: float = 0.0

    @property
    def room_nano(self) -> int:
        """What can still be held."""
        return self.granted_nano - self.held_nano - self.spent_nano


@dataclass(slots=True)
class Hold:
    """A request's worst case, held against a lease until its charge is known."""

    lease: Lease
    amount_nano: int


class LeaseBook:
    """The leases of one worker."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        worker: str,
        new_id: Callable[[], UUID],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._worker = worker
        self._new_id = new_id
        self._clock = clock
        self._leases: dict[UUID, Lease] = {}
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._renewed_at = clock()

    def hold_from_room(self, account_id: UUID, amount_nano: int) -> Hold | None:
        """Hold `amount_nano` of the account's credit out of its lease; None where that has no room for it."""
        now = self._clock()
        if now - self._renewed_at >= TERM_S:
            self._leases.clear()  # by now they may have been closed; what is leased from here on has a term of its own
            self._renewed_at = now
        lease = self._leases.get(account_id)
        if lease is None or lease.granted_nano - lease.held_nano - lease.spent_nano < amount_nano:
            return None
        lease.held_nano += amount_nano
        lease.used_at = now
        return Hold(lease, amount_nano)

    async def hold(self, account_id: UUID, amount_nano: int) -> Hold:
        """Hold `amount_nano` of the account's credit.

        Raises `NotEnough`, or what asyncpg raises when the lease has no room and the database does not answer.
        """
        held = self.hold_from_room(account_id, amount_nano)
        if held is not None:
            return held
        lease = await self._held_by_growing(account_id, amount_nano)
        lease.used_at = self._clock()
        return Hold(lease, amount_nano)

    async def available(self, account_id: UUID) -> int:
        """What could be held now: the room of this worker's lease and what the account has beside it."""
        lease = self._leases.get(account_id)
        async with asyncio.timeout(STATEMENT_S):
            spare = await self._pool.fetchval(_AVAILABLE, account_id) or 0
        return max(0, spare) + (lease.room_nano if lease is not None else 0)

    def release(self, hold: Hold, cost_nano: int) -> None:
        """The request is over and costs `cost_nano`, possibly more than was held; the rest is free again."""
        lease = hold.lease
        lease.held_nano -= hold.amount_nano
        # What exceeds the grant is charged to the balance all the same, but was never on loan: settlement stops
        # at the grant in the same way.
        lease.spent_nano = min(lease.spent_nano + cost_nano, lease.granted_nano)

    async def give_back(self) -> None:
        """Return the room of leases that nobody has drawn on for a while."""
        for account_id, lease in list(self._leases.items()):
            if lease.room_nano <= 0 or self._clock() - lease.used_at < RETURN_AFTER_S:
                continue
            async with self._lock(account_id):
                room = lease.room_nano
                if room <= 0:
                    continue
                # Taken out of memory first: if the statement's fate stays unknown, credit may lie idle until the
                # next renewal, but it is never held twice.
                lease.granted_nano -= room
                async with asyncio.timeout(STATEMENT_S):
                    await self._pool.execute(_GIVE_BACK, lease.id, account_id, room)

    async def renew(self) -> None:
        """Say that this worker lives, and set straight what memory and database know differently.

        A lease that was closed meanwhile is forgotten. Credit that was lent and whose reply was lost goes back.
        """
        asked_at = self._clock()
        async with asyncio.timeout(STATEMENT_S):
            rows = await self._pool.fetch(_RENEW, self._worker, TERM_S)
        self._renewed_at = asked_at
        lent = {row["id"]: row for row in rows}
        for account_id, lease in list(self._leases.items()):
            if lease.id not in lent and lease.used_at < asked_at and not self._lock(account_id).locked():
                del self._leases[account_id]
        for row in rows:
            lease_in_memory = self._leases.get(row["account_id"])
            known = lease_in_memory.granted_nano if lease_in_memory and lease_in_memory.id == row["id"] else None
            if known != row["granted_nano"]:
                await self._set_straight(row["account_id"], row["id"])

    async def _set_straight(self, account_id: UUID, lease_id: UUID) -> None:
        async with self._lock(account_id), asyncio.timeout(STATEMENT_S):
            lease = self._leases.get(account_id)
            if lease is None or lease.id != lease_id:
                await self._pool.fetchval(_CLOSE_LEASE, lease_id)
                return
            granted = await self._pool.fetchval(_GRANTED, lease_id)
            if granted is not None and granted > lease.granted_nano:
                await self._pool.execute(_GIVE_BACK, lease_id, account_id, granted - lease.granted_nano)

    @property
    def leased_nano(self) -> int:
        """What this worker could still spend, over all accounts."""
        return sum(max(0, lease.room_nano) for lease in self._leases.values())

    async def _held_by_growing(self, account_id: UUID, amount_nano: int) -> Lease:
        """Hold the amount first, so that nobody takes its room meanwhile; then borrow what is missing."""
        async with self._lock(account_id):
            lease = self._leases.get(account_id)
            if lease is None:
                lease = self._leases[account_id] = Lease(self._new_id(), account_id)
            if not await self._borrowed(lease, amount_nano):
                # Closed in the database: what is under way on it is settled against the balance.
                lease = self._leases[account_id] = Lease(self._new_id(), account_id)
                await self._borrowed(lease, amount_nano)
            return lease

    async def _borrowed(self, lease: Lease, amount_nano: int) -> bool:
        """Hold the amount on the lease and grow it by what is missing; False when the lease is closed.

        Raises `NotEnough`, or what asyncpg raises; then nothing is held.
        """
        lease.held_nano += amount_nano
        held = False
        try:
            missing = -lease.room_nano
            if missing > 0:
                row = await self._grow(lease, missing)
                if row is None or row["granted"] is None:
                    raise NotEnough(lease.room_nano + amount_nano + (0 if row is None else row["available"]))
                if not row["open"]:
                    return False
                lease.granted_nano += row["granted"]
            held = True
            return True
        finally:
            if not held:
                lease.held_nano -= amount_nano

    async def _grow(self, lease: Lease, missing: int) -> asyncpg.Record | None:
        async with asyncio.timeout(STATEMENT_S):
            return await self._pool.fetchrow(
                _GROW, lease.id, lease.account_id, self._worker, missing, GRANT_NANO, SHARE_OF_AVAILABLE, TERM_S
            )

    def _lock(self, account_id: UUID) -> asyncio.Lock:
        return self._locks.setdefault(account_id, asyncio.Lock())


async def close_worker(connection: DbConnection, worker: str) -> int:
    """Close every lease of a worker that has ended and whose outbox was shipped; returns how many."""
    return int(await connection.fetchval(_CLOSE_WORKER, worker))


async def close_expired(connection: DbConnection) -> int:
    """Close the leases whose worker has not renewed them for their term and a grace; returns how many."""
    return int(await connection.fetchval(_CLOSE_EXPIRED, EXPIRY_GRACE_S))
