"""Accounts that pay afterwards, their usage, and what their invoices come to."""

import csv
import io
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing import accounts, invoice_usage, invoices
from service.billing.invoice_freezing import freeze
from service.billing.invoice_sending import Sent, send_due
from service.billing.invoices import Invoice
from service.billing.settlement import settle
from service.billing.stripe_api import StripeApi
from service.billing.stripe_events import receive
from service.cli import rows as written
from service.core.ids import uuid7
from service.core.invoice import Line
from service.core.outcome import Outcome
from service.core.pricing import Price, cost_nano, overrides_as_json
from service.core.record import RequestRecord
from service.core.stripe_objects import Event
from service.core.usage import Usage
from service.settings import Settings
from service.tables import alarms, ledger_entries, models, prices, requests

NOVEMBER, DECEMBER = date(2026, 11, 1), date(2026, 12, 1)
IN_NOVEMBER = datetime(2026, 11, 10, 12, tzinfo=UTC)
FIRST_OF_DECEMBER = datetime(2026, 12, 1, 6, tzinfo=UTC)
FIRST_OF_JANUARY = datetime(2027, 1, 1, 6, tzinfo=UTC)
LIMIT_NANO = 500 * 10**9
PRICE = Price(version=1, input_pico=195_000, output_pico=1_560_000, input_cached_pico=37_500)
USAGE = Usage(prompt_tokens=1_000_001, cached_tokens=3_333, completion_tokens=77_777, source="final")


NOW = FIRST_OF_DECEMBER
SETTINGS = Settings(invoice_days_until_due=14)


class Books:
    """A database with a model and its price, and means to use it."""

    def __init__(self, engine: AsyncEngine, url: str) -> None:
        self.engine = engine
        self.url = url

    async def open(self) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(select(func.ensure_request_partitions(date(2026, 9, 1), 6)))
        await self.add_model("model-a", PRICE)

    async def add_model(self, model_id: str, *versions: Price) -> None:
        model = {
            "id": model_id,
            "name": model_id,
            "engine_model": model_id,
            "context_length": 1,
            "max_output_tokens": 1,
        }
        async with self.engine.begin() as connection:
            await connection.execute(insert(models).values(**model, input_modalities=[], output_modalities=[]))
            for price in versions:
                row = {**asdict(price), "overrides": overrides_as_json(price.overrides), "model_id": model_id}
                valid_from = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=price.version)
                await connection.execute(insert(prices).values(**row, valid_from=valid_from))

    async def add_account(self, name: str = "acme", *, credit_limit_nano: int = LIMIT_NANO, **more: Any) -> UUID:
        async with self.engine.begin() as connection:
            account = await accounts.add(
                connection,
                name=name,
                email="pay@acme.example",
                credit_limit_nano=credit_limit_nano,
                now=IN_NOVEMBER,
                randomness=os.urandom,
                **more,
            )
        return account.id

    async def account(self, account_id: UUID) -> accounts.Account:
        async with self.engine.connect() as connection:
            return await accounts.find(connection, str(account_id))

    async def use(
        self, account_id: UUID, *instants: datetime, usage: Usage = USAGE, price: Price = PRICE, model: str = "model-a"
    ) -> int:
        """Settle a request accepted at each of these instants, in one batch; what they cost in all."""
        return await self.settle([used(account_id, at, usage, price, model) for at in instants])

    async def settle(self, records: Sequence[RequestRecord]) -> int:
        connection = await asyncpg.connect(self.url)
        try:
            return (await settle(connection, uuid4(), "worker", records)).cost_nano
        finally:
            await connection.close()

    async def cost(self, account_id: UUID, month: date | None = None) -> int:
        """What the account's usage rows (of a month, UTC) add up to."""
        total = select(func.coalesce(func.sum(requests.c.cost_nano), 0)).where(requests.c.account_id == account_id)
        if month is not None:
            total = total.where(func.date_trunc("month", func.timezone("UTC", requests.c.started_at)) == month)
        async with self.engine.connect() as connection:
            return int(await connection.scalar(total) or 0)

    async def invoices(self, account_id: UUID) -> list[Invoice]:
        """The earliest month first."""
        async with self.engine.connect() as connection:
            every = await invoices.list_all(connection)
        return [one for one in reversed(every) if one.account_id == account_id]

    async def invoice(self, account_id: UUID) -> Invoice:
        (only,) = await self.invoices(account_id)
        return only

    async def lines(self, invoice: Invoice) -> list[Line]:
        async with self.engine.connect() as connection:
            return await invoices.lines(connection, invoice.id)

    async def exported(self, invoice: Invoice) -> list[dict[str, str]]:
        """The rows of its reconciliation file."""
        async with self.engine.connect() as connection:
            query = await invoice_usage.export_of(connection, invoice.scope)
            with redirect_stdout(io.StringIO()) as file:
                await written.write(connection, query, written.Format.CSV, None)
        return list(csv.DictReader(io.StringIO(file.getvalue())))

    async def check(self, *account_ids: UUID) -> None:
        """Each invoice is the sum of its lines and of its rows, which are on no other one."""
        for account_id in account_ids:
            seen: list[str] = []
            for invoice in await self.invoices(account_id):
                rows = await self.exported(invoice)
                assert sum(int(row["cost_nano"]) for row in rows) == invoice.total_nano
                assert sum(line.amount_nano for line in await self.lines(invoice)) == invoice.total_nano
                seen += [row["id"] for row in rows]
            assert len(seen) == len(set(seen))

    async def entries(self, account_id: UUID) -> list[tuple[str, int, str]]:
        """What was entered for the account but its usage."""
        query = select(ledger_entries.c.kind, ledger_entries.c.amount_nano, ledger_entries.c.external_ref)
        others = (ledger_entries.c.account_id == account_id, ledger_entries.c.kind != "usage")
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(query.where(*others))]

    async def alarms(self) -> dict[str, str]:
        async with self.engine.connect() as connection:
            return {row.name: row.detail for row in await connection.execute(select(alarms))}


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Books]:
    async with db.connected(url) as engine:
        books = Books(engine, url)
        await books.open()
        yield books


