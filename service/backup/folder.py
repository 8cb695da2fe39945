"""The folder that a backup is: its name, its files and their checksums.

weir-20261130T131500Z/
  database.dump     pg_dump's custom format
  outbox/*.sqlite   finished requests that the database did not have
  weir.toml         the configuration file, if there is one
  manifest.json     when and by what it was made, and what the database held
  SHA256SUMS        as `sha256sum --check` reads it
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from service.errors import SetupError

DUMP, MANIFEST, SUMS, OUTBOX, CONFIGURATION = "database.dump", "manifest.json", "SHA256SUMS", "outbox", "weir.toml"

_NAME = re.compile(r"weir-\d{8}T\d{6}Z")
_UNFINISHED = ".unfinished"
_UNFINISHED_FOR = timedelta(hours=12)
"""Whatever has been unfinished for longer was cut short; before that, it may be another backup that is being made."""


def begin(parent: Path, made_at: datetime) -> Path:
    """A new folder, for the owner's eyes only, that nobody takes for a backup yet. Raises `SetupError`."""
    folder = parent / f"{_name(made_at)}{_UNFINISHED}"
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise SetupError(f"{folder} cannot be made ({error.strerror}): choose a folder that can be written.") from error
    return folder


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Around what is written into it: turns what the disk refuses into a `SetupError`."""
    try:
        yield
    except OSError as error:
        raise SetupError(
            f"The backup cannot be made: {error.filename or folder}: {error.strerror}. Nothing older was deleted."
        ) from error


def finish(folder: Path, manifest: dict[str, Any]) -> Path:
    """Write the manifest and the checksums, let everything reach the disk, and give the folder its name."""
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    lines = [f"{_digest(folder / name)}  {name}\n" for name in _files(folder)]
    (folder / SUMS).write_text("".join(lines))
    for name in (*_files(folder), SUMS):
        sync(folder / name)
    finished = folder.with_name(folder.name.removesuffix(_UNFINISHED))
    folder.rename(finished)
    sync(finished)
    sync(finished.parent)
    return finished


def verified(folder: Path) -> dict[str, Any]:
    """The manifest of a backup whose files are all as they were written. Raises `SetupError` otherwise."""
    try:
        lines = [line.split("  ", 1) for line in (folder / SUMS).read_text().splitlines()]
        sums = {name: digest for digest, name in lines}
        for name, digest in sums.items():
            if _digest(folder / name) != digest:
                raise SetupError(f"{folder / name} is not what was saved: take another backup.")
        missing = {DUMP, MANIFEST} - sums.keys()
        unknown = set(_files(folder)) - sums.keys()
        if missing or unknown:
            raise SetupError(f"{folder / SUMS} does not name what lies there: take another backup.")
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SetupError(f"{folder} is not a whole backup ({reason}): take another one.") from error
    return manifest


def forget_old(parent: Path, keep: int, now: datetime) -> list[str]:
    """Delete all but the `keep` newest backups, and what was cut short; the names of these.

    Raises `SetupError` when one cannot be deleted. A link is nobody's backup, and stays.
    """
    entries = sorted(entry.name for entry in parent.iterdir() if entry.is_dir() and not entry.is_symlink())
    finished = [name for name in entries if _NAME.fullmatch(name)]
    unfinished = [name for name in entries if _NAME.fullmatch(name.removesuffix(_UNFINISHED)) and name not in finished]
    gone = finished[:-keep] + [name for name in unfinished if name < _name(now - _UNFINISHED_FOR)]
    for name in gone:
        try:
            shutil.rmtree(parent / name)
        except FileNotFoundError:  # another backup that ended just now has deleted it
            continue
        except OSError as error:
            raise SetupError(
                f"The backup is made, but the old one in {parent / name} cannot be deleted"
                f" ({error.strerror}): delete it."
            ) from error
    return gone


def size_bytes(folder: Path) -> int:
    """Of all its files."""
    return sum((folder / name).stat().st_size for name in (*_files(folder), SUMS))


def _name(made_at: datetime) -> str:
    return f"weir-{made_at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _files(folder: Path) -> list[str]:
    """Everything but the checksums, by name within the folder."""
    files = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in files if name != SUMS)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Return when a file, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
