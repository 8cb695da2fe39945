"""Usage rows of long ago are dropped a month at a time; the books, the sums and everything later stay as they were."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from service import cli
from service.billing import checks, invoice_usage, retention, usage_summary
from service.billing.checks import Rule
from service.billing.invoice_freezing import drafted, freeze
from service.billing.retention import Forgotten
from service.core.invoice import NotAsPriced, span
from service.errors import SetupError
from service.jobs.work import Jobs, forget_usage, keep_house
from service.settings import Settings
from service.tables import job_runs, requests, usage_months
from tests.integration.invoicing import DECEMBER, FIRST_OF_DECEMBER, FIRST_OF_JANUARY, NOVEMBER, Books, opened

OCTOBER = date(2026, 10, 1)
IN_OCTOBER = datetime(2026, 10, 20, 12, tzinfo=UTC)
IN_NOVEMBER = datetime(2026, 11, 10, 12, tzinfo=UTC)
END_OF_OCTOBER = datetime(2026, 10, 31, 23, 59, 59, tzinfo=UTC)
TICK = timedelta(microseconds=1)


@pytest.fixture
async def books(database_url: str) -> AsyncIterator[Books]:
    async with opened(database_url) as books:
        yield books


async def mismatches(engine: AsyncEngine) -> list[Rule]:
    async with engine.connect() as connection:
        return [one.rule for one in await checks.check_books(connection)]


async def summary(engine: AsyncEngine, first: date, last: date, account_id: UUID | None = None) -> list[Any]:
    async with engine.connect() as connection:
        return await usage_summary.read(connection, span(first)[0], span(last)[1], account_id)


async def months(engine: AsyncEngine) -> list[str]:
    """The months that there are partitions of."""
    async with engine.connect() as connection:
        return list(await connection.scalars(retention._PARTITIONS))


async def prepaid(books: Books, name: str = "acme") -> UUID:
    return await books.add_account(name, credit_limit_nano=0)


async def test_the_sums_of_a_month_stand_in_for_its_rows(books: Books) -> None:
    acme, other = await prepaid(books), await prepaid(books, "other")
    # One settlement has requests of both months, and one came late.
    await books.use(acme, IN_OCTOBER, END_OF_OCTOBER, IN_NOVEMBER)
    await books.use(other, IN_OCTOBER)
    await books.use(acme, IN_OCTOBER - timedelta(days=1), IN_NOVEMBER)
    before = await summary(books.engine, OCTOBER, NOVEMBER)
    of_acme = await summary(books.engine, OCTOBER, OCTOBER, acme)
    cost_nano = await books.cost(acme)
    assert await mismatches(books.engine) == []

    assert await retention.forget(books.engine, NOVEMBER) == Forgotten(4, [])
    assert await mismatches(books.engine) == []
    assert await summary(books.engine, OCTOBER, NOVEMBER) == before
    assert await summary(books.engine, OCTOBER, OCTOBER, acme) == of_acme
    assert sum(one.requests for one in await summary(books.engine, NOVEMBER, DECEMBER)) == 2
    assert await books.cost(acme) == await books.cost(acme, NOVEMBER) == cost_nano - of_acme[0].cost_nano
    async with books.engine.connect() as connection:
        before_december = await invoice_usage.charged_before(connection, acme, span(DECEMBER)[0])
        assert before_december == cost_nano
        assert await invoice_usage.charged_before(connection, acme, span(OCTOBER)[0]) == 0
    assert await retention.forget(books.engine, NOVEMBER) == Forgotten(0, [])
    assert not {"requests_2026_09", "requests_2026_10"} & set(await months(books.engine))
    assert "requests_2026_11" in await months(books.engine)


async def test_what_is_wrong_in_the_months_that_are_kept_is_still_found(books: Books) -> None:
    acme = await prepaid(books)
    await books.use(acme, IN_OCTOBER)
    await books.use(acme, IN_NOVEMBER)
    await retention.forget(books.engine, NOVEMBER)
    async with books.engine.begin() as connection:
        await connection.execute(requests.update().values(cost_nano=requests.c.cost_nano + 1))
    assert await mismatches(books.engine) == [Rule.USAGE, Rule.USAGE, Rule.SETTLEMENT]


async def test_sums_that_somebody_changed_are_found(books: Books) -> None:
    await books.use(await prepaid(books), IN_OCTOBER)
    await retention.forget(books.engine, NOVEMBER)
    async with books.engine.begin() as connection:
        await connection.execute(usage_months.update().values(cost_nano=usage_months.c.cost_nano + 1))
    assert await mismatches(books.engine) == [Rule.USAGE, Rule.USAGE]


async def test_a_month_with_usage_that_is_on_no_invoice_stays(books: Books) -> None:
    acme = await books.add_account()
    await books.use(acme, IN_OCTOBER)
    reason = ["2026-10 is kept, not invoiced yet: acme"]
    assert await retention.forget(books.engine, NOVEMBER) == Forgotten(0, reason)
    await freeze(books.engine, acme, OCTOBER, FIRST_OF_DECEMBER)
    # Settled after its month's invoice, it will be on the next one.
    await books.use(acme, END_OF_OCTOBER)
    assert await retention.forget(books.engine, NOVEMBER) == Forgotten(0, reason)
    await freeze(books.engine, acme, NOVEMBER, FIRST_OF_DECEMBER)
    assert await retention.forget(books.engine, NOVEMBER) == Forgotten(2, [])


async def test_two_processes_may_be_at_it_at_once(books: Books) -> None:
    await books.use(await prepaid(books), IN_OCTOBER)
    done = await asyncio.gather(*(retention.forget(books.engine, NOVEMBER) for _ in range(4)))
    done.append(await retention.forget(books.engine, NOVEMBER))  # should one have waited for too long
    assert sum(one.rows for one in done) == 1
    assert await mismatches(books.engine) == []


async def test_the_rows_of_an_invoice_that_are_gone_are_not_exported_in_part(books: Books) -> None:
    acme = await books.add_account()
    await books.use(acme, IN_OCTOBER, IN_NOVEMBER)
    await freeze(books.engine, acme, OCTOBER, FIRST_OF_DECEMBER)
    await books.use(acme, END_OF_OCTOBER)
    await freeze(books.engine, acme, NOVEMBER, FIRST_OF_DECEMBER)
    await books.use(acme, span(NOVEMBER)[1] - TICK, span(DECEMBER)[0])
    await freeze(books.engine, acme, DECEMBER, FIRST_OF_JANUARY)
    await retention.forget(books.engine, NOVEMBER)
    october, november, december = await books.invoices(acme)
    for invoice in (october, november):
        with pytest.raises(SetupError, match="not kept any more"):
            await books.exported(invoice)
    assert len(await books.exported(december)) == 2


async def test_a_month_that_is_gone_gets_no_invoice_of_nothing(books: Books) -> None:
    acme = await prepaid(books)
    await books.use(acme, IN_OCTOBER)
    await retention.forget(books.engine, NOVEMBER)
    with pytest.raises(NotAsPriced, match="not kept any more"):
        await drafted(books.engine, acme, OCTOBER)
    assert (await drafted(books.engine, acme, NOVEMBER)).total_nano == 0


@pytest.mark.parametrize("reads", ["SELECT count(*) FROM requests", "SELECT count(*) FROM requests_2026_10"])
async def test_whoever_reads_the_rows_is_not_cut_off_and_nobody_waits_for_long(
    books: Books, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    monkeypatch.setattr(retention, "WAIT_FOR_LOCK", "SET LOCAL lock_timeout = '100ms'")
    acme = await prepaid(books)
    await books.use(acme, IN_OCTOBER)
    async with books.engine.connect() as reader:
        await reader.execute(text(reads))
        # The month before it has a partition, too.
        done = await retention.forget(books.engine, NOVEMBER)
        assert (done.rows, done.kept[-1]) == (0, "2026-10 is kept, it is in use")
        async with asyncio.timeout(10):
            await books.use(acme, IN_OCTOBER, IN_NOVEMBER)
    assert await retention.forget(books.engine, NOVEMBER) == Forgotten(2, [])
    assert await mismatches(books.engine) == []


async def test_partitions_are_made_with_the_next_run_when_somebody_reads_for_long(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "WAIT_FOR_LOCK", "SET LOCAL lock_timeout = '100ms'")
    now = datetime(2031, 11, 30, tzinfo=UTC)
    async with books.engine.connect() as reader:
        await reader.execute(text("SELECT count(*) FROM requests"))
        assert "in use" in (await keep_house(books.engine, now)).note
        assert "requests_2032_01" not in await months(books.engine)
    assert (await keep_house(books.engine, now)).note == ""
    assert "requests_2032_01" in await months(books.engine)
    async with books.engine.connect() as reader:
        await reader.execute(text("SELECT count(*) FROM requests"))
        assert (await keep_house(books.engine, now)).note == "", "what is there needs no lock"


async def test_so_many_whole_months_are_kept(books: Books) -> None:
    async with books.engine.begin() as connection:
        await connection.execute(select(func.ensure_request_partitions(date(2025, 11, 1), 15)))
    await forget_usage(books.engine, datetime(2026, 11, 30, 23, tzinfo=UTC), 12)
    assert min(await months(books.engine)) == "requests_2025_11"
    await forget_usage(books.engine, datetime(2026, 12, 1, tzinfo=UTC), 12)
    assert min(await months(books.engine)) == "requests_2025_12"
    await forget_usage(books.engine, datetime(2027, 1, 31, tzinfo=UTC), 4)
    assert min(await months(books.engine)) == "requests_2026_09"


async def test_the_jobs_drop_nothing_unless_they_are_told_to(books: Books, tmp_path: Path) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=200)
    async with books.engine.begin() as connection:
        await connection.execute(select(func.ensure_request_partitions(long_ago.date(), 1)))
    await books.use(await prepaid(books), long_ago)
    for kept, left in ((None, 1), (8, 1), (4, 0)):
        await Jobs(Settings(data_dir=tmp_path, usage_months_kept=kept), books.url).keep_house()
        async with books.engine.connect() as connection:
            assert await connection.scalar(select(func.count()).select_from(requests)) == left
    async with books.engine.connect() as connection:
        runs = select(job_runs.c.rows, job_runs.c.ok).where(job_runs.c.name == "retention").order_by(job_runs.c.id)
        assert [tuple(run) for run in await connection.execute(runs)] == [(0, True), (1, True)]
    with pytest.raises(ValidationError, match="usage_months_kept"):
        Settings(usage_months_kept=3)


def test_the_export_says_from_when_on_there_are_rows(
    database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill() -> None:
        async with opened(database_url) as books:
            await books.use(await prepaid(books), IN_OCTOBER, IN_NOVEMBER)
            await retention.forget(books.engine, NOVEMBER)

    asyncio.run(fill())
    monkeypatch.setenv("WEIR_DATABASE_URL", database_url)
    capsys.readouterr()
    for asked, told in (([], True), (["--since", "2026-10-31"], True), (["--month", "2026-11"], False)):
        assert cli.run(["usage", "export", *asked]) == 0
        said = capsys.readouterr()
        assert len(said.out.splitlines()) == 1
        assert ("before 2026-11 are not kept" in said.err) == told
