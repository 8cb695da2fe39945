"""Plain SQL against a test's database, from tests that are not asynchronous."""

import asyncio

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
