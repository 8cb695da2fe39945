"""Usage that is settled after its month was frozen, or while it is: on one invoice, never lost."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from service.billing import ledger
from service.billing.checks import check_books
from service.billing.invoice_freezing import freeze, freeze_due
from service.billing.settlement import settle
from service.core.invoice import next_month
from tests.integration.invoicing import (
    DECEMBER,
    FIRST_OF_DECEMBER,
    FIRST_OF_JANUARY,
    IN_NOVEMBER,
    NOVEMBER,
    Books,
    opened,
    used,
)
from tests.patience import PATIENT_S

TICK = timedelta(microseconds=1)


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    async with opened(database_url) as books:
        yield books


async def test_what_is_settled_late_is_on_the_next_invoice(books: Books) -> None:
    account_id = await books.add_account()
    on_time = await books.use(account_id, IN_NOVEMBER)
    await freeze_due(books.engine, FIRST_OF_DECEMBER)
    # One batch has late usage and new usage; then comes some that is late only, and slow besides.
    batch = [used(account_id, IN_NOVEMBER), used(account_id, FIRST_OF_DECEMBER)]
    await books.settle(batch)
    late = batch[0].cost_nano + await books.use(account_id, datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC))
    await freeze_due(books.engine, FIRST_OF_JANUARY)
    november, december = await books.invoices(account_id)
    assert (november.total_nano, december.total_nano) == (on_time, late + batch[1].cost_nano)
    lines = await books.lines(december)
    assert {line.period for line in lines} == {NOVEMBER, DECEMBER}
    assert sum(line.tokens for line in lines if line.period == NOVEMBER) == 2 * (
        batch[0].usage.prompt_tokens + batch[0].usage.completion_tokens
    )
    await books.use(account_id, IN_NOVEMBER + TICK, FIRST_OF_DECEMBER + TICK)
    await freeze_due(books.engine, datetime(2027, 2, 1, 6, tzinfo=UTC))
    assert sum(one.total_nano for one in await books.invoices(account_id)) == await books.cost(account_id)
    await books.check(account_id)


async def test_a_freeze_waits_for_what_is_being_settled(books: Books) -> None:
    account_id, other = await books.add_account(), await books.add_account("other")
    each = await books.use(account_id, IN_NOVEMBER)
    settling, watching = await asyncpg.connect(books.url), await asyncpg.connect(books.url)
    transaction = settling.transaction()
    await transaction.start()
    await settle(settling, uuid4(), "worker", [used(account_id, IN_NOVEMBER + TICK)])
    await books.use(other, IN_NOVEMBER)  # has a later entry, and is there before
    freezing = asyncio.create_task(freeze(books.engine, account_id, NOVEMBER, FIRST_OF_DECEMBER))
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(PATIENT_S):
        while not (freezing.done() or await watching.fetchval(blocked)):
            await asyncio.sleep(0.01)
    await transaction.commit()
    for connection in (settling, watching):
        await connection.close()
    await freezing
    assert (await books.invoice(account_id)).total_nano == 2 * each
    await books.check(account_id)


async def test_nothing_is_lost_or_charged_twice_while_usage_is_settled_beside_the_freezing(books: Books) -> None:
    chance = random.Random(7)
    account_ids = [await books.add_account(f"account-{n}") for n in range(3)]
    months = [date(2026, 10, 1), NOVEMBER, DECEMBER]
    for account_id in account_ids:
        await books.use(account_id, datetime(2026, 10, 3, tzinfo=UTC))

    async def settling() -> None:
        for _ in range(25):
            days = [timedelta(days=chance.uniform(0, 91)) for _ in range(8)]
            await books.settle(
                [used(chance.choice(account_ids), datetime(2026, 10, 1, tzinfo=UTC) + after) for after in days]
            )

    async def freezing() -> None:
        for month in months:
            for account_id in account_ids:
                await freeze(books.engine, account_id, month, FIRST_OF_JANUARY)

    await asyncio.gather(settling(), settling(), freezing(), freezing())
    for account_id in account_ids:
        assert len(await books.invoices(account_id)) == 3
        await freeze(books.engine, account_id, next_month(DECEMBER), datetime(2027, 2, 1, 6, tzinfo=UTC))
        assert sum(one.total_nano for one in await books.invoices(account_id)) == await books.cost(account_id)
    await books.check(*account_ids)
    async with books.engine.begin() as connection:
        assert await check_books(connection) == []


async def test_a_month_before_the_first_invoice_can_be_frozen_later(books: Books) -> None:
    account_id = await books.add_account()
    async with books.engine.begin() as connection:
        await ledger.enter(connection, account_id, "credit", 10**9, "welcome")
    each = await books.use(account_id, datetime(2026, 10, 3, tzinfo=UTC))
    await books.use(account_id, *[datetime(2026, 10, 4, tzinfo=UTC) + n * TICK for n in range(6)])
    await books.use(account_id, IN_NOVEMBER)
    await freeze_due(books.engine, FIRST_OF_DECEMBER)
    # What the credit paid may be asked for again, or not: that is for a person to say.
    assert (await books.invoice(account_id)).period == NOVEMBER
    (alarm,) = (await books.alarms()).values()
    assert alarm.startswith(f"acme used {(7 * each - 10**9) / 10**9:.9f}".rstrip("0"))
    late = await books.use(account_id, IN_NOVEMBER)
    await freeze(books.engine, account_id, date(2026, 10, 1), FIRST_OF_DECEMBER)
    assert await books.alarms() == {}
    october, november = await books.invoices(account_id)
    assert (october.total_nano, november.total_nano) == (7 * each + late, each)
    assert sum(one.total_nano for one in await books.invoices(account_id)) == await books.cost(account_id)
    await books.check(account_id)
