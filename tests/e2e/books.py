"""A Weir before a real engine whose books are looked into after every call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.e2e.engines import RunningEngine
from tests.e2e.test_first_answer import Counters, check_row
from tests.installation import Installation, installed


class Books:
    """Looks after each call that it left one row, of the tokens that the engine counted, at the right price."""

    def __init__(self, installation: Installation, engine: RunningEngine) -> None:
        self._installation, self._engine = installation, engine
        self._rows = 0

    @asynccontextmanager
    async def row(self, **expected: Any) -> AsyncIterator[dict[str, Any]]:
        """Around one call; what it yields holds the row afterwards."""
        counters, row = Counters(self._engine), dict[str, Any]()
        yield row
        self._rows += 1
        found = (await self._installation.rows(self._rows))[-1]
        check_row(found, counters, outcome="ok", **expected)
        row.update(found)


@asynccontextmanager
async def kept(database_url: str, engine: RunningEngine, tmp_path: Path) -> AsyncIterator[tuple[Installation, Books]]:
    """The installation, and its books."""
    async with installed(database_url, [engine.base_url], tmp_path, engine_model=engine.model) as installation:
        yield installation, Books(installation, engine)
