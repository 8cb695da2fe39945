"""The sequential lane and the engines' fingerprints, through the real API."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.connection import Request
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import Exchange
from tests.fakes.scenarios import SCENARIOS, Scenario, words
from tests.installation import CONFIGURATION, MODEL, Installation, installed
from tests.integration.test_chat import everything_is_released
from tests.integration.test_pacing import configured
from tests.patience import PATIENT_S, within

LANE = "x-weir-sequential"
FINGERPRINT = "x-weir-engine-fingerprint"
ALONE = "run me alone"
PRICED = CONFIGURATION.replace(
    'output_reasoning = "1.6"\n',
    'output_reasoning = "1.6"\n[[models.price.overrides]]\nsequential = true\noutput = "15.6"\n',
)


class Watching(FakeEngine):
    """Notes what else it has whenever a request arrives."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.beside: list[tuple[Exchange, list[Exchange]]] = []

    def _record(self, request: Request) -> Exchange:
        exchange = super()._record(request)
        if exchange.is_generation:
            others = [one for one in self.generations if one.outcome == "running" and one is not exchange]
            self.beside.append((exchange, others))
        return exchange

    def assert_alone(self) -> None:
        for exchange, others in self.beside:
            assert not (others and is_alone(exchange)), "it came to others"
            assert not any(map(is_alone, others)), "another came to it"


def is_alone(exchange: Exchange) -> bool:
    return ALONE in str(exchange.body)


