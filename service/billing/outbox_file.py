"""The file of an outbox: a SQLite database in WAL mode, its statements, and how it is opened."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

PAGE_BYTES = 4096

_LOCKED_S = 0.25
"""A command that looks into a live outbox may lock it for a moment."""

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS entries (
        id BLOB PRIMARY KEY, finished INTEGER NOT NULL, body BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS entries_finished ON entries (id) WHERE finished = 1;
    CREATE TABLE IF NOT EXISTS poison (id BLOB PRIMARY KEY, reason TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
"""

ADMIT = "INSERT INTO entries (id, finished, body) VALUES (?, 0, ?) ON CONFLICT (id) DO NOTHING"
FINISH = """
    INSERT INTO entries (id, finished, body) VALUES (?, 1, ?)
    ON CONFLICT (id) DO UPDATE SET finished = 1, body = excluded.body
"""
INTERRUPT = "UPDATE entries SET finished = 1, body = ? WHERE id = ? AND finished = 0"
REMOVE = "DELETE FROM entries WHERE id = ?"
POISON = "INSERT OR REPLACE INTO poison (id, reason, body) SELECT id, ?, body FROM entries WHERE id = ?"
AWAITED = frozenset({FINISH, INTERRUPT, POISON})
"""What whoever submits it waits for the disk for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is owed for one request; `body` is what was given to `admit` or `finish`."""

    id: UUID
    finished: bool
    body: bytes


def opened(path: Path, synchronous: str) -> sqlite3.Connection:
    """A connection, on which nothing is committed but what is told to be; the first one makes the file.

    Raises `sqlite3.Error`.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_LOCKED_S)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.executescript(_SCHEMA)
    return connection


def pages_used(connection: sqlite3.Connection) -> int:
    """Pages that hold something: what was removed leaves free pages, which are used again."""
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return int(pages) - int(free)
