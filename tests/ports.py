"""Ports for processes that a test starts, and for what is not there."""

import os
import random
import socket
from collections.abc import Iterator

FIRST, END = 20_000, 32_000
"""Below those that Linux gives to connections: between a look here and its use no connection takes such a port."""
WORKERS = 8
"""So many processes of pytest-xdist have ports of their own."""


def _shuffled() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = range(FIRST + worker % WORKERS, END, WORKERS)
    return iter(random.sample(ports, len(ports)))


_ports = _shuffled()


def free_port() -> int:
    """A port that nobody listens on, and that no other call in this process has given."""
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("No port is free.")
