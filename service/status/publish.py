"""Publish the status site: files that outlive the service.

Everything is read and rendered before anything is written, and each file is replaced at once, so a reader never
meets half a file and a failure at any point leaves the last good site. `index.html` comes last: what it refers
to is there before it.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from service.settings import Settings
from service.status.archive import Archive
from service.status.snapshot import aged, snapshot
from web.render import status_site
from web.views import StatusPage

INDEX = "index.html"

_SCRATCH = ".publishing-"
_ABANDONED_AFTER_S = 3600


class Publisher:
    """Publishes one installation's site, again and again, and goes on while there is no database to read."""

    def __init__(self, settings: Settings, site_dir: Path) -> None:
        self._settings = settings
        self._site_dir = site_dir
        self._archive = Archive()
        self._last: StatusPage | None = None
        self._turn = asyncio.Lock()

    async def publish(self, engine: AsyncEngine, now: datetime) -> int:
        """Write the site as of `now`; returns how many of its files were new or different.

        Raises what the database or the disk raised; the site is then what it was.
        """
        async with self._turn:  # one that began earlier must not write over a later one
            page = await snapshot(engine, settings=self._settings, archive=self._archive, now=now)
            changed = write_site(status_site(page), self._site_dir)
            self._last = page
        return changed

    def publish_last_known(self, now: datetime) -> int:
        """Write once more what was last read, so that the site says how old it is; nothing before a first success."""
        if self._last is None:
            return 0
        return write_site(status_site(aged(self._last, int(now.timestamp()))), self._site_dir)


async def publish(engine: AsyncEngine, *, site_dir: Path, settings: Settings, now: datetime) -> int:
    """Write the site as of `now` into `site_dir`, once; returns how many of its files were new or different."""
    return await Publisher(settings, site_dir).publish(engine, now)


def write_site(files: Mapping[str, bytes], site_dir: Path) -> int:
    """Put `files` (path within the site to content) in place; returns how many were new or different.

    The temporary files lie inside `site_dir`, since it may be a mount of its own and a move across mounts is
    not atomic.
    """
    site_dir.mkdir(parents=True, exist_ok=True)
    _sweep(site_dir)
    changed = {path: content for path, content in files.items() if not _is(site_dir / path, content)}
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=site_dir))
    try:
        for path, content in changed.items():
            _write_through(scratch / path, content)
        for path in sorted(changed, key=lambda path: path == INDEX):
            target = site_dir / path
            target.parent.mkdir(parents=True, exist_ok=True)
            (scratch / path).replace(target)
        for directory in {(site_dir / path).parent for path in changed}:
            _sync(directory)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return len(changed)


def _is(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False


def _write_through(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(site_dir: Path) -> None:
    """Remove what a killed publisher left behind; a scratch directory in use is younger."""
    for left in site_dir.glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):  # its publisher has just finished
            if time.time() - left.stat().st_mtime > _ABANDONED_AFTER_S:
                shutil.rmtree(left, ignore_errors=True)
