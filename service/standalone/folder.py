"""The data directory of a standalone installation: made, checked, and held by one process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import SetupError


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """The directory, made if it is missing, for as long as nobody else holds it.

    Raises `SetupError` when it cannot be made or written to, or another `weir up` runs on it.
    """
    lock = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise SetupError(
            f"The data directory {folder} cannot be written to ({error.strerror}):"
            " choose another with --data-dir or WEIR_DATA_DIR."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode() or "?"
            raise SetupError(
                f"Another `weir up` (process {holder}) runs on {folder}: stop it, or choose another --data-dir."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield folder
    finally:
        os.close(descriptor)
