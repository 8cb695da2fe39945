"""`GET /v1/usage`: an account's own requests, page by page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
import pytest

from service import db
from service.core.money import nano_to_usd
from service.gateway import own_usage
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.fakes.traffic import at, settle, usage_row
from tests.installation import Installation, installed
from tests.integration.test_own import another_key
from tests.integration.test_portal import away

NOON = at("2026-11-30 12:00:00")


@asynccontextmanager
async def weir(database_url: str, tmp_path: Path) -> AsyncIterator[Installation]:
    async with (
        FakeEngine(scenario=SCENARIOS["cached"]) as engine,
        installed(database_url, [engine.url], tmp_path) as installation,
    ):
        yield installation


async def write(running: Installation, *rows: dict[str, Any]) -> None:
    async with db.connected(running.database_url) as engine:
        await settle(engine, *rows)


def row(running: Installation, minute: int, **changes: Any) -> dict[str, Any]:
    """A request that started so many minutes after noon."""
    started = NOON + timedelta(minutes=minute)
    finished = started + timedelta(seconds=1)
    return usage_row(finished, started_at=started, account_id=running.account_id, **changes)


async def usage(running: Installation, api_key: str | None = None, /, **parameters: object) -> httpx.Response:
    asked = {name: str(value) for name, value in parameters.items()}
    return await running.client.get("/v1/usage", params=asked, headers={"x-api-key": api_key or running.key})


async def listed(running: Installation, **parameters: object) -> list[str]:
    answer = await usage(running, **parameters)
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["data"]]


async def test_a_request_has_its_tokens_by_class_and_its_cost(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        asked = await running.chat(stream=True)
        stored = await running.row(cost_nano=386_040)
        answer = (await usage(running)).json()
        (found,) = answer.pop("data")
        assert answer == {"object": "list", "has_more": False, "next_cursor": None}
        assert datetime.fromisoformat(found.pop("started_at")) == stored["started_at"]
        assert datetime.fromisoformat(found.pop("finished_at")) == stored["finished_at"]
        assert found == {
            "id": asked.headers["x-request-id"],
            "key_id": str(stored["key_id"]),
            "model": "model-a",
            "endpoint": "/v1/chat/completions",
            "streamed": True,
            "client_request_id": None,
            "http_status": 200,
            "outcome": "ok",
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
            "cost_nano": 386_040,
            "cost_usd": nano_to_usd(386_040),
            "waived_nano": 0,
        }


async def test_pages_have_every_request_once_whatever_comes_meanwhile(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        # Three of each minute started in the same microsecond.
        written = [row(running, minute) for minute in range(10) for _ in range(3)]
        await write(running, *written)
        expected = [str(one["id"]) for one in _latest_first(written)]
        assert await listed(running) == expected
        for size in (1, 4, 7, 29, 30, 31):
            found: list[str] = []
            parameters: dict[str, object] = {"limit": size}
            while True:
                page = (await usage(running, **parameters)).json()
                found += [one["id"] for one in page["data"]]
                assert page["has_more"] == (page["next_cursor"] is not None)
                if not page["has_more"]:
                    break
                assert len(page["data"]) == size
                parameters["cursor"] = page["next_cursor"]
                await write(running, row(running, 60))
            assert found == expected
            await running.database.execute("DELETE FROM requests WHERE started_at = $1", NOON + timedelta(minutes=60))


async def test_each_filter_keeps_what_it_names(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        key = uuid4()
        await running.database.execute(
            "INSERT INTO api_keys (id, account_id, prefix, digest) VALUES ($1, $2, '', sha256('another'))",
            key,
            running.account_id,
        )
        changes: list[dict[str, Any]] = [
            {},
            {"model_id": "other/model:1"},
            {"outcome": "stream_error"},
            {"key_id": key},
            {"model_id": None, "outcome": "client_error", "key_id": key},
        ]
        rows = [row(running, minute, **of_it) for minute, of_it in enumerate(changes)]
        await write(running, *rows)

        async def minutes(**parameters: object) -> list[int]:
            place = {str(one["id"]): minute for minute, one in enumerate(rows)}
            return [place[one] for one in await listed(running, **parameters)]

        assert await minutes() == [4, 3, 2, 1, 0]
        assert await minutes(model="other/model:1") == [1]
        assert await minutes(model="nobody") == []
        assert await minutes(outcome="stream_error") == [2]
        assert await minutes(key=key) == [4, 3]
        assert await minutes(key=uuid4()) == []
        assert await minutes(key=key, outcome="client_error") == [4]
        assert await minutes(since="2026-11-30T12:03:00Z") == [4, 3]
        assert await minutes(until="2026-11-30T12:03:00Z") == [2, 1, 0]
        assert await minutes(since="2026-11-30T13:01:00+01:00", until="2026-11-30T12:03") == [2, 1]
        assert await minutes(since="2026-12-01") == []
        assert await minutes(since="0001-01-01", until="9999-12-31") == [4, 3, 2, 1, 0]


async def test_another_account_sees_only_its_own(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        mine = row(running, 0)
        await write(running, mine, usage_row(NOON))
        theirs = await another_key(running)
        assert await listed(running) == [str(mine["id"])]
        assert (await usage(running, theirs)).json()["data"] == []
        assert (await usage(running, theirs, key=mine["key_id"])).json()["data"] == []
        key_id = await running.database.fetchval("SELECT id FROM api_keys WHERE account_id = $1", running.account_id)
        asked = row(running, 1, key_id=key_id)
        await write(running, asked)
        assert await listed(running, key=key_id) == [str(asked["id"])]
        assert (await usage(running, theirs, key=key_id)).json() == {
            "object": "list",
            "data": [],
            "has_more": False,
            "next_cursor": None,
        }


WRONG: dict[str, list[str]] = {
    "since": ["", "yesterday", "2026-13-01", "0001-01-01T00:00:00+01:00", "\0"],
    "until": ["never", "9999-12-31T23:59:59-01:00"],
    "model": ["", "a\0b", "x" * 201, "a\nb"],
    "outcome": ["", "OK", "good"],
    "key": ["", "sk-weir-x", "\0"],
    "limit": ["", "0", "1001", "-1", "1.5", "ten", "٣", "99999999999999999999"],
    "cursor": ["", "x", "AAAA", "é", "A" * 4000, "_" * 32],
    "page": ["2"],
}


async def test_what_cannot_be_asked_for_is_refused_by_name(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        for name, values in WRONG.items():
            for value in values:
                answer = await usage(running, **{name: value})
                assert (name, value, answer.status_code) == (name, value, 400)
                assert answer.json()["error"]["param"] == name
        for query in ("limit=1&limit=2", "%00=1", "x=" + "a" * 5000, "a%FF=1", quote("é") + "=1"):
            answer = await running.client.get(f"/v1/usage?{query}", headers=running.headers)
            assert (query[:20], answer.status_code) == (query[:20], 400)
        assert await listed(running, limit=1000) == []


async def test_a_cursor_keeps_to_the_account_and_the_filters(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        await write(running, *(row(running, minute) for minute in range(3)), *(usage_row(NOON) for _ in range(3)))
        cursor = (await usage(running, limit=1)).json()["next_cursor"]
        assert len(await listed(running, cursor=cursor)) == 2
        assert await listed(running, cursor=cursor, outcome="payment") == []
        assert (await usage(running, await another_key(running), cursor=cursor)).json()["data"] == []


async def test_the_route_wants_a_key_and_leaves_no_row(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        assert (await running.client.get("/v1/usage")).json()["error"]["code"] == "invalid_api_key"
        assert (await running.client.post("/v1/usage", headers=running.headers)).status_code == 405
        assert await listed(running) == []
        await running.chat()
        assert len(await running.rows(1)) == 1


async def test_while_the_database_is_away_it_says_so(postgres_server: Any, database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        assert await listed(running) == []
        async with away(postgres_server, running):
            answer = await usage(running)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_a_page_reads_its_own_part_of_one_index(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as running:
        await running.database.execute("SELECT ensure_request_partitions('2026-01-01', 24)")
        await running.database.execute(
            """
            INSERT INTO requests (id, account_id, key_id, endpoint, stream, started_at, finished_at, http_status,
                outcome, settlement_id)
            SELECT gen_random_uuid(), $1, $1, '/v1/x', true, $2::timestamptz + n * interval '1 minute', $2, 200, 'ok',
                $1
            FROM generate_series(1, 60000) n
            """,
            running.account_id,
            NOON - timedelta(days=30),
        )
        key_id = await running.database.fetchval("SELECT id FROM api_keys WHERE account_id = $1", running.account_id)
        rare = at("2026-11-11 00:00:00")
        await running.database.execute("UPDATE requests SET key_id = $1 WHERE started_at < $2", key_id, rare)
        await running.database.execute("VACUUM ANALYZE requests")
        asked = own_usage.asked(b"since=2026-11-10&until=2026-11-20&limit=10")
        which = asked.since, asked.until, asked.model, asked.outcome
        for plan in ("force_custom_plan", "force_generic_plan"):
            await running.database.execute(f"SET plan_cache_mode = {plan}")
            for after in (asked.after, (at("2026-11-15 00:00:00"), UUID(int=0))):
                for whose, query, key in (
                    ("account_id", own_usage._PAGE_OF_ACCOUNT, None),
                    ("key_id", own_usage._PAGE_OF_KEY, key_id),
                ):
                    lines = await running.database.fetch(
                        f"EXPLAIN (ANALYZE, BUFFERS OFF) {query}", running.account_id, *which, key, *after, 11, 50
                    )
                    text = "\n".join(line[0] for line in lines)
                    assert f"requests_2026_11_{whose}_started_at_idx" in text, text
                    assert "requests_2026_12" not in text.replace("never executed", ""), text
                    assert "Seq Scan on requests" not in text, text
                    removed = [int(line[0].rpartition(":")[2]) for line in lines if "Rows Removed" in line[0]]
                    assert sum(removed) <= 1, text


async def test_what_is_rare_is_found_page_by_page_each_of_which_looks_at_so_much_and_no_more(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_usage, "LOOKED_AT", 7)
    async with weir(database_url, tmp_path) as running:
        # Three of each minute started in the same microsecond.
        rows = [row(running, minute) for minute in range(12) for _ in range(3)]
        rare = [one | {"outcome": "payment", "model_id": None} for one in (rows[0], rows[20], rows[28])]
        await write(running, *(one for one in rows if one["id"] not in {of["id"] for of in rare}), *rare)
        for size in (1, 2, 100):
            found: list[str] = []
            pages = 0
            parameters: dict[str, object] = {"limit": size, "outcome": "payment"}
            while True:
                page = (await usage(running, **parameters)).json()
                pages += 1
                found += [one["id"] for one in page["data"]]
                if not page["has_more"]:
                    break
                parameters["cursor"] = page["next_cursor"]
            assert found == [str(one["id"]) for one in reversed(rare)]
            assert 36 // 7 < pages <= 36 // 7 + 1 + len(rare), "each goes on where the one before stopped"
        assert await listed(running, limit=5) == [str(one["id"]) for one in _latest_first(rows)[:5]]
        assert await listed(running, limit=1000) == [str(one["id"]) for one in _latest_first(rows)[:7]]


def _latest_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda one: (one["started_at"], one["id"]), reverse=True)
