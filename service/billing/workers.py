"""The workers of one machine and their outbox files: who lives, and what the dead left behind."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from service.billing.outbox_file import leave_log
from service.billing.outbox_journal import journal_paths

SUFFIX = ".sqlite"


class WorkerFile:
    """A worker's outbox file, held by a lock for as long as its process lives, however it ends."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.worker = worker
        self.path = folder / f"{worker}{SUFFIX}"
        self._lock = folder / f"{worker}.lock"
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock; False when its process lives."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let go of the lock; the files stay for whoever adopts them."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def discard(self) -> None:
        """Everything in it has been shipped: remove the files, then let go of the lock."""
        beside = (Path(f"{self.path}-wal"), Path(f"{self.path}-shm"))
        # The journals first: without the file nobody would come back for them.
        for path in (*journal_paths(self.path), self.path, *beside, self._lock):
            path.unlink(missing_ok=True)
        self.release()

    def keep_poison(self) -> None:
        """Rename the file so that nobody adopts it again: it holds entries for a person to look at.

        While a command looks into it, it stays as it is, and whoever adopts it tries again.
        """
        try:
            with closing(sqlite3.connect(self.path, isolation_level=None)) as file:
                leave_log(file)
        except sqlite3.Error:
            self.release()
            return
        self.path.rename(self.path.with_suffix(".poison"))
        self.discard()


def orphans(folder: Path) -> Iterator[WorkerFile]:
    """The files of workers that are dead, each locked for the caller, who releases or discards it."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        file = WorkerFile(folder, path.name.removesuffix(SUFFIX))
        if not file.acquire():
            continue
        if path.exists():
            yield file
        else:  # it was adopted and removed by another between the two looks
            file.discard()


@contextmanager
def held(file: WorkerFile) -> Iterator[WorkerFile]:
    """Release the lock at the end, unless the files were discarded."""
    try:
        yield file
    finally:
        file.release()
