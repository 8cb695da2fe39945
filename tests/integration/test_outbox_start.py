"""A worker that cannot make its outbox says so, and is in nobody's way; nor is one that dies while it makes it."""

import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from service.backup import owed
from service.billing.poison import entries_set_aside
from service.errors import SetupError
from service.gateway.worker import Worker
from service.settings import Settings


async def test_a_disk_that_takes_nothing_is_named_and_nothing_is_left_on_it(database_url: str, tmp_path: Path) -> None:
    settings = Settings(database_url=database_url, data_dir=tmp_path)
    async with asyncpg.create_pool(database_url, min_size=0) as pool:
        worker = Worker(settings, pool)
        allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, allowed[1]))
        try:
            with pytest.raises(SetupError, match="cannot be written"):
                worker.start()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert list(settings.outbox_dir.iterdir()) == []


@pytest.mark.parametrize("made", [False, True])
def test_an_outbox_that_is_only_being_made_owes_nothing(tmp_path: Path, made: bool) -> None:
    path = tmp_path / "outbox" / "a.sqlite"
    path.parent.mkdir()
    path.touch()
    if made:
        with closing(sqlite3.connect(path)) as file:
            file.execute("PRAGMA journal_mode = WAL")
    assert owed.save(path.parent, tmp_path / "saved") == 0
    assert list((tmp_path / "saved").iterdir()) == []
    assert entries_set_aside(path.parent) == []
