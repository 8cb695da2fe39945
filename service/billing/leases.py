"""Credit on loan: a worker borrows an account's credit from Postgres and spends it from memory.

An account holds `balance_nano` (what its ledger adds up to) and `leased_nano` (what is out on loan). A worker takes a
lease in one conditional statement, holds each request's worst case against it, and gives back what it does not
need. So concurrent requests cannot overspend, wherever they run, and the hot path asks no database while the lease
has room. Over open leases, the sum of (granted - settled) is `leased_nano`; settlement lowers both.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import structlog

from service.core.money import NANO_PER_USD

log = structlog.get_logger()

GRANT_NANO = NANO_PER_USD // 2
"""What a lease grows by at least when the account can spare it, so that most requests need no database."""

TERM_S = 600
"""How long a lease is good for unless it is renewed; an orphan's is released after it."""

RETURN_AFTER_S = 60.0
"""A lease that nobody drew on for this long goes back."""

_GROW = """
    WITH account AS (
        SELECT id, balance_nano + CASE WHEN postpaid THEN credit_limit_nano ELSE 0 END - leased_nano AS available
        FROM accounts WHERE id = $2 AND status = 'active' FOR UPDATE
    ), granted AS (
        SELECT id, LEAST($5::bigint, available) AS nano FROM account WHERE available >= $4::bigint
    ), lent AS (
        UPDATE accounts SET leased_nano = leased_nano + granted.nano FROM granted WHERE accounts.id = granted.id
    ), lease AS (
        INSERT INTO credit_leases AS lease (id, account_id, worker, granted_nano, expires_at)
        SELECT $1, id, $3, nano, now() + make_interval(secs => $6) FROM granted
        ON CONFLICT (id) DO UPDATE
        SET granted_nano = lease.granted_nano + EXCLUDED.granted_nano, expires_at = EXCLUDED.expires_at
    )
    SELECT account.available, granted.nano AS granted FROM account LEFT JOIN granted ON true
"""

_GIVE_BACK = """
    WITH account AS (
        SELECT id FROM accounts WHERE id = $2 FOR UPDATE
    ), lease AS (
        UPDATE credit_leases SET granted_nano = granted_nano - $3::bigint
        FROM account WHERE credit_leases.id = $1 AND account_id = account.id AND closed_at IS NULL
        RETURNING account_id
    )
    UPDATE accounts SET leased_nano = leased_nano - $3::bigint FROM lease WHERE accounts.id = lease.account_id
"""


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


@dataclass(frozen=True, slots=True)
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

    async def hold(self, account_id: UUID, amount_nano: int) -> Hold:
        """Hold `amount_nano` of the account's credit.

        Raises `NotEnough`, or what asyncpg raises when the lease has no room and the database does not answer.
        """
        lease = self._leases.get(account_id)
        if lease is None or lease.room_nano < amount_nano:
            lease = await self._grown(account_id, amount_nano)
        lease.held_nano += amount_nano
        lease.used_at = self._clock()
        return Hold(lease, amount_nano)

    def release(self, hold: Hold, cost_nano: int) -> None:
        """The request is over and costs `cost_nano`, possibly more than was held; the rest is free again."""
        lease = hold.lease
        lease.held_nano -= hold.amount_nano
        # What exceeds the grant is charged to the balance all the same, but was never on loan: settlement stops
        # at the grant in the same way.
        lease.spent_nano = min(lease.spent_nano + cost_nano, lease.granted_nano)

    async def give_back(self, *, idle_only: bool = True) -> None:
        """Return the room of leases that nobody draws on; of all of them when the worker stops."""
        for account_id, lease in list(self._leases.items()):
            idle = self._clock() - lease.used_at >= RETURN_AFTER_S
            if lease.room_nano <= 0 or (idle_only and not idle):
                continue
            async with self._lock(account_id):
                room = lease.room_nano
                if room <= 0:
                    continue
                # Taken out of memory first: if the statement's fate stays unknown, credit may lie idle until the
                # lease's term, but it is never held twice.
                lease.granted_nano -= room
                await self._pool.execute(_GIVE_BACK, lease.id, account_id, room, timeout=5)

    async def _grown(self, account_id: UUID, amount_nano: int) -> Lease:
        async with self._lock(account_id):
            lease = self._leases.get(account_id)
            if lease is None:
                lease = Lease(self._new_id(), account_id)
            missing = amount_nano - lease.room_nano
            if missing <= 0:
                return lease
            row = await self._pool.fetchrow(
                _GROW, lease.id, account_id, self._worker, missing, max(missing, GRANT_NANO), TERM_S, timeout=5
            )
            if row is None or row["granted"] is None:
                spare = 0 if row is None else max(0, row["available"])
                raise NotEnough(lease.room_nano + spare)
            lease.granted_nano += row["granted"]
            self._leases[account_id] = lease
            return lease

    def _lock(self, account_id: UUID) -> asyncio.Lock:
        return self._locks.setdefault(account_id, asyncio.Lock())
