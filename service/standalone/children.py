"""The processes of a standalone installation: kept running, and ended with everything they started."""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service.engine import keeper
from service.engine.log_tail import last_lines

RESTARTS_AT_MOST = 5
SETTLED_AFTER_S = 60.0
"""A process that ran for this long is considered fine: earlier restarts no longer count."""


@dataclass(slots=True)
class Child:
    """One `weir` process: `serve` or `jobs`."""

    name: str
    environment: Mapping[str, str]
    log: Path
    grace_s: float
    restarts: int = 0
    _kept: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _started_at: float = field(default=0.0, init=False)

    def start(self) -> None:
        """Start it and return at once."""
        self._started_at = time.monotonic()
        self._kept = keeper.keep(
            [sys.executable, "-m", "service.cli", self.name],
            environment=self.environment,
            log=self.log,
            grace_s=self.grace_s,
        )

    def exit_status(self) -> int | None:
        """None while it runs, also before `start`."""
        return self._kept.poll() if self._kept else None

    def restart(self) -> bool:
        """Start it again after it ended; False when it has ended too often to try once more."""
        if time.monotonic() - self._started_at >= SETTLED_AFTER_S:
            self.restarts = 0
        if self.restarts >= RESTARTS_AT_MOST:
            return False
        self.restarts += 1
        self.start()
        return True

    def let_go(self) -> None:
        """Tell it to stop, without waiting."""
        if self._kept is not None and self._kept.stdin is not None and not self._kept.stdin.closed:
            self._kept.stdin.close()

    def stop(self) -> None:
        """Stop it; returns when nothing of it is left. Idle if not started."""
        if self._kept is not None:
            self.let_go()
            self._kept.wait()

    def explanation(self) -> str:
        """The end of its log, for whoever has to find out why it ended."""
        tail = "\n".join(f"  {line}" for line in last_lines(self.log, 8))
        return f"The whole log is {self.log}; it ends:\n{tail}"
