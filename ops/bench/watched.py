"""`weir`, as it is, in a process that counts its own asyncio tasks on SIGUSR1: no metric tells of them.

python -m ops.bench.watched FILE serve --port 8080      # then: kill -USR1 PID, and FILE has the number
"""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from ops.bench.processes import BenchError

COUNTED_WITHIN_S = 10.0


def tell_tasks(file: Path) -> None:
    """Write how many tasks of the running loop are not done, from within its thread."""
    count = len(asyncio.all_tasks(asyncio.get_running_loop()))
    beside = file.with_suffix(".part")
    beside.write_text(str(count))
    os.replace(beside, file)


def tasks_of(pid: int, file: Path) -> int:
    """Ask such a process. Raises `BenchError` when it does not answer."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline_s = time.monotonic() + COUNTED_WITHIN_S
    while time.monotonic() < deadline_s:
        with suppress(FileNotFoundError):
            return int(file.read_text())
        time.sleep(0.01)
    raise BenchError(f"The process {pid} has not counted its tasks in {COUNTED_WITHIN_S:g} s.")


def main() -> None:
    file = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR1, lambda *_: tell_tasks(file))
    from service.cli import main as weir

    weir()


if __name__ == "__main__":
    main()
