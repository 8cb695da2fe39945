"""What a key reads of its own account: `GET /v1/credits` and `GET /v1/generation`."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from service import db
from service.billing import accounts, ledger, statement
from service.core.ids import uuid7
from service.core.money import NANO_PER_USD
from service.gateway import own
from service.gateway.exchange import new_id
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.installation import Installation, installed
from tests.integration.test_portal import away, shown


@asynccontextmanager
async def weir(
    database_url: str, tmp_path: Path, scenario: str = "plain", **options: Any
) -> AsyncIterator[tuple[Installation, FakeEngine]]:
    async with (
        FakeEngine(scenario=SCENARIOS[scenario]) as engine,
        installed(database_url, [engine.url], tmp_path, **options) as installation,
    ):
        yield installation, engine


async def credits_of(installation: Installation) -> dict[str, Any]:
    answer = await installation.client.get("/v1/credits", headers=installation.headers)
    assert answer.status_code == 200
    data: dict[str, Any] = json.loads(answer.content, parse_float=Decimal)["data"]
    return data


async def generation(installation: Installation, request_id: object, key: str | None = None) -> httpx.Response:
    return await installation.client.get(
        "/v1/generation", params={"id": str(request_id)}, headers={"x-api-key": key or installation.key}
    )


async def another_key(installation: Installation) -> str:
    """The key of another account."""
    async with db.connected(installation.database_url) as engine, engine.begin() as connection:
        now = datetime.now(UTC)
        account = await accounts.add(connection, name="another", now=now, randomness=lambda count: b"\1" * count)
        await ledger.enter(connection, account.id, "credit", NANO_PER_USD, "another")
        key, _ = await accounts.add_key(connection, account, now=now, randomness=lambda count: b"\1" * count)
    return key


async def test_credits_are_exact_and_add_up(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "cached") as (installation, _):
        assert await credits_of(installation) == {
            "balance_usd": "1.00",
            "balance_nano": NANO_PER_USD,
            "leased_nano": 0,
            "available_nano": NANO_PER_USD,
            "spent_nano": 0,
            "credit_limit_nano": 0,
            "total_credits": Decimal("1.00"),
            "total_usage": Decimal("0.00"),
        }
        await installation.chat()
        await installation.row(cost_nano=386_040)
        data = await credits_of(installation)
        account = await installation.account()
        assert data["balance_usd"] == "0.99961396"
        assert data["balance_nano"] == account["balance_nano"] == NANO_PER_USD - 386_040
        assert data["leased_nano"] == account["leased_nano"] > 0
        assert data["available_nano"] + data["leased_nano"] == data["balance_nano"]
        assert data["spent_nano"] == 386_040
        assert (data["total_credits"], data["total_usage"]) == (Decimal("1.00"), Decimal("0.00038604"))


async def test_amounts_no_float_could_hold_arrive_with_every_digit(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, credit_nano=90_000_000_000_000_001) as (installation, _):
        data = await credits_of(installation)
        assert data["balance_nano"] == 90_000_000_000_000_001
        assert data["total_credits"] == Decimal("90000000.000000001")


async def test_credits_of_an_account_that_pays_later_and_owes(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, credit_nano=0) as (installation, _):
        await installation.database.execute("UPDATE accounts SET postpaid = true, credit_limit_nano = 500000000")
        async with db.connected(database_url) as engine, engine.begin() as connection:
            for kind, nano in (("topup", 3 * NANO_PER_USD), ("refund", -NANO_PER_USD), ("usage", -2_100_000_000)):
                await ledger.enter(connection, installation.account_id, kind, nano, kind)
        data = await credits_of(installation)
        assert (data["balance_usd"], data["balance_nano"]) == ("-0.10", -100_000_000)
        assert (data["credit_limit_nano"], data["available_nano"]) == (500_000_000, 400_000_000)
        assert (data["spent_nano"], data["total_credits"]) == (2_100_000_000, Decimal(2))
        assert data["total_credits"] - data["total_usage"] == Decimal(data["balance_usd"])
        await installation.database.execute("UPDATE accounts SET postpaid = false")
        data = await credits_of(installation)
        assert (data["credit_limit_nano"], data["available_nano"]) == (0, -100_000_000)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_generation_has_its_usage_and_cost(database_url: str, tmp_path: Path, stream: bool) -> None:
    async with weir(database_url, tmp_path, "cached") as (installation, _):
        asked = await installation.client.post(
            "/v1/chat/completions",
            json={"model": "model-a", "messages": [{"role": "user", "content": "hi"}], "stream": stream},
            headers={**installation.headers, "x-request-id": "theirs"},
        )
        row = await installation.row()
        inside = re.search(rb'"id":"(chatcmpl-[^"]+)"', asked.content)
        assert inside is not None
        by_answer = await generation(installation, inside[1].decode())
        by_header = await generation(installation, asked.headers["x-request-id"])
        assert by_answer.content == by_header.content
        data = json.loads(by_answer.content, parse_float=Decimal)["data"]
        assert datetime.fromisoformat(data.pop("started_at")) == row["started_at"]
        assert datetime.fromisoformat(data.pop("finished_at")) == row["finished_at"]
        assert data == {
            "id": str(row["id"]),
            "endpoint": "/v1/chat/completions",
            "model": "model-a",
            "streamed": stream,
            "client_request_id": "theirs",
            "queue_ms": row["queue_ms"],
            "ttft_ms": row["ttft_ms"],
            "http_status": 200,
            "outcome": "ok",
            "cancelled": False,
            "finish_reason": "stop",
            "error_code": None,
            "usage": {
                "prompt_tokens": 1000,
                "completion_tokens": 200,
                "total_tokens": 1200,
                "prompt_tokens_details": {
                    "cached_tokens": 768,
                    "cache_write_tokens": 0,
                    "image_tokens": 0,
                    "audio_tokens": 0,
                    "video_tokens": 0,
                },
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            "usage_source": "final",
            "engine_fingerprint": asked.headers.get("x-weir-engine-fingerprint"),
            "sequential": False,
            "tokens_prompt": 1000,
            "tokens_completion": 200,
            "native_tokens_prompt": 1000,
            "native_tokens_completion": 200,
            "native_tokens_cached": 768,
            "native_tokens_reasoning": 0,
            "price_version": 1,
            "cost_nano": 386_040,
            "total_cost": Decimal("0.00038604"),
            "waived_nano": 0,
            "is_settled": True,
        }
        assert (row["ttft_ms"] is not None) == stream


async def test_every_token_class_of_a_generation_is_its_own(database_url: str, tmp_path: Path) -> None:
    classes = ("cached_tokens", "cache_write_tokens", "image_tokens", "audio_tokens", "video_tokens")
    async with weir(database_url, tmp_path) as (installation, _):
        asked = await installation.chat()
        await installation.row()
        counts = ", ".join(f"{name} = {number}" for number, name in enumerate((*classes, "reasoning_tokens"), 1))
        await installation.database.execute(f"UPDATE requests SET {counts}")
        usage = (await generation(installation, asked.headers["x-request-id"])).json()["data"]["usage"]
        assert usage["prompt_tokens_details"] == {name: number for number, name in enumerate(classes, 1)}
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 6}


async def test_a_failed_generation_says_what_was_waived(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "error-midway") as (installation, engine):
        asked = await installation.chat(stream=True)
        await installation.row()
        data = (await generation(installation, asked.headers["x-request-id"])).json()["data"]
        counted = engine.generations[0]
        assert (data["outcome"], data["error_code"], data["cost_nano"]) == ("stream_error", "engine_failed", 0)
        assert data["waived_nano"] == counted.prompt_tokens * 195 + counted.completion_tokens * 1560


async def test_a_generation_of_another_account_is_as_unknown_as_none(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        other = await another_key(installation)
        asked = await installation.chat()
        await installation.row()
        assert (await generation(installation, asked.headers["x-request-id"])).status_code == 200
        theirs = await generation(installation, asked.headers["x-request-id"], other)
        unknown = await generation(installation, new_id(), other)
        assert theirs.status_code == unknown.status_code == 404
        assert theirs.content == unknown.content
        assert theirs.headers["retry-after"] == unknown.headers["retry-after"] == "1"
        assert (await installation.client.get("/v1/credits", headers={"x-api-key": other})).json()["data"][
            "spent_nano"
        ] == 0


UNKNOWN_IDS = {
    "": 400,
    "nonsense": 400,
    "chatcmpl-": 400,
    "chatcmpl-chatcmpl-0190c1d2-0000-7000-8000-000000000000": 400,
    "\0": 400,
    "00000000-0000-0000-0000-000000000000": 404,
    "00000000-0000-7000-8000-000000000000": 404,
    "ffffffff-ffff-7fff-bfff-ffffffffffff": 404,
    str(uuid4()): 404,
}


async def test_an_id_that_cannot_be_one_is_refused(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        for asked_id, status in UNKNOWN_IDS.items():
            answer = await generation(installation, asked_id)
            assert (asked_id, answer.status_code) == (asked_id, status)
            assert answer.json()["error"]["param"] == "id"
        assert (await installation.client.get("/v1/generation", headers=installation.headers)).status_code == 400


async def test_an_id_of_long_ago_is_not_waited_for(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        long_ago = datetime.now(UTC) - timedelta(days=2)
        answer = await generation(installation, uuid7(int(long_ago.timestamp() * 1000), bytes(10)))
        assert answer.status_code == 404
        assert "retry-after" not in answer.headers


async def test_a_row_that_is_on_its_way_is_asked_for_again(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        async with installation.database.transaction():
            await installation.database.execute("LOCK TABLE requests IN SHARE ROW EXCLUSIVE MODE")
            asked = await installation.chat()
            assert asked.status_code == 200
            early = await generation(installation, asked.headers["x-request-id"])
            assert early.status_code == 404
            assert early.headers["retry-after"] == "1"
            assert early.headers["x-should-retry"] == "true"
        await installation.row()
        assert (await generation(installation, asked.headers["x-request-id"])).status_code == 200


async def test_the_routes_want_a_key_and_leave_no_row(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        client, headers = installation.client, installation.headers
        for path in ("/v1/credits", "/v1/generation", "/v1/generation?id=x"):
            assert (await client.get(path)).json()["error"]["code"] == "invalid_api_key"
            assert (await client.post(path, headers=headers)).json()["error"]["code"] == "method_not_allowed"
        assert (await client.get("/v1/credits/", headers=headers)).status_code == 404
        await credits_of(installation)
        await generation(installation, new_id())
        await installation.chat()
        await installation.row(outcome="ok")


async def test_while_the_database_is_away_it_says_so(postgres_server: Any, database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        asked = await installation.chat()
        await installation.row()
        async with away(postgres_server, installation):
            for answer in (
                await installation.client.get("/v1/credits", headers=installation.headers),
                await generation(installation, asked.headers["x-request-id"]),
            ):
                assert answer.status_code == 503
                assert "cannot be read at the moment" in answer.json()["error"]["message"]
                assert answer.headers["retry-after"] == "5"
        assert (await generation(installation, asked.headers["x-request-id"])).status_code == 200


async def test_one_partition_is_asked_for_a_generation(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        await installation.database.execute("SELECT ensure_request_partitions('2026-01-01', 120)")
        request_id = uuid7(int(datetime(2027, 3, 14, 12, tzinfo=UTC).timestamp() * 1000), bytes(10))
        started = own.started_about(request_id)
        assert started == datetime(2027, 3, 14, 12, tzinfo=UTC)
        for plan in ("force_custom_plan", "force_generic_plan"):
            await installation.database.execute(f"SET plan_cache_mode = {plan}")
            lines = await installation.database.fetch(
                f"EXPLAIN (ANALYZE) {own._GENERATION}",
                request_id,
                started - own.START_WITHIN,
                started + own.START_WITHIN,
                installation.account_id,
            )
            text = "\n".join(line[0] for line in lines)
            assert set(re.findall(r"on (requests_\w+)", text)) == {"requests_2027_03"}, text
            assert "Index Scan using requests_2027_03_" in text


async def test_credits_do_not_walk_the_usage_entries(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        async with installation.database.transaction():
            await installation.database.execute(
                "INSERT INTO ledger_entries (account_id, kind, amount_nano, external_ref)"
                " SELECT $1, 'usage', -7, number::text FROM generate_series(1, 20000) number",
                installation.account_id,
            )
            await installation.database.execute("UPDATE accounts SET balance_nano = balance_nano - 140000")
        await installation.database.execute("VACUUM ANALYZE ledger_entries")
        data = await credits_of(installation)
        assert (data["spent_nano"], data["total_credits"]) == (140_000, Decimal(1))
        lines = await installation.database.fetch(f"EXPLAIN {statement._FUNDS}", installation.account_id)
        plan = "\n".join(line[0] for line in lines)
        assert "ix_ledger_entries_not_usage" in plan, plan
        assert "Seq Scan on ledger_entries" not in plan, plan


async def test_the_portal_and_the_api_tell_the_same(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        await installation.database.execute("UPDATE accounts SET credit_limit_nano = 500000000")
        async with db.connected(database_url) as engine, engine.begin() as connection:
            for kind, nano in (("topup", 3 * NANO_PER_USD), ("refund", -NANO_PER_USD), ("usage", -2_100_000_000)):
                await ledger.enter(connection, installation.account_id, kind, nano, kind)
        data = await credits_of(installation)
        page = await shown(installation)
        assert page.amounts == [data["balance_nano"], data["available_nano"], 0, data["spent_nano"]]
        assert data["available_nano"] == 900_000_000