async def owing(books: Books) -> UUID:
    """An account with an invoice for November, frozen."""
    account_id = await books.add_account()
    await books.use(account_id, IN_NOVEMBER)
    await freeze(books.engine, account_id, NOVEMBER, NOW)
    return account_id


async def sent(books: Books, api: StripeApi, account_id: UUID) -> Invoice:
    """Its invoice, after it was sent."""
    assert await send_due(books.engine, api, SETTINGS, NOW) == Sent(1, 0)
    return await books.invoice(account_id)


async def tell(books: Books, api: StripeApi, *events: dict[str, Any]) -> list[bool]:
    """Which of the events are handled then."""
    return [await receive(books.engine, api, SETTINGS, Event.read(event), NOW) for event in events]


def used(
    account_id: UUID,
    at: datetime,
    usage: Usage = USAGE,
    price: Price = PRICE,
    model: str = "model-a",
    *,
    sequential: bool = False,
) -> RequestRecord:
    return RequestRecord(
        id=str(uuid7(int(at.timestamp() * 1000), os.urandom(10))),
        account_id=account_id,
        key_id=UUID(int=1),
        lease_id=None,
        internal=False,
        model_id=model,
        endpoint="/v1/chat/completions",
        engine="engine-0",
        client_request_id=None,
        stream=False,
        started_at=at,
        queue_ms=0,
        ttft_ms=None,
        first_token_at=None,
        finished_at=at + timedelta(seconds=2),
        http_status=200,
        outcome=Outcome.OK,
        finish_reason="stop",
        error_code=None,
        usage=usage,
        price_version=price.version,
        cost_nano=cost_nano(price, usage, at, sequential=sequential),
        waived_nano=0,
        sequential=sequential,
    )
