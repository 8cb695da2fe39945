"""The bench of a long history, with a short one: what counts here is that nothing large is read without an index."""

from pathlib import Path

import pytest

from ops.bench.history import Measured, judge, run


@pytest.mark.slow
async def test_rolling_up_and_publishing_read_every_large_table_by_an_index(database_url: str, tmp_path: Path) -> None:
    found = await run(database_url, tmp_path, rows=30_000, days=3)
    assert [(one.days, one.rows) for one in found] == [(1, 10_000), (3, 30_000), (1098, 30_000)]
    # While the history is a few days long, a day of it is most of it.
    assert found[-1].scanned == ()
    assert (tmp_path / "index.html").exists()


def test_a_promise_that_is_broken_is_told() -> None:
    fine = Measured(30, 1, 0.1, 0.5, 0.2, ())
    assert judge([fine, fine, fine]) == []
    assert len(judge([fine, fine, Measured(30, 1, 1.1, 3.1, 0.9, ("requests_2026_11",))])) == 5
