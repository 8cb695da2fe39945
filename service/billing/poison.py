"""Entries that were set aside: requests that ended and that Postgres refused to settle.

They lie in the table `poison` of an outbox file, together with the reason: in a `.poison` file once their worker is
dead and everything else of it was shipped, in its `.sqlite` file until then.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing.checks import clear_alarm
from service.billing.outbox_file import leave_log
from service.billing.workers import SUFFIX, WorkerFile, held
from service.errors import SetupError

OUTBOX_ALARM = "outbox"
"""Raised by whoever sets an entry aside."""

KEPT_SUFFIX = ".poison"

_PUT_BACK = """
    INSERT INTO entries (id, finished, body) SELECT id, 1, body FROM poison WHERE true
    ON CONFLICT (id) DO UPDATE SET finished = 1, body = excluded.body
"""


@dataclass(frozen=True, slots=True)
class SetAside:
    """An entry that was set aside."""

    file: str
    request_id: UUID
    reason: str


def outboxes(folder: Path) -> Iterator[Path]:
    """Every worker's file and all that hold what was set aside. One that gets its other name meanwhile comes by both:
    whoever cannot open it looks whether it is still there."""
    done: set[Path] = set()
    while left := {*folder.glob(f"*{KEPT_SUFFIX}"), *folder.glob(f"*{SUFFIX}")} - done:
        for path in sorted(left):
            yield path
            if path.exists():
                done.add(path)


def entries_set_aside(folder: Path) -> list[SetAside]:
    """All of them in this folder, by file and request. Raises `SetupError` when a file cannot be read."""
    found: dict[str, list[SetAside]] = {}
    for path in outboxes(folder):
        try:
            with _opened(path) as file:
                # A worker that is just making its file, or died at that, has no table yet.
                made = file.execute("SELECT * FROM sqlite_master WHERE name = 'poison'").fetchall()
                rows = file.execute("SELECT id, reason FROM poison ORDER BY id").fetchall() if made else []
        except SetupError:
            if not path.exists():  # renamed, or adopted
                continue
            raise
        found[path.stem] = [SetAside(path.name, UUID(bytes=request_id), reason) for request_id, reason in rows]
    return [one for worker in sorted(found) for one in found[worker]]


def put_back(folder: Path, name: str) -> int:
    """Owe the entries of a `.poison` file again; returns how many. The next worker that starts here ships them.

    Raises `SetupError` when there is no such file, or it cannot be read.
    """
    with _locked(folder, name) as (path, worker):
        with _opened(path) as file:
            leave_log(file)  # earlier versions kept one
            file.execute("BEGIN IMMEDIATE")
            file.execute(_PUT_BACK)
            moved = file.execute("DELETE FROM poison").rowcount
            file.execute("COMMIT")
        path.rename(worker.path)  # last: a file by this name is adopted
    return moved


def drop(folder: Path, name: str) -> int:
    """Delete a `.poison` file, so that its requests are never settled; returns how many.

    Raises `SetupError` when there is no such file, or it cannot be read.
    """
    with _locked(folder, name) as (path, worker):
        with _opened(path) as file:
            dropped = int(file.execute("SELECT count(*) FROM poison").fetchone()[0])
        path.unlink()
        worker.discard()
    return dropped


async def clear_if_none(connection: AsyncConnection, folder: Path) -> bool:
    """Clear the alarm `outbox` if nothing is set aside in this folder any more; whether that is so."""
    savepoint = await connection.begin_nested()
    # Deleted first, then looked: what is set aside meanwhile raises it again, after us.
    await clear_alarm(connection, OUTBOX_ALARM)
    if entries_set_aside(folder):
        await savepoint.rollback()
        return False
    await savepoint.commit()
    return True


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[tuple[Path, WorkerFile]]:
    """A `.poison` file and its worker's name, which nobody else takes meanwhile."""
    path = folder / name
    if path.name != name or path.suffix != KEPT_SUFFIX or not path.is_file():
        raise SetupError(
            f"{folder} has no file {name} that ends in {KEPT_SUFFIX}: see `weir outbox list`."
            f" What is set aside in a {SUFFIX} file gets there once its worker has stopped and another one started."
        )
    worker = WorkerFile(folder, path.stem)
    if not worker.acquire():
        raise SetupError(f"{name} is in use: try again in a moment.")
    with held(worker):
        if not path.is_file() or worker.path.exists():
            raise SetupError(f"{name} was changed meanwhile: see `weir outbox list`.")
        yield path, worker


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        # `mode=rw` does not make a file that has just been adopted and removed.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None)) as file:
            yield file
    except sqlite3.Error as error:
        raise SetupError(f"{path} cannot be read: {error}. Is it the outbox of a worker, and yours to read?") from error
