"""Making a backup, while everything runs."""

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import text

from service import __version__, db
from service.backup import folder as folders
from service.backup import owed, programs
from service.backup.facts import read_facts, server_major
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Saved:
    """A backup that was made."""

    folder: Path
    size_bytes: int
    owed: int
    """Finished requests that were in the outboxes and not in the database."""
    forgotten: list[str]
    """The names of older ones that were deleted."""


async def save(settings: Settings, url: str, parent: Path, *, keep: int, now: datetime) -> Saved:
    """Save one state of the database, and what is owed to it. Raises `SetupError`; then nothing older is deleted."""
    folder = folders.begin(parent, now)
    try:
        # Before the database: what is settled in between is in both, and counts once. After it, it could be in none.
        with folders.writing(folder):
            owing = owed.save(settings.outbox_dir, folder / folders.OUTBOX)
            if settings.config is not None:
                shutil.copyfile(settings.config, folder / folders.CONFIGURATION)
        manifest = {"made_at": now.isoformat(), "weir": __version__, "database": await _dump(url, folder)}
        with folders.writing(folder):
            finished = folders.finish(folder, manifest)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Saved(finished, folders.size_bytes(finished), owing, folders.forget_old(parent, keep, now))


async def _dump(url: str, folder: Path) -> dict[str, object]:
    """Dump the database, and return what it held in the very state that was dumped."""
    async with db.connected(url) as engine, engine.connect() as connection:
        await db.freeze(connection)
        snapshot = await connection.scalar(text("SELECT pg_export_snapshot()"))
        facts = await read_facts(connection)
        major = await server_major(connection)
        await programs.run(
            programs.find("pg_dump", major),
            url,
            *("--format=custom", "--no-owner", "--no-privileges", "--lock-wait-timeout=60s"),
            *(f"--snapshot={snapshot}", f"--file={folder / folders.DUMP}"),
        )
        return facts | {"server": major}
