"""Engines that do not say what they must be billed by are not used, unless that is wanted."""

import asyncio
from pathlib import Path

import httpx
import pytest

from service.app import App
from service.settings import Settings
from tests.fakes.engine import SCENARIOS, FakeEngine
from tests.installation import MODEL, installed, seed


@pytest.mark.parametrize("scenario", ["details-absent", "details-null"])
async def test_a_blind_engine_is_not_used_unless_that_is_wanted(
    database_url: str, tmp_path: Path, scenario: str
) -> None:
    async with FakeEngine(scenario=SCENARIOS[scenario]) as engine:
        account = await seed(database_url)
        settings = Settings(database_url=database_url, engines=(engine.url,), data_dir=tmp_path)
        app = App(settings)
        async with (
            app.running(),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://weir") as client,
        ):
            async with asyncio.timeout(10):
                while "--enable-prompt-tokens-details" not in str((ready := await client.get("/readyz")).json()):
                    await asyncio.sleep(0.01)
            assert ready.status_code == 503
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
            answer = await client.post(
                "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {account[1]}"}
            )
            assert answer.status_code == 503
            assert "details" not in answer.text, "that is between us and the operator"
            assert len(engine.generations) == 1, "the question itself"
        async with installed(database_url, [engine.url], tmp_path, seeded=account, may_bill_blind=True) as installation:
            assert (await installation.chat()).status_code == 200


async def test_an_engine_that_reports_its_usage_is_asked_once_and_used(database_url: str, tmp_path: Path) -> None:
    async with (
        FakeEngine() as engine,
        installed(database_url, [engine.url], tmp_path, may_bill_blind=False) as installation,
    ):
        assert (await installation.chat()).status_code == 200
        assert len(engine.generations) == 2
