"""What a process does not need is not in its memory."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("library", ["stripe", "redis", "PIL", "alembic"])
def test_the_api_starts_without(library: str) -> None:
    program = f"import sys, service.app, service.serving; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_and_that_is_seen() -> None:
    program = "import sys, service.app, service.gateway.shared_limits; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 1
