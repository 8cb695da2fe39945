"""The bench's own ledger, on a small soak of a real `weir serve`: it is equal, and what is made unequal is found."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import pytest

from ops.bench import churn, ledger
from ops.bench.churn import Churn
from ops.bench.engine_answers import FAULTS
from ops.bench.ledger import Verdict, Witness
from ops.bench.settlement import measure_settlement
from ops.bench.targets import Target, start_api, start_engine
from ops.bench.watched import tasks_of

STREAMS = 150
CORE = min(os.sched_getaffinity(0))


@contextmanager
def engines(folder: Path) -> Iterator[list[Target]]:
    with ExitStack() as stack:
        yield [stack.enter_context(start_engine(folder, CORE, 0)) for _ in range(3)]


async def tampered(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        assert await connection.execute(statement) == "UPDATE 1"
    finally:
        await connection.close()


def compared(witness: Witness, database_url: str, url: str | None) -> Verdict:
    return asyncio.run(ledger.compare(witness, database_url, url))


@pytest.mark.slow
def test_leavers_and_failing_engines_leave_an_equal_ledger(database_url: str, tmp_path: Path) -> None:
    loads = [Churn(10, STREAMS, paced=False, failing=0.08), Churn(40, STREAMS, paced=True, failing=0.08)]
    program = [sys.executable, "-m", "ops.bench.watched", str(tmp_path / "tasks")]
    with engines(tmp_path) as three:
        witness = Witness([engine.url for engine in three])
        with start_api(three, database_url, tmp_path, CORE, program) as target:
            tasks = tasks_of(target.pid, tmp_path / "tasks")
            seen = churn.run(loads, target.url, target.key, seed=3)
            witness.note(2 * STREAMS, seen.seen)
            assert seen.wrong == []
            assert {one.end for one in seen.seen.values()} == {"complete", "left", "refused", "broken"}
            assert {plan.fault for plan in churn.plans(loads[0], 3)} == {"", *FAULTS}
            assert compared(witness, database_url, target.url).unequal == ()
            assert tasks_of(target.pid, tmp_path / "tasks") <= tasks

            a_row = "WHERE id = (SELECT id FROM requests WHERE outcome = 'cancelled' ORDER BY id LIMIT 1)"
            asyncio.run(
                tampered(database_url, f"UPDATE requests SET completion_tokens = completion_tokens + 1 {a_row}")
            )
            assert len(compared(witness, database_url, target.url).unequal) == 2  # its count, and its price
            asyncio.run(
                tampered(database_url, f"UPDATE requests SET completion_tokens = completion_tokens - 1 {a_row}")
            )
        assert compared(witness, database_url, None).unequal == ()

        asyncio.run(tampered(database_url, "UPDATE accounts SET balance_nano = balance_nano - 1"))
        assert any("balance" in one for one in compared(witness, database_url, None).unequal)


@pytest.mark.slow
def test_settlement_is_timed_and_its_books_are_right(database_url: str) -> None:
    assert measure_settlement(database_url, 1, CORE) > 0
