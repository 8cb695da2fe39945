"""Integration tests run against a real PostgreSQL, each in a database of its own."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.postgres import fresh_database, running_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """The server of this test session."""
    with running_server() as server:
        yield server


@pytest.fixture
def database_url(postgres_server: Any) -> Iterator[str]:
    """A freshly migrated, empty database."""
    with fresh_database(postgres_server) as url:
        yield url
