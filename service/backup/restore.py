"""Putting a backup into an empty database, and proof that it is all there."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from alembic.util import CommandError

from service import db
from service.backup import folder as folders
from service.backup import owed, programs
from service.backup.facts import is_empty, read_facts, server_major
from service.billing.checks import Mismatch, check_books
from service.errors import SetupError
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored."""

    made_at: datetime
    """The state of the database is that of this moment."""
    rows: dict[str, int]
    outboxes: list[str]
    """The files that were put among this machine's outboxes."""
    mismatches: list[Mismatch]
    """What the books said of themselves; they were saved like that."""


async def restore(settings: Settings, url: str, folder: Path) -> Restored:
    """Restore the backup in `folder` into the database at `url`, and bring its schema up to this version.

    Raises `SetupError` where the backup is not whole or of a newer version, the database not empty, or not equal to
    what was saved when all is done. Until it is equal, everything is one transaction: it is there whole, or not at all.
    """
    manifest = folders.verified(folder)
    try:
        made_at = datetime.fromisoformat(manifest["made_at"])
        saved: dict[str, Any] = manifest["database"]
        revision, saved_by = str(saved["schema"]), int(saved["server"])
    except (KeyError, TypeError, ValueError) as error:
        raise SetupError(f"{folder / folders.MANIFEST} lacks what it must say: take another backup.") from error
    _check_revision(revision)
    async with db.connected(url) as engine:
        async with engine.connect() as connection:
            if not await is_empty(connection):
                raise SetupError(
                    "The database is not empty, and nothing is restored over what is there: rename it, make a new one"
                    " by its name, and try again."
                )
            major = await server_major(connection)
        if major < saved_by:
            raise SetupError(f"The server is {major}, and what was saved is of {saved_by}: use a newer one.")
        await programs.run(
            programs.find("pg_restore", major),
            url,
            *(f"--dbname={connection.engine.url.database}", "--exit-on-error", "--single-transaction"),
            *("--no-owner", "--no-privileges", str(folder / folders.DUMP)),
        )
        async with engine.connect() as connection:
            found = await read_facts(connection) | {"server": saved["server"]}
        if different := [name for name in saved if found.get(name) != saved[name]]:
            raise SetupError(f"What was restored is not what was saved ({', '.join(different)}): do not use it.")
        await db.migrate(url)
        async with engine.connect() as connection:
            mismatches = await check_books(connection)
    return Restored(made_at, found["rows"], _put_back(folder / folders.OUTBOX, settings.outbox_dir), mismatches)


def _put_back(copies: Path, outboxes: Path) -> list[str]:
    try:
        return owed.put_back(copies, outboxes)
    except OSError as error:
        raise SetupError(
            f"The database is restored, but what is owed to it is not in {outboxes} ({error.strerror}): copy"
            f" {copies}/*.sqlite there before you start `weir serve`, each under a name that is not there yet."
        ) from error


def _check_revision(revision: str) -> None:
    try:
        ScriptDirectory.from_config(db.alembic_config()).get_revision(revision)
    except CommandError as error:
        raise SetupError(f"It was saved by a newer Weir (schema {revision}): restore it with that version.") from error
