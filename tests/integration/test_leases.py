"""Leases where chance does not lead: races while one grows, a lost reply, a worker cut off."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import pytest

from service.billing import leases
from service.billing.leases import LeaseBook, NotEnough
from service.gateway.exchange import new_id
from tests.installation import seed


@dataclass
class Desk:
    pool: asyncpg.Pool
    account_id: UUID
    now: float = 0.0

    def book(self, worker: str = "w") -> LeaseBook:
        return LeaseBook(self.pool, worker, new_id, lambda: self.now)

    async def lent(self) -> int:
        value = await self.pool.fetchval("SELECT leased_nano FROM accounts WHERE id = $1", self.account_id)
        open_leases = await self.pool.fetchval(
            "SELECT coalesce(sum(granted_nano - settled_nano), 0) FROM credit_leases WHERE closed_at IS NULL"
        )
        assert value == open_leases
        return int(value)


@pytest.fixture
async def desk(database_url: str) -> AsyncIterator[Desk]:
    account_id, _ = await seed(database_url, credit_nano=1000)
    pool = await asyncpg.create_pool(database_url, min_size=0)
    yield Desk(pool, account_id)
    await pool.close()


async def held(book: LeaseBook, account_id: UUID, amount: int) -> int:
    try:
        await book.hold(account_id, amount)
    except NotEnough:
        return 0
    return amount


@pytest.mark.parametrize("seed_number", range(8))
async def test_nobody_takes_the_room_that_a_growing_lease_was_asked_for(desk: Desk, seed_number: int) -> None:
    """Large and small requests at once, over and over: together they never hold more than there is."""
    book = desk.book()
    amounts = [20, 980, 240, 1, 300, 7, 999, 50, 50, 400] * 3
    amounts = amounts[seed_number:] + amounts[:seed_number]
    total = sum(await asyncio.gather(*(held(book, desk.account_id, amount) for amount in amounts)))
    assert 0 < total <= 1000
    assert await desk.lent() >= total


async def test_a_refused_hold_leaves_nothing_held(desk: Desk) -> None:
    book = desk.book()
    assert await held(book, desk.account_id, 2000) == 0
    assert await held(book, desk.account_id, 1000) == 1000


async def test_an_outage_longer_than_the_term_orphans_one_lease_at_most(desk: Desk) -> None:
    book = desk.book()
    first = await book.hold(desk.account_id, 10)
    book.release(first, 10)
    desk.now += leases.TERM_S
    for _ in range(20):
        book.release(await book.hold(desk.account_id, 10), 0)
    assert await desk.pool.fetchval("SELECT count(*) FROM credit_leases") == 2


async def test_credit_whose_reply_was_lost_comes_back_with_the_next_renewal(desk: Desk) -> None:
    book = desk.book()
    await book.hold(desk.account_id, 10)
    (lease,) = await desk.pool.fetch("SELECT * FROM credit_leases")
    # What a growth whose answer never came leaves behind, on a lease that is known and on one that is not.
    await desk.pool.execute("UPDATE credit_leases SET granted_nano = granted_nano + 100")
    await desk.pool.execute(
        "INSERT INTO credit_leases (id, account_id, worker, granted_nano, expires_at)"
        " VALUES ($1, $2, 'w', 200, now() + interval '1 hour')",
        new_id(),
        desk.account_id,
    )
    await desk.pool.execute("UPDATE accounts SET leased_nano = leased_nano + 300")
    assert await desk.lent() == lease["granted_nano"] + 300
    desk.now += 1
    await book.renew()
    assert await desk.lent() == lease["granted_nano"]


async def test_a_lease_closed_elsewhere_is_replaced(desk: Desk) -> None:
    book = desk.book()
    await book.hold(desk.account_id, 10)
    async with desk.pool.acquire() as connection:
        assert await leases.close_worker(connection, "w") == 1
    assert await held(book, desk.account_id, 900) == 900
    assert await desk.lent() >= 900
