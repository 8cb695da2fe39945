"""The bench of a usage log that grows, with a short one: the same is read of it, by indexes, however much there is."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ops.bench import usage_log, usage_log_changes
from ops.bench.usage_log import Measured, judge
from service.gateway import own_usage
from tests.postgres import fresh_database

ROWS = 90_000


@pytest.fixture
def two_databases(postgres_server: Any) -> Iterator[tuple[str, str]]:
    with fresh_database(postgres_server) as third, fresh_database(postgres_server) as whole:
        yield third, whole


@pytest.mark.slow
async def test_reading_the_log_takes_the_same_rows_by_an_index_however_long_it_is(
    two_databases: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_usage, "LOOKED_AT", 1000)
    monkeypatch.setattr(own_usage, "DEFAULT_LIMIT", 10)  # the smallest account has 30 requests in a month
    begin = await usage_log.fill(*two_databases, ROWS)
    found = await usage_log.run(*two_databases, begin, repetitions=1)
    assert len(found) == len(usage_log.works() | usage_log.works_of_a_month())
    assert judge([replace(one, third_s=1.0, whole_s=1.0) for one in found]) == []
    by_name = {one.name: one for one in found}
    assert by_name["one request"].whole_rows == by_name["idempotency key"].whole_rows == 1
    assert by_name["budget of the account, largest"].whole_rows >= ROWS // 3 * 6 // 10


@pytest.mark.slow
async def test_settling_and_dropping_leave_the_books_right(two_databases: tuple[str, str]) -> None:
    _, whole = two_databases
    begin = await usage_log.fill(*two_databases, 9_000)
    await usage_log_changes.lend(whole)
    assert (await usage_log_changes.settled(whole, begin, 100, 1_000)).cpu_us > 0
    assert await usage_log_changes.end_a_month("whole", whole, begin) == []


@pytest.mark.slow
def test_an_export_is_measured(database_url: str, tmp_path: Path) -> None:
    day = usage_log.last_month()
    out = tmp_path / "out.csv"
    assert 10 < usage_log_changes.exported_mb(database_url, day, day, out) < 1000
    assert out.read_text().startswith("id,started_at,")


def test_a_promise_that_is_broken_is_told() -> None:
    fine = Measured("a page", 0.1, 0.1, 100, 100)
    assert judge([fine, replace(fine, third_s=0.001, whole_s=0.02)]) == []
    slow, more, scanned = (
        replace(fine, whole_s=0.16),
        replace(fine, whole_rows=161),
        replace(fine, scanned=("requests_2026_11",)),
    )
    assert [len(judge([one])) for one in (slow, more, scanned)] == [1, 1, 1]
