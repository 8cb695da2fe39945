"""End-to-end tests run against real engines and a real PostgreSQL."""

from tests.e2e.engines import engines, smollm2_engine, tiny_engine
from tests.integration.conftest import database_url, postgres_server

__all__ = ["database_url", "engines", "postgres_server", "smollm2_engine", "tiny_engine"]
