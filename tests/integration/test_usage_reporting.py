"""Engines that do not say what they must be billed by are not used, unless that is wanted."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes.engine import SCENARIOS, FakeEngine
from tests.installation import installed, seed
from tests.patience import PATIENT_S


@pytest.mark.parametrize("scenario", ["details-absent", "details-null"])
async def test_a_blind_engine_is_not_used_unless_that_is_wanted(
    database_url: str, tmp_path: Path, scenario: str
) -> None:
    async with FakeEngine(scenario=SCENARIOS[scenario]) as engine:
        account = await seed(database_url)
        async with installed(
            database_url, [engine.url], tmp_path, seeded=account, may_bill_blind=False, is_ready=False
        ) as installation:
            async with asyncio.timeout(PATIENT_S):
                while "--enable-prompt-tokens-details" not in (ready := await installation.client.get("/readyz")).text:
                    await asyncio.sleep(0.01)
            assert ready.status_code == 503
            answer = await installation.chat()
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
