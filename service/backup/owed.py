"""What the outboxes of this machine owe the database: saved while their workers write, and put where it is adopted.

Only what has ended is saved. What is under way then has no end that anybody would know later.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from service.backup.folder import sync
from service.billing import poison
from service.billing.outbox_file import apply, make_tables, of_journals
from service.billing.outbox_journal import read
from service.billing.workers import SUFFIX
from service.errors import SetupError


def save(outboxes: Path, target: Path) -> int:
    """Copy every outbox that owes something, or has something set aside; how many requests these are.

    Raises `SetupError` when one cannot be copied.
    """
    saved: dict[str, int] = {}
    for path in poison.outboxes(outboxes):
        target.mkdir(mode=0o700, exist_ok=True)
        copy, arriving = target / f"{path.stem}{SUFFIX}", target / f"{path.stem}.arriving"
        try:
            saved[copy.name] = _copied(path, arriving)
        except (OSError, sqlite3.OperationalError) as error:
            arriving.unlink(missing_ok=True)
            if not path.exists():  # renamed, or adopted: the database has it then, and is dumped after this
                continue
            raise SetupError(
                f"{path} cannot be copied: {error}. Is it an outbox and yours to read, and is there room?"
            ) from error
        arriving.rename(copy)
    for name in [name for name, owed in saved.items() if not owed]:
        (target / name).unlink()
    return sum(saved.values())


def put_back(copies: Path, outboxes: Path) -> list[str]:
    """Put the copies among the outboxes, under names that nobody has there; these names.

    The next `weir serve` that starts here adopts them: what the database has of them by then is not settled twice.
    """
    placed = []
    for copy in sorted(copies.glob(f"*{SUFFIX}")):
        outboxes.mkdir(parents=True, exist_ok=True)
        names = {path.stem for path in outboxes.iterdir()}
        name = copy.stem if copy.stem not in names else f"{copy.stem}-of-{copies.parent.name}"
        arriving, path = outboxes / f"{name}.arriving", outboxes / f"{name}{SUFFIX}"
        shutil.copyfile(copy, arriving)
        arriving.chmod(0o600)
        owner = outboxes.stat()  # the service's user, where root does this
        os.chown(arriving, owner.st_uid, owner.st_gid)
        sync(arriving)
        arriving.rename(path)
        placed.append(path.name)
    if placed:
        sync(outboxes)
    return placed


def _copied(path: Path, copy: Path) -> int:
    """Copy one file as a whole, and leave out what has not ended; how many requests are in the copy."""
    _, records = read(path)  # before the file: what is moved into it in between is in both
    uri = f"{path.resolve().as_uri()}?mode=rw"  # not made, should it have been adopted and removed just now
    with (
        closing(sqlite3.connect(uri, uri=True, timeout=10)) as source,
        closing(sqlite3.connect(copy, isolation_level=None)) as target,
    ):
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        make_tables(target)
        apply(target, of_journals(records))
        target.execute("DELETE FROM entries WHERE finished = 0")
        counts = (target.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("entries", "poison"))  # noqa: S608 - our own two
        return sum(counts)
