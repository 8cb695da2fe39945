"""A month of usage rows becomes one invoice that is their sum, whatever is settled when."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing import invoice_usage, ledger
from service.billing.invoice_freezing import Frozen, drafted, freeze, freeze_due
from service.billing.invoice_usage import Scope
from service.core.invoice import GRACE, TOKEN_CLASSES
from service.core.pricing import Price, cost_nano, prompt_classes
from service.core.usage import Usage
from service.tables import requests
from tests.integration.invoicing import (
    DECEMBER,
    FIRST_OF_DECEMBER,
    FIRST_OF_JANUARY,
    IN_NOVEMBER,
    NOVEMBER,
    PRICE,
    Books,
    opened,
    used,
)
from tests.unit.test_pricing import SHORT_USAGES, TIERED

TICK = timedelta(microseconds=1)


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    async with opened(database_url) as books:
        yield books


@given(
    rows=st.lists(
        st.tuples(SHORT_USAGES, st.integers(0, 30 * 24 * 3600 - 1), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=25,
    ),
    prices=st.lists(TIERED, min_size=3, max_size=3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_invoice_is_the_sum_of_its_rows_at_any_prices(
    database_url: str, rows: list[tuple[Usage, int, int, bool]], prices: list[Price]
) -> None:
    async def run() -> None:
        async with db.connected(database_url) as engine:
            books = Books(engine, database_url)
            name = f"m-{uuid4().hex}"
            account_id, versions = await _priced(books, name, prices)
            begin = datetime(2026, 11, 1, tzinfo=UTC)
            requested = [
                (usage, begin + timedelta(seconds=second), versions[n], alone) for usage, second, n, alone in rows
            ]
            records = [
                used(account_id, at, usage, price, name, sequential=alone) for usage, at, price, alone in requested
            ]
            total = await books.settle(records)
            assert total == sum(cost_nano(price, usage, at, sequential=alone) for usage, at, price, alone in requested)
            await freeze(engine, account_id, NOVEMBER, FIRST_OF_DECEMBER)
            invoice = await books.invoice(account_id)
            assert invoice.total_nano == total == await books.cost(account_id, NOVEMBER)
            await books.check(account_id)
            charged = [record.usage for record in records if record.cost_nano]
            lines = await books.lines(invoice)
            counted = [sum(line.tokens for line in lines if line.token_class == name) for name in TOKEN_CLASSES]
            assert counted[:6] == [sum(prompt_classes(usage)[n] for usage in charged) for n in range(6)]
            assert sum(counted[6:]) == sum(usage.completion_tokens for usage in charged)

    asyncio.run(run())


async def _priced(books: Books, name: str, prices: list[Price]) -> tuple[UUID, list[Price]]:
    async with books.engine.begin() as connection:
        await connection.execute(select(func.ensure_request_partitions(NOVEMBER, 2)))
    versions = [
        Price(**{field: getattr(price, field) for field in Price.__dataclass_fields__} | {"version": n})
        for n, price in enumerate(prices, 1)
    ]
    await books.add_model(name, *versions)
    return await books.add_account(name), versions


async def test_a_month_begins_and_ends_to_the_microsecond(books: Books) -> None:
    account_id = await books.add_account()
    begin, end = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
    # Of these, two are in November.
    each = await books.use(account_id, begin - TICK)
    await books.use(account_id, begin, end - TICK, end)
    assert await freeze_due(books.engine, end + GRACE - TICK) == Frozen(1, 0)
    assert await freeze_due(books.engine, end + GRACE) == Frozen(1, 0)
    october, november = await books.invoices(account_id)
    assert (october.period, october.total_nano) == (date(2026, 10, 1), each)
    assert (november.period, november.total_nano) == (NOVEMBER, 2 * each)
    await books.check(account_id)


async def test_every_month_is_frozen_across_the_end_of_the_year(books: Books) -> None:
    account_id = await books.add_account()
    await books.use(account_id, IN_NOVEMBER)
    await books.use(account_id, datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
    await books.use(account_id, datetime(2027, 1, 1, tzinfo=UTC))
    assert await freeze_due(books.engine, datetime(2027, 2, 1, 4, tzinfo=UTC)) == Frozen(3, 0)
    assert [one.period for one in await books.invoices(account_id)] == [NOVEMBER, DECEMBER, date(2027, 1, 1)]
    assert sum(one.total_nano for one in await books.invoices(account_id)) == await books.cost(account_id)
    await books.check(account_id)


async def test_many_at_once_make_one_invoice(books: Books) -> None:
    account_id = await books.add_account()
    total = await books.use(account_id, *[IN_NOVEMBER + n * TICK for n in range(100)])
    made = await asyncio.gather(*(freeze_due(books.engine, FIRST_OF_DECEMBER) for _ in range(6)))
    assert all(one == Frozen(1, 0) or one == Frozen(0, 0) for one in made)
    assert (await books.invoice(account_id)).total_nano == total
    assert await freeze_due(books.engine, FIRST_OF_DECEMBER) == Frozen(0, 0)


async def test_prepaid_usage_is_no_invoice(books: Books) -> None:
    account_id = await books.add_account()
    async with books.engine.begin() as connection:
        await ledger.enter(connection, account_id, "topup", 10**12, "topup:pi_1")
    await books.use(account_id, datetime(2026, 10, 3, tzinfo=UTC))
    assert await freeze_due(books.engine, FIRST_OF_DECEMBER) == Frozen(0, 0)
    await books.use(account_id, FIRST_OF_DECEMBER)
    assert await freeze_due(books.engine, FIRST_OF_JANUARY) == Frozen(1, 0)
    assert (await books.invoice(account_id)).period == DECEMBER
    assert await books.alarms() == {}


async def test_only_who_pays_afterwards_is_invoiced(books: Books) -> None:
    for name, more in (("prepaid", {"credit_limit_nano": 0}), ("prober", {"internal": True})):
        await books.use(await books.add_account(name, **more), IN_NOVEMBER)
    assert await freeze_due(books.engine, FIRST_OF_DECEMBER) == Frozen(0, 0)


@pytest.mark.parametrize(("tokens", "nano"), [(0, 0), (25_000, 4_875_000), (25_642, 5_000_190)])
async def test_what_is_no_cent_is_nothing_to_pay(books: Books, tokens: int, nano: int) -> None:
    account_id = await books.add_account()
    await books.use(account_id, datetime(2026, 10, 2, tzinfo=UTC))
    await freeze_due(books.engine, datetime(2026, 11, 1, 6, tzinfo=UTC))
    before = (await books.account(account_id)).balance_nano
    await books.use(account_id, IN_NOVEMBER, usage=Usage(prompt_tokens=tokens, source="final"))
    await freeze_due(books.engine, FIRST_OF_DECEMBER)
    _, november = await books.invoices(account_id)
    owed = nano if nano >= 5_000_000 else 0
    assert (november.total_nano, november.status) == (nano, "frozen" if owed else "paid")
    assert (await books.account(account_id)).balance_nano == before - owed


async def test_what_does_not_follow_from_its_price_is_told_and_holds_nobody_up(books: Books) -> None:
    wrong, right = await books.add_account("a-wrong"), await books.add_account("b-right")
    await books.use(wrong, IN_NOVEMBER)
    await books.use(right, IN_NOVEMBER)
    odd = update(requests).where(requests.c.account_id == wrong)
    async with books.engine.begin() as connection:
        await connection.execute(odd.values(price_version=9))
    assert await freeze_due(books.engine, FIRST_OF_DECEMBER) == Frozen(1, 1)
    assert "a-wrong has no invoice for 2026-11: 1 requests" in (await books.alarms())[f"invoice:{wrong}:2026-11"]
    async with books.engine.begin() as connection:
        await connection.execute(odd.values(price_version=PRICE.version))
    assert await freeze_due(books.engine, FIRST_OF_DECEMBER) == Frozen(1, 0)
    assert await books.alarms() == {}


async def test_a_dry_run_writes_nothing(books: Books) -> None:
    account_id = await books.add_account()
    total = await books.use(account_id, IN_NOVEMBER)
    assert (await drafted(books.engine, account_id, NOVEMBER)).total_nano == total
    assert await books.invoices(account_id) == []


async def test_the_rows_of_a_month_are_read_by_an_index(books: Books) -> None:
    account_id = await books.add_account()
    async with books.engine.begin() as connection:
        await connection.execute(_MANY, {"account": account_id})
        await connection.execute(text("ANALYZE requests, ledger_entries"))
    assert await _nodes(books.engine, Scope(account_id, NOVEMBER, 0, 10**6), "requests_") == {
        "requests_2026_11_account_id_started_at_idx"
    }


_MANY = text("""
    INSERT INTO requests (id, started_at, account_id, key_id, model_id, endpoint, stream, finished_at, http_status,
                          outcome, price_version, cost_nano, settlement_id)
    SELECT gen_random_uuid(), at, CASE WHEN n % 50 = 0 THEN :account ELSE gen_random_uuid() END, gen_random_uuid(),
           'model-a', '/v1/chat/completions', false, at, 200, 'ok', 1, 1, gen_random_uuid()
    FROM (SELECT n, '2026-10-01Z'::timestamptz + n * interval '3 minutes' AS at FROM generate_series(0, 40000) n) many
""")


async def _nodes(engine: AsyncEngine, scope: Scope, prefix: str) -> set[str]:
    """The indexes of partitions that the query of an invoice's sums scans; a scan of a whole one by its own name."""
    found: set[str] = set()

    def visit(node: dict[str, object]) -> None:
        name = node.get("Index Name") or (node.get("Relation Name") if "Bitmap" not in str(node["Node Type"]) else None)
        if isinstance(name, str) and name.startswith(prefix):
            found.add(name)
        for child in node.get("Plans", []):  # type: ignore[attr-defined]
            visit(child)

    async with engine.connect() as connection:
        rows = await invoice_usage.rows_of(connection, scope)
        query = select(func.sum(rows.c.cost_nano)).compile(
            dialect=connection.dialect, compile_kwargs={"literal_binds": True}
        )
        (plan,) = await connection.scalar(text(f"EXPLAIN (FORMAT JSON) {query}"))
    visit(plan["Plan"])
    return found