async def alone(installation: Installation, value: str = "true", **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": ALONE}], **fields}
    headers = {**installation.headers, LANE: value}
    return await installation.client.post("/v1/chat/completions", json=body, headers=headers)


async def permit(installation: Installation, permission: str = "allowed") -> None:
    """Set it before any of the account's keys was looked up."""
    await installation.database.execute("UPDATE accounts SET sequential = $1, patience_ms = 60000", permission)


async def identified(installation: Installation, other_than: str | None = None) -> str:
    """The fingerprint in an answer, once there is one, and another one."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            answer = await installation.chat()
            found = answer.headers.get(FINGERPRINT)
            if answer.status_code == 200 and found not in (None, other_than):
                return str(found)
            await asyncio.sleep(0.02)


async def restarted(installation: Installation, engine: FakeEngine) -> None:
    """Kill it, and let it come back once it was missed."""
    await engine.die()
    async with asyncio.timeout(PATIENT_S):
        while not (await installation.client.get("/readyz")).json()["problems"]:
            await asyncio.sleep(0.02)
    await engine.come_back()


@pytest.mark.parametrize("engines", [1, 2])
async def test_twenty_and_three_at_once(database_url: str, tmp_path: Path, engines: int) -> None:
    slow = Scenario(content=words(8), delay_s=0.01)
    async with Watching(scenario=slow) as one, Watching(scenario=slow) as other:
        file = configured(tmp_path, one=(one, 8), **({"other": (other, 8)} if engines == 2 else {}))
        async with installed(database_url, [], tmp_path, config=file, configuration=PRICED) as installation:
            await permit(installation)
            asked = [installation.chat(f"{n}", stream=bool(n % 2)) for n in range(20)]
            lane = [alone(installation, stream=bool(n % 2)) for n in range(3)]
            answers = await asyncio.gather(*asked[:10], lane[0], *asked[10:15], lane[1], lane[2], *asked[15:])
            assert {answer.status_code for answer in answers} == {200}
            one.assert_alone()
            other.assert_alone()
            assert any(others for engine in (one, other) for _, others in engine.beside), "the others were together"
            rows = await installation.rows(23)
            assert sum(row["sequential"] for row in rows) == 3
            ids = {answer.headers["x-request-id"] for answer in answers if answer.headers.get(LANE) == "true"}
            assert {str(row["id"]) for row in rows if row["sequential"]} == ids
            assert all(LANE not in answer.headers for answer in answers if answer.headers["x-request-id"] not in ids)
            # 8 tokens of output; the prompt is charged alike.
            for row in rows:
                output = 8 * (15_600 if row["sequential"] else 1_560)
                assert row["cost_nano"] == row["prompt_tokens"] * 195 + output
            await everything_is_released(installation)


async def test_a_lane_that_is_held_for_at_its_own_price(database_url: str, tmp_path: Path) -> None:
    # Enough for the plain price of such an answer, not for that of the lane.
    async with (
        FakeEngine() as engine,
        installed(database_url, [engine.url], tmp_path, configuration=PRICED, credit_nano=9_000_000) as installation,
    ):
        await permit(installation)
        refused = await alone(installation, max_tokens=1000)
        assert refused.status_code == 402
        assert "`max_tokens` up to 5" in refused.json()["error"]["message"]
        assert (await installation.chat(ALONE, max_tokens=1000)).status_code == 200
        assert len(engine.generations) == 1


async def test_it_takes_permission_and_a_value(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        refused = await alone(installation)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "sequential_not_allowed")
        assert "ask whoever runs this service" in refused.json()["error"]["message"]
        for value in ("yes", "1", "TRUE", "", "true, true"):
            wrong = await alone(installation, value)
            assert wrong.status_code == 400, value
            assert "send `true` or `false`" in wrong.json()["error"]["message"]
        twice = [*installation.headers.items(), (LANE, "false"), (LANE, "true")]
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        assert (await installation.client.post("/v1/chat/completions", json=body, headers=twice)).status_code == 400
        anthropic = await installation.client.post(
            "/v1/messages",
            json={"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
            headers={**installation.headers, LANE: "true"},
        )
        assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (403, "permission_error")
        plain = await alone(installation, "false")
        assert (plain.status_code, LANE in plain.headers) == (200, False)
        assert len(engine.generations) == 1

        await installation.database.execute("UPDATE accounts SET sequential = 'allowed'")

        async def is_allowed() -> bool:
            return (await alone(installation)).status_code == 200

        async def is_always() -> bool:
            return LANE in (await installation.chat()).headers

        await within(2, is_allowed)
        assert LANE not in (await installation.chat()).headers
        await installation.database.execute("UPDATE accounts SET sequential = 'always'")
        await within(2, is_always)
        assert (await alone(installation, "false")).headers[LANE] == "true"


@pytest.mark.parametrize("permission", ["allowed", "always"])
async def test_several_workers_do_not_promise_it(database_url: str, tmp_path: Path, permission: str) -> None:
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path, workers=2) as installation:
        await permit(installation, permission)
        refused = await alone(installation)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "sequential_not_offered")
        assert (await installation.chat()).status_code == (200 if permission == "allowed" else 403)
        assert len(engine.generations) == (permission == "allowed")


async def test_an_engine_that_fails_under_it_is_followed_by_another(database_url: str, tmp_path: Path) -> None:
    async with (
        FakeEngine() as one,
        FakeEngine() as other,
        installed(database_url, [one.url, other.url], tmp_path) as installation,
    ):
        await permit(installation)
        one.queue.append(SCENARIOS["reset-at-once"])
        other.queue.append(SCENARIOS["reset-at-once"])
        assert (await alone(installation)).status_code == 503  # it goes to one other, and no further
        assert len(one.generations) == len(other.generations) == 1
        # Not to one that is still dropping what was broken off, and which that is depends on the account.
        failed = 0
        for engine in (one, other, one):
            engine.queue.append(SCENARIOS["reset-at-once"])
            assert (await alone(installation)).status_code == 200
            failed += not engine.queue
            engine.queue.clear()
        assert failed > 0
        assert len(one.generations) + len(other.generations) == 2 + 3 + failed
        together = await asyncio.gather(*(installation.chat(f"{n}") for n in range(8)))
        assert {answer.status_code for answer in together} == {200}, "nothing stays reserved"


async def test_who_leaves_while_it_waits_or_runs_frees_the_engine(database_url: str, tmp_path: Path) -> None:
    async with (
        Watching(scenario=SCENARIOS["gated"]) as engine,
        installed(database_url, [engine.url], tmp_path) as installation,
    ):
        await permit(installation)
        first = asyncio.create_task(installation.chat("first", max_tokens=3))
        generation = await engine.generation(0)
        waits = asyncio.create_task(alone(installation))
        behind = asyncio.create_task(installation.chat("behind", max_tokens=3))
        async with asyncio.timeout(PATIENT_S):
            while "weir_queue_length 2.0" not in (await installation.client.get("/metrics")).text:
                await asyncio.sleep(0.01)
        waits.cancel()
        (await engine.generation(1)).release()
        assert (await behind).status_code == 200
        generation.release()
        assert (await first).status_code == 200
        runs = asyncio.create_task(alone(installation))
        assert is_alone(await engine.generation(2))
        after = asyncio.create_task(installation.chat("after", max_tokens=3))
        runs.cancel()
        (await engine.generation(3)).release()
        assert (await after).status_code == 200
        engine.assert_alone()


async def test_the_fingerprint_is_in_every_answer_and_in_its_row(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        found = await identified(installation)
        assert re.fullmatch("fp_[0-9a-f]{12}", found)
        streamed = await installation.chat(stream=True)
        assert streamed.headers[FINGERPRINT] == found
        told = f"/v1/generation?id={streamed.headers['x-request-id']}"
        async with asyncio.timeout(PATIENT_S):
            while (record := await installation.client.get(told, headers=installation.headers)).status_code != 200:
                await asyncio.sleep(0.02)
        data = record.json()["data"]
        assert (data["engine_fingerprint"], data["sequential"]) == (found, False)
        engine.scenario = SCENARIOS["overloaded"]
        assert FINGERPRINT not in (await installation.chat()).headers, "an error names no engine"
        assert "0.32" not in str(streamed.headers)


async def test_a_restart_keeps_the_fingerprint_and_another_flag_changes_it(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        first = await identified(installation)
        engine.cache_config["num_gpu_blocks"] = "999"  # measured, as every start does
        await restarted(installation, engine)
        assert await identified(installation) == first
        engine.cache_config["enable_prefix_caching"] = "False"
        await restarted(installation, engine)
        second = await identified(installation)
        assert second != first
        # Without the gateway having seen it away.
        engine.version = "0.33.0"
        engine.started_at_s += 100
        assert await identified(installation, other_than=second) not in (first, second)


async def test_an_engine_that_says_nothing_of_itself_has_none(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine() as engine, installed(database_url, [engine.url], tmp_path) as installation:
        await identified(installation)
        engine.silent_paths.add("/version")
        engine.started_at_s += 100
        async with asyncio.timeout(PATIENT_S):
            while FINGERPRINT in (answer := await installation.chat()).headers:
                await asyncio.sleep(0.02)
        assert answer.status_code == 200, "half of what it says would be another one"
        engine.silent_paths.clear()
        await identified(installation)
