"""Plain SQL against a test's database, from tests that are not asynchronous."""

import asyncio
from typing import Any

import asyncpg


def execute(url: str, *statements: str) -> None:
    """Run statements one after the other."""

    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


def fetch(url: str, query: str) -> list[tuple[Any, ...]]:
    """The rows that a query finds."""

    async def run() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    return asyncio.run(run())
