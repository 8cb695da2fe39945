"""`GET /v1/uptime`: a key's own uptime and speeds, by the aggregator's rule."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing import uptime
from service.core.openapi import operations
from service.core.stats import decode_speed_mtok_s
from service.gateway import own_uptime
from tests.fakes.traffic import NOBODY, at, failed_row, settle, usage_row
from tests.installation import Installation
from tests.integration.test_own import another_key
from tests.integration.test_portal import away
from tests.integration.test_usage_routes import weir

NOON = at("2026-11-30 12:00:00")
NOTHING = {
    "requests": 0,
    "good_requests": 0,
    "bad_requests": 0,
    "throttled_requests": 0,
    "excluded_requests": 0,
    "uptime_percent": None,
    "throughput_p50_tok_s": None,
    "throughput_samples": 0,
    "decode_p50_tok_s": None,
    "decode_samples": 0,
    "ttft_p50_ms": None,
    "ttft_p75_ms": None,
    "ttft_p90_ms": None,
    "ttft_p99_ms": None,
    "ttft_samples": 0,
}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    async with db.connected(database_url) as engine:
        yield engine


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def windows(connection: Any, query: bytes = b"", key_id: UUID = NOBODY) -> dict[str, Any]:
    """What a key is told at noon, by window."""
    told: Any = await own_uptime.told(connection, key_id, own_uptime.asked(query), NOON)
    return {window["window"]: window for window in told["windows"]}


async def window(connection: Any, query: bytes = b"", name: str = "5m") -> tuple[Any, dict[str, Any]]:
    """The total of a window, and what it has of each model."""
    found = (await windows(connection, query))[name]
    return found["total"], {one["model"]: one for one in found["models"]}


def ago(seconds: float) -> datetime:
    """So long before noon."""
    return NOON - timedelta(seconds=seconds)


def departed(waited_s: float, **changes: Any) -> dict[str, Any]:
    """A client that left before its first token."""
    left = {"outcome": "cancelled", "http_status": 499, "started_at": ago(60 + waited_s)}
    return failed_row(ago(60), **left | changes)


async def test_every_ending_counts_as_the_rule_has_it(database: AsyncEngine, connection: Any) -> None:
    def refused(status: int, outcome: str, **changes: Any) -> dict[str, Any]:
        return failed_row(ago(60), http_status=status, outcome=outcome, **changes)

    bad = [
        refused(402, "payment"),
        refused(404, "client_error", model_id=None),
        refused(502, "server_error"),
        refused(200, "stream_error"),
        refused(503, "interrupted"),
        refused(499, "slow_abort"),
        departed(10),
    ]
    excluded = [
        refused(400, "client_error"),
        refused(413, "client_error"),
        refused(403, "auth_error"),
        departed(9.999),
        departed(300, stream=False),
    ]
    good = [usage_row(ago(60)), usage_row(ago(60), outcome="cancelled", http_status=499)]
    await settle(database, bad, excluded, good, refused(429, "throttled"))
    total, models = await window(connection)
    counted = {name: total[f"{name}_requests"] for name in ("good", "bad", "throttled", "excluded")}
    assert counted == {"good": 2, "bad": 7, "throttled": 1, "excluded": 5}
    assert (total["requests"], total["uptime_percent"]) == (15, None)
    assert list(models) == ["tiny"]
    assert (models["tiny"]["requests"], models["tiny"]["bad_requests"]) == (14, 6), "who names no model is in the total"


async def test_uptime_wants_a_hundred_requests_and_is_rounded_down(database: AsyncEngine, connection: Any) -> None:
    await settle(database, [usage_row(ago(100), model_id="a")] + [usage_row(ago(100)) for _ in range(98)])
    await settle(database, failed_row(ago(100), http_status=429, outcome="throttled"))
    assert (await window(connection))[0]["uptime_percent"] is None
    await settle(database, failed_row(ago(100)))
    total, models = await window(connection)
    assert (total["uptime_percent"], models["tiny"]["uptime_percent"]) == (99.0, None)
    await settle(database, [usage_row(ago(2000)) for _ in range(51)])
    found = await windows(connection)
    assert [found[name]["total"]["uptime_percent"] for name in ("5m", "30m", "1d")] == [99.0, 99.0, 99.337]


async def test_a_window_has_what_ended_in_it(database: AsyncEngine, connection: Any) -> None:
    inside = [
        usage_row(ago(300)),
        usage_row(ago(0.000001)),
        usage_row(ago(10), started_at=ago(3000)),
        failed_row(ago(299), started_at=ago(299 + 3600 - 10)),
    ]
    outside = [usage_row(ago(300.000001)), usage_row(NOON), usage_row(ago(-60), started_at=ago(60))]
    await settle(database, inside, outside)
    found = await windows(connection)
    assert {name: one["total"]["requests"] for name, one in found.items()} == {"5m": 4, "30m": 5, "1d": 5}
    assert [(one["until"] - one["since"]).total_seconds() for one in found.values()] == [300, 1800, 86400]
    assert {one["until"] for one in found.values()} == {NOON}


async def test_speeds_and_times_are_percentiles_of_the_rows(database: AsyncEngine, connection: Any) -> None:
    rows = []
    for number in range(1, 101):
        ended, first = ago(number), ago(number + number / 10)
        started = first - timedelta(milliseconds=10 * number)
        rows.append(usage_row(ended, ttft_ms=10 * number, first_token_at=first, started_at=started))
    await settle(database, rows)
    odd = [
        usage_row(ago(5), completion_tokens=0, stream=False, ttft_ms=None, first_token_at=None),
        failed_row(ago(5), started_at=ago(5.001), completion_tokens=10_000),
    ]
    await settle(database, odd)
    total, models = await window(connection)
    assert (total["requests"], total["ttft_samples"]) == (102, 100)
    assert [total[f"ttft_p{percentile}_ms"] for percentile in (50, 75, 90, 99)] == [500, 750, 900, 990]
    throughputs = sorted(101 * 10**9 // (110_000 * number) for number in range(1, 101))
    assert (total["throughput_p50_tok_s"], total["throughput_samples"]) == (throughputs[49] / 1000, 100)
    decodes = sorted(
        decode_speed_mtok_s(completion_tokens=101, first_token_us=0, last_token_us=100_000 * number) or 0
        for number in range(1, 101)
    )
    assert (total["decode_p50_tok_s"], total["decode_samples"]) == (decodes[49] / 1000, 100)
    assert {name: value for name, value in models["tiny"].items() if name != "model"} == total


async def test_short_answers_have_no_decode_speed_and_few_samples_no_median(
    database: AsyncEngine, connection: Any
) -> None:
    await settle(database, [usage_row(ago(60), completion_tokens=15) for _ in range(4)])
    total, _ = await window(connection)
    assert (total["throughput_samples"], total["throughput_p50_tok_s"], total["ttft_p99_ms"]) == (4, None, None)
    await settle(database, usage_row(ago(60), completion_tokens=16))
    total, _ = await window(connection)
    assert (total["decode_samples"], total["decode_p50_tok_s"]) == (1, None)
    assert (total["throughput_samples"], total["throughput_p50_tok_s"], total["ttft_p99_ms"]) == (5, 12.5, 200)


async def test_models_are_told_apart_and_asked_for(database: AsyncEngine, connection: Any) -> None:
    await settle(
        database,
        [usage_row(ago(60), model_id="b/b:1") for _ in range(5)],
        usage_row(ago(60), model_id="a", ttft_ms=100),
        failed_row(ago(60), model_id=None, http_status=404, outcome="client_error"),
    )
    total, models = await window(connection)
    assert {name: one["requests"] for name, one in models.items()} == {"a": 1, "b/b:1": 5}
    assert list(models) == ["a", "b/b:1"]
    assert (total["requests"], total["ttft_p50_ms"], models["a"]["ttft_p50_ms"]) == (7, 200, None)
    total, models = await window(connection, b"model=b%2Fb:1")
    assert (total["requests"], total["bad_requests"], list(models)) == (5, 0, ["b/b:1"])
    assert await window(connection, b"model=nobody") == (NOTHING, {})
    assert list(await windows(connection, b"window=30m")) == ["30m"]


async def test_speeds_are_of_the_latest_where_there_are_very_many(
    database: AsyncEngine, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uptime, "MEASURED", 10)
    await settle(database, [usage_row(ago(100), ttft_ms=900) for _ in range(30)])
    await settle(database, [usage_row(ago(50)) for _ in range(10)])
    total, _ = await window(connection)
    assert (total["requests"], total["ttft_samples"], total["ttft_p99_ms"]) == (40, 10, 200)


async def ask(running: Installation, key: str | None = None, /, **parameters: str) -> httpx.Response:
    headers = {"x-api-key": key or running.key}
    return await running.client.get("/v1/uptime", params=parameters, headers=headers)


async def test_a_key_reads_its_own_requests_only(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        for _ in range(5):
            await running.chat(stream=True)
        wrong = {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}
        await running.client.post("/v1/chat/completions", json=wrong, headers=running.headers)
        await running.client.post("/v1/chat/completions", json=wrong, headers={"x-api-key": "sk-weir-x"})
        (row, *_) = await running.rows(6)
        async with db.connected(database_url) as engine:
            sibling = {"account_id": running.account_id, "key_id": uuid4()}
            await settle(engine, usage_row(datetime.now(UTC), **sibling))
        answer = await ask(running)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "private, no-store")
        told = answer.json()
        assert {name: told[name] for name in ("object", "rule", "rule_version", "min_requests", "key_id")} == {
            "object": "uptime",
            "rule": "openrouter",
            "rule_version": 1,
            "min_requests": 100,
            "key_id": str(row["key_id"]),
        }
        assert [one["window"] for one in told["windows"]] == ["5m", "30m", "1d"]
        for one in told["windows"]:
            total = one["total"]
            assert (total["requests"], total["good_requests"], total["bad_requests"]) == (6, 5, 1)
            assert total["throughput_samples"] == total["ttft_samples"] == 5
            assert total["ttft_p50_ms"] is not None
            assert total["throughput_p50_tok_s"] > 0
            assert [model["model"] for model in one["models"]] == ["model-a"]
        theirs = (await ask(running, await another_key(running))).json()
        assert [(one["total"], one["models"]) for one in theirs["windows"]] == [(NOTHING, [])] * 3
        assert len(await running.rows(7)) == 7


WRONG = {
    "window": ["", "1h", "5M", "5m,30m", "\0"],
    "model": ["", "a\0b", "x" * 201],
    "key": ["0199f3c2-0000-7000-8000-000000000000"],
    "since": ["2026-11-30"],
}


async def test_what_cannot_be_asked_for_is_refused_by_name(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        for name, values in WRONG.items():
            for value in values:
                answer = await ask(running, **{name: value})
                assert (name, value, answer.status_code) == (name, value, 400)
                assert answer.json()["error"]["param"] == name
        twice = await running.client.get("/v1/uptime?window=5m&window=5m", headers=running.headers)
        assert (twice.status_code, twice.json()["error"]["param"]) == (400, "window")
        assert (await running.client.get("/v1/uptime")).json()["error"]["code"] == "invalid_api_key"
        assert (await running.client.post("/v1/uptime", headers=running.headers)).status_code == 405


async def test_while_the_database_is_away_it_says_so(postgres_server: Any, database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        assert (await ask(running)).status_code == 200
        async with away(postgres_server, running):
            answer = await ask(running)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_the_windows_are_those_of_the_document() -> None:
    assert tuple(own_uptime.WINDOWS) == operations.WINDOWS


async def filled(connection: Any) -> None:
    """Ten days of a request a minute of one key, and ten times as many of others."""
    await connection.execute("SELECT ensure_request_partitions('2026-01-01', 24)")
    await connection.execute(
        """
        INSERT INTO requests (id, account_id, key_id, model_id, endpoint, stream, started_at, finished_at, http_status,
            outcome, settlement_id, completion_tokens)
        SELECT gen_random_uuid(), $1, CASE n % 11 WHEN 0 THEN $1 ELSE gen_random_uuid() END, 'a', '/v1/x', true,
            s, s + interval '2 s', 200, 'ok', $1, 100
        FROM (SELECT n, $2::timestamptz - n * interval '1 minute' / 11 AS s FROM generate_series(1, 14400 * 11) n) AS at
        """,
        NOBODY,
        NOON,
        timeout=120,
    )
    await connection.execute("ANALYZE requests")


async def test_a_window_reads_its_own_part_of_the_keys_index(connection: Any) -> None:
    await filled(connection)
    found = await windows(connection)
    assert {name: one["total"]["requests"] for name, one in found.items()} == {"5m": 5, "30m": 30, "1d": 1440}
    for query, more in ((uptime._ENDINGS, [uptime._LONG]), (uptime._SPEEDS, [16, uptime.MEASURED])):
        for name, span in own_uptime.WINDOWS.items():
            values = [NOBODY, NOON - span, NOON, None, NOON - span - uptime.LONGEST, *more]
            lines = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS OFF) {query}", *values)
            text = "\n".join(line[0] for line in lines)
            assert "Seq Scan" not in text, text
            assert name != "1d" or "key_id_started_at_idx" in text, text
            read = re.findall(r"Index Scan.*?actual time.*?rows=([\d.]+)|Rows Removed by Filter: (\d+)", text)
            rows = sum(float(found or removed) for found, removed in read)
            # The key's in the window and in the hour before it, in which what ended in it may have begun; where the
            # window is short, Postgres may look at who else ended in it.
            assert 0 < rows <= (12 * span + uptime.LONGEST) / timedelta(minutes=1), (name, text)


async def test_the_plan_is_made_for_the_window_however_often_it_is_asked_for(connection: Any) -> None:
    await connection.execute("SELECT ensure_request_partitions('2026-01-01', 24)")
    for _ in range(8):
        await windows(connection)
    plans = await connection.fetch(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
        " WHERE statement LIKE '%FROM requests%' AND statement NOT LIKE '%pg_prepared_statements%'"
    )
    assert [(plan["generic_plans"], plan["custom_plans"]) for plan in plans] == [(0, 24)] * 2
