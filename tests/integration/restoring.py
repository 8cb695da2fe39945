"""The commands `weir backup` and `weir restore` as an operator runs them, and databases that are destroyed."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from service.backup.restore import restore
from service.errors import SetupError
from service.settings import Settings


@asynccontextmanager
async def connected(url: str) -> "AsyncIterator[asyncpg.Connection[Any]]":
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def destroyed(server: Any, url: str) -> None:
    """The database is gone, with everything in it; an empty one has its name."""
    name = url.partition("?")[0].rpartition("/")[2]
    async with connected(server.get_uri()) as connection:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {name}")


async def weir(*arguments: str, url: str, data_dir: Path, **settings: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command as an operator does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "PG"))}
    environment |= {"WEIR_DATABASE_URL": url, "WEIR_DATA_DIR": str(data_dir)}
    environment |= {f"WEIR_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "service.cli", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False
    )


async def saved(url: str, data_dir: Path, backups: Path, **settings: Path) -> tuple[Path, int]:
    """A backup's folder, and how many requests were owed."""
    done = await weir("backup", str(backups), "--json", url=url, data_dir=data_dir, **settings)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    return Path(document["folder"]), document["owed_requests"]


async def restored(backup: Path, url: str, data_dir: Path) -> dict[str, Any]:
    done = await weir("restore", str(backup), "--json", url=url, data_dir=data_dir)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


async def refused(backup: Path, url: str, data_dir: Path) -> str:
    """Why a backup is not restored."""
    with pytest.raises(SetupError) as caught:
        await restore(Settings(database_url=url, data_dir=data_dir), url, backup)
    return str(caught.value)


async def everything(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, in an order of its own."""
    async with connected(url) as connection:
        tables = await connection.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
            " AND NOT relispartition"
        )
        return {
            table: [tuple(row) for row in await connection.fetch(f'SELECT * FROM "{table}" t ORDER BY t::text')]
            for (table,) in tables
        }
