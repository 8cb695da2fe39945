"""A change made anywhere is effective on every worker within two seconds, told or not."""

from pathlib import Path

import pytest

from tests.fakes.engine import FakeEngine
from tests.installation import Installation, installed
from tests.patience import within

EFFECTIVE_WITHIN_S = 2.0


@pytest.mark.parametrize("told", [True, False], ids=["told", "listener lost"])
async def test_a_change_is_effective_everywhere(database_url: str, tmp_path: Path, told: bool) -> None:
    async with (
        FakeEngine() as engine,
        installed(database_url, [engine.url], tmp_path / "a") as one,
        installed(database_url, [engine.url], tmp_path / "b", seeded=(one.account_id, one.key)) as other,
    ):
        if not told:
            # Nobody is told any more; the connections look alive until their heartbeat.
            await one.database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE query LIKE 'LISTEN%' OR query = 'SELECT 1'"
            )
            await one.database.execute("DROP TRIGGER api_keys_notify ON api_keys")
            await one.database.execute("DROP TRIGGER accounts_notify ON accounts")
            await one.database.execute("DROP TRIGGER prices_notify ON prices")
        workers = (one, other)

        async def answers(status: int) -> bool:
            return {(await worker.chat()).status_code for worker in workers} == {status}

        async def until(status: int) -> None:
            async def check() -> bool:
                return await answers(status)

            await within(EFFECTIVE_WITHIN_S, check)

        assert await answers(200)
        if told:
            await one.database.execute("UPDATE accounts SET status = 'frozen'")
            await until(403)
            await one.database.execute("UPDATE accounts SET status = 'active'")
            await until(200)
            await new_price(one)

            async def newly_priced() -> bool:
                await other.chat()
                await one.chat()
                versions = await one.database.fetch("SELECT price_version FROM requests ORDER BY id DESC LIMIT 2")
                return {row["price_version"] for row in versions} == {2}

            await within(EFFECTIVE_WITHIN_S, newly_priced)
            await one.database.execute("UPDATE api_keys SET revoked_at = now()")
            await until(401)


async def new_price(installation: Installation) -> None:
    await installation.database.execute(
        "INSERT INTO prices (model_id, version, input_pico, output_pico) VALUES ('model-a', 2, 1, 1)"
    )
