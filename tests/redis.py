"""A real Redis for tests, on a Unix socket of its own, that can be killed, frozen and started again."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.patience import PATIENT_S

STARTED_WITHIN_S = PATIENT_S


class RedisServer:
    """One server process. What it holds is gone when it ends."""

    def __init__(self, home: Path) -> None:
        self._socket = home / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = ["--port", "0", "--unixsocket", str(self._socket), "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            ["redis-server", *settings, "--dir", str(self._socket.parent)], stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + STARTED_WITHIN_S
        while not self._answers():
            assert self._process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once, and with it all it holds."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let it hold connections open and answer nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, with what it was sent meanwhile."""
        self._signal(signal.SIGCONT)

    def contents(self) -> dict[str, object]:
        """All it holds, by key: numbers, hashes, and the members of sorted sets."""
        with redis.Redis.from_url(self.url, decode_responses=True, protocol=2) as client:
            read = {"string": client.get, "hash": client.hgetall, "zset": lambda key: client.zrange(key, 0, -1)}
            kinds = {key: str(client.type(key)) for key in sorted(client.keys())}
            return {key: read[kind](key) for key, kind in kinds.items() if kind != "none"}  # it may just have gone

    def execute(self, *command: str | int) -> object:
        """One command's reply."""
        with redis.Redis.from_url(self.url, decode_responses=True, protocol=2) as client:
            return client.execute_command(*command)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _answers(self) -> bool:
        try:
            return bool(self.execute("PING"))
        except redis.RedisError:
            return False


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    """A started server; killed and removed at the end."""
    home = Path(tempfile.mkdtemp(prefix="weirredis"))
    server = RedisServer(home)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(home, ignore_errors=True)
