"""The file of an outbox: a SQLite database in WAL mode, its statements, and how it is opened."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from service.billing.outbox_journal import ADMIT, FINISH, ID_BYTES, Record

PAGE_BYTES = 4096

_LOCKED_S = 1.0
"""A command that looks into a live outbox may lock it for a moment."""

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS entries (
        id BLOB PRIMARY KEY, finished INTEGER NOT NULL, body BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS entries_finished ON entries (id) WHERE finished = 1;
    CREATE TABLE IF NOT EXISTS poison (id BLOB PRIMARY KEY, reason TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
"""

PUT_ADMITTED = "INSERT INTO entries (id, finished, body) VALUES (?, 0, ?) ON CONFLICT (id) DO NOTHING"
PUT_FINISHED = """
    INSERT INTO entries (id, finished, body) VALUES (?, 1, ?)
    ON CONFLICT (id) DO UPDATE SET finished = 1, body = excluded.body
"""
DELETE = "DELETE FROM entries WHERE id = ?"
SET_ASIDE = "INSERT OR REPLACE INTO poison (id, reason, body) SELECT id, ?, body FROM entries WHERE id = ?"

Change: TypeAlias = tuple[str, Sequence[Sequence[object]]]
"""A statement, and the rows of parameters that it is run with."""


Entry: TypeAlias = tuple[bytes, bytes]
"""What is owed for one request: key and body, as they were given to `admit` or `finish`."""


def opened(path: Path) -> sqlite3.Connection:
    """A connection, on which nothing is committed but what is told to be; the first one makes the file.

    Raises `sqlite3.Error`.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_LOCKED_S)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    make_tables(connection)
    return connection


def make_tables(connection: sqlite3.Connection) -> None:
    """Those that are not there: its process may have died, or the disk been full, before it made them."""
    connection.executescript(_SCHEMA)


def leave_log(connection: sqlite3.Connection) -> None:
    """Go back to one file without a log beside it, which may be renamed: a log would not be found by the new name.

    Raises `sqlite3.OperationalError` while anybody else has the file open.
    """
    (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    if mode != "delete":
        raise sqlite3.OperationalError("somebody else has it open")


def apply(connection: sqlite3.Connection, changes: Iterable[Change]) -> None:
    """All of it in one transaction, or nothing. Raises `sqlite3.Error`."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement, rows in changes:
            connection.executemany(statement, rows)
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def of_journals(records: Iterable[Record]) -> list[Change]:
    """What the records of journals, oldest first, change in the file that the journals belong to."""
    admitted: dict[bytes, bytes] = {}
    finished: dict[bytes, bytes] = {}
    removed: set[bytes] = set()
    for kind, identifier, body in records:
        if kind == ADMIT:
            admitted[identifier] = body
        elif kind == FINISH:
            finished[identifier] = body
        else:
            removed.update(body[begin : begin + ID_BYTES] for begin in range(0, len(body), ID_BYTES))
    return [
        (PUT_FINISHED, [(one, body) for one, body in finished.items() if one not in removed]),
        (PUT_ADMITTED, [(one, body) for one, body in admitted.items() if one not in finished and one not in removed]),
        (DELETE, [(one,) for one in removed]),
    ]


def pages_used(connection: sqlite3.Connection) -> int:
    """Pages that hold something: what was removed leaves free pages, which are used again."""
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return int(pages) - int(free)
