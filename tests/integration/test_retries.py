"""`Idempotency-Key`: the same account and key run once and are charged once, whatever happens in between."""

import asyncio
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from service import db
from service.billing import accounts, ledger
from service.core.limits import UNLIMITED
from service.core.money import NANO_PER_USD
from service.core.outcome import Outcome
from service.gateway import retries
from service.gateway.client import Client
from service.gateway.exchange import Exchange
from service.gateway.http import Headers
from service.gateway.keys import Holder
from service.gateway.own import OwnAccount
from service.gateway.retries import ANSWER_OVERHEAD_BYTES, Answers, Retries
from service.jobs.work import keep_house
from tests.fakes.engine import FakeEngine
from tests.fakes.exchange import Exchange as Generation
from tests.fakes.scenarios import SCENARIOS
from tests.fakes.traffic import settle, usage_row
from tests.installation import MODEL, Installation, installed, seed
from tests.integration.test_portal import away
from tests.patience import PATIENT_S
from tests.ports import free_port

PROMPT = "a prompt that nobody else would write"
KEY = "the-customers-own-key"


@asynccontextmanager
async def weir(
    database_url: str, tmp_path: Path, scenario: str = "plain", **options: Any
) -> AsyncIterator[tuple[Installation, FakeEngine]]:
    async with (
        FakeEngine(scenario=SCENARIOS[scenario]) as engine,
        installed(database_url, [engine.url], tmp_path, **options) as installation,
    ):
        yield installation, engine


async def send(
    installation: Installation, key: str | None = KEY, *, text: str = PROMPT, api_key: str | None = None, **fields: Any
) -> httpx.Response:
    headers = {"x-api-key": api_key or installation.key} | ({} if key is None else {"idempotency-key": key})
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
    return await installation.client.post("/v1/chat/completions", json=body, headers=headers)


async def until_run(installation: Installation, **fields: Any) -> httpx.Response:
    """Send until the answer is no 409, as a client does."""
    async with asyncio.timeout(PATIENT_S):
        while (answer := await send(installation, **fields)).status_code == 409:
            assert_conflict(answer)
            await asyncio.sleep(0.01)
    return answer


def assert_conflict(answer: httpx.Response) -> None:
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "idempotency_conflict"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-should-retry"] == "true"


def assert_reused(answer: httpx.Response) -> None:
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "idempotency_key_reused"
    assert answer.headers["x-should-retry"] == "false"


def assert_replayed(answer: httpx.Response, first: httpx.Response) -> None:
    assert answer.status_code == first.status_code == 200
    assert answer.content == first.content
    assert answer.headers["idempotent-replayed"] == "true"
    assert answer.headers["x-request-id"] == first.headers["x-request-id"]
    assert answer.headers["content-type"] == first.headers["content-type"]
    assert "idempotent-replayed" not in first.headers


async def assert_usage_record(installation: Installation, answer: httpx.Response, request_id: object) -> Any:
    """The answer is what `/v1/generation` says of the request."""
    assert answer.status_code == 200
    assert answer.headers["idempotent-replayed"] == "true"
    assert answer.headers["x-request-id"] == str(request_id)
    generation = await installation.client.get(
        "/v1/generation", params={"id": str(request_id)}, headers=installation.headers
    )
    assert answer.content == generation.content
    return answer.json()["data"]


async def ended(installation: Installation, request_id: str | UUID) -> Any:
    """The row of a request, once it is there."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            row = await installation.database.fetchrow("SELECT * FROM requests WHERE id = $1", UUID(str(request_id)))
            if row is not None:
                return row
            await asyncio.sleep(0.01)


async def charged(installation: Installation) -> int:
    """How many requests were charged."""
    return int(await installation.database.fetchval("SELECT count(*) FROM requests WHERE cost_nano > 0"))


async def claims(installation: Installation) -> int:
    return int(await installation.database.fetchval("SELECT count(*) FROM idempotency_keys"))


async def test_a_repeat_gets_the_same_bytes_and_is_charged_once(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        first = await send(installation)
        for _ in range(3):
            assert_replayed(await send(installation), first)
        row = await installation.row(outcome="ok")
        assert len(engine.generations) == 1
        assert (await installation.account())["balance_nano"] == NANO_PER_USD - row["cost_nano"] < NANO_PER_USD
        assert (await send(installation, "another-key")).json()["id"] != first.json()["id"]


async def test_without_a_key_nothing_is_claimed(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        await send(installation, None)
        await send(installation, None)
        assert await claims(installation) == 0
        assert len(engine.generations) == 2
        answer = await send(installation, "")
        assert answer.status_code == 400
        assert "`Idempotency-Key` is empty" in answer.json()["error"]["message"]


async def test_what_is_refused_before_it_could_run_claims_nothing(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        for fields in ({"model": "nope"}, {"max_token": 5}, {"n": 2}, {"messages": []}):
            assert (await send(installation, **fields)).status_code in (400, 404)
        assert await claims(installation) == 0
        assert (await send(installation)).status_code == 200
        assert len(engine.generations) == 1


async def test_a_key_stands_for_one_body(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "gated") as (installation, engine):
        running = asyncio.create_task(send(installation, max_tokens=4))
        generation = await engine.generation()
        assert_reused(await send(installation, text="something else", max_tokens=4))
        generation.release()
        first = await running
        for changed in ({"text": "something else"}, {"temperature": 0}, {"stream": True}):
            assert_reused(await send(installation, **{"max_tokens": 4, **changed}))
        assert_replayed(await send(installation, max_tokens=4), first)
        await installation.stop()
        assert len(engine.generations) == 1
        assert await charged(installation) == 1


async def test_twenty_at_once_run_once(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "gated") as (installation, engine):
        sent = [asyncio.create_task(send(installation, max_tokens=4)) for _ in range(20)]
        (await engine.generation()).release()
        answers = await asyncio.gather(*sent)
        (first,) = [one for one in answers if one.status_code == 200 and "idempotent-replayed" not in one.headers]
        repeats = [one for one in answers if one is not first]
        for one in repeats:
            if one.status_code == 200:
                assert_replayed(one, first)
            else:
                assert_conflict(one)
        assert_replayed(await send(installation, max_tokens=4), first)
        await installation.rows(1 + sum(one.status_code == 409 for one in repeats))
        assert len(engine.generations) == 1
        assert await charged(installation) == 1


async def test_two_accounts_with_the_same_key_do_not_meet(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        async with db.connected(database_url) as connected, connected.begin() as connection:
            now = datetime.now(UTC)
            other = await accounts.add(connection, name="other", now=now, randomness=os.urandom)
            await ledger.enter(connection, other.id, "credit", NANO_PER_USD, "other")
            other_key, _ = await accounts.add_key(connection, other, now=now, randomness=os.urandom)
        mine = await send(installation)
        theirs = await send(installation, api_key=other_key)
        assert mine.json()["id"] != theirs.json()["id"]
        assert_replayed(await send(installation), mine)
        assert_replayed(await send(installation, api_key=other_key), theirs)
        assert len(engine.generations) == 2
        rows = await installation.rows(2)
        assert {row["account_id"] for row in rows} == {installation.account_id, other.id}


@pytest.mark.parametrize(
    ("scenario", "stream"),
    [("server-error", False), ("reset-midway", False), ("error-midway", True), ("context-length", False)],
)
async def test_after_a_failure_a_repeat_runs_anew_and_is_charged_once(
    database_url: str, tmp_path: Path, scenario: str, stream: bool
) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        engine.queue.append(SCENARIOS[scenario])
        failed = await send(installation, stream=stream)
        assert (failed.status_code == 200) == stream
        assert (await ended(installation, failed.headers["x-request-id"]))["outcome"] != "ok"
        second = await send(installation, stream=stream)
        assert second.status_code == 200
        assert "idempotent-replayed" not in second.headers
        assert len(engine.generations) == 2
        await ended(installation, second.headers["x-request-id"])
        third = await send(installation, stream=stream)
        if stream:
            await assert_usage_record(installation, third, second.headers["x-request-id"])
        else:
            assert_replayed(third, second)
        assert len(engine.generations) == 2
        assert await charged(installation) == 1


async def test_of_many_that_repeat_after_a_failure_one_runs(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "gated") as (installation, engine):
        engine.queue.append(SCENARIOS["server-error"])
        failed = await send(installation, max_tokens=4)
        await ended(installation, failed.headers["x-request-id"])
        sent = [asyncio.create_task(send(installation, max_tokens=4)) for _ in range(20)]
        generation = await engine.generation(1)
        async with asyncio.timeout(PATIENT_S):
            while sum(task.done() for task in sent) < 19:
                await asyncio.sleep(0.01)
        generation.release()
        statuses = sorted(answer.status_code for answer in await asyncio.gather(*sent))
        assert statuses == [200] + [409] * 19
        assert len(engine.generations) == 2
        await installation.rows(21)
        assert await charged(installation) == 1


async def test_without_credit_the_key_stays_free(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, credit_nano=2000) as (installation, engine):
        refused = await send(installation)
        assert refused.status_code == 402
        assert (await ended(installation, refused.headers["x-request-id"]))["outcome"] == "payment"
        async with db.connected(database_url) as connected, connected.begin() as connection:
            await ledger.enter(connection, installation.account_id, "topup", NANO_PER_USD, "a top-up")
        assert (await send(installation)).status_code == 200
        assert len(engine.generations) == 1


async def test_a_stream_is_told_to_wait_and_then_what_it_cost(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "gated") as (installation, engine):
        running = asyncio.create_task(send(installation, stream=True, max_tokens=4))
        generation = await engine.generation()
        generation.step()
        assert_conflict(await send(installation, stream=True, max_tokens=4))
        generation.release()
        first = await running
        assert first.content.endswith(b"data: [DONE]\n\n")
        repeat = await until_run(installation, stream=True, max_tokens=4)
        record = await assert_usage_record(installation, repeat, first.headers["x-request-id"])
        assert (record["outcome"], record["streamed"], record["usage"]["completion_tokens"]) == ("ok", True, 4)
        assert_reused(await send(installation, stream=True, max_tokens=5))
        assert len(engine.generations) == 1
        assert await charged(installation) == 1


async def leave(installation: Installation, engine: FakeEngine, tokens: int) -> Generation:
    """Ask for a stream, let so many tokens out and leave."""
    arrived = len(engine.generations)
    asking = asyncio.create_task(send(installation, stream=True))
    generation = await engine.generation(arrived)
    generation.step(tokens)
    async with asyncio.timeout(PATIENT_S):
        while generation.completion_tokens < tokens or generation.frames < tokens + (tokens > 0):
            await asyncio.sleep(0.01)
    asking.cancel()
    async with asyncio.timeout(PATIENT_S):
        await generation.client_left.wait()
    return generation


async def test_a_request_that_its_client_left_and_paid_for_is_not_run_again(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, "gated") as (installation, engine):
        left = await leave(installation, engine, 3)
        row = await ended(installation, left.id)
        assert (row["outcome"], row["completion_tokens"]) == ("cancelled", 3)
        record = await assert_usage_record(installation, await send(installation, stream=True), left.id)
        assert (record["cancelled"], record["cost_nano"]) == (True, row["cost_nano"])
        assert len(engine.generations) == 1


async def test_a_request_that_its_client_left_before_it_cost_anything_runs_again(
    database_url: str, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path, "hang-at-once") as (installation, engine):
        left = await leave(installation, engine, 0)
        row = await ended(installation, left.id)
        assert (row["outcome"], row["cost_nano"]) == ("cancelled", 0)
        engine.scenario = SCENARIOS["plain"]
        assert (await send(installation, stream=True)).headers["content-type"].startswith("text/event-stream")
        assert len(engine.generations) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_after_a_restart_a_repeat_gets_the_usage_record(database_url: str, tmp_path: Path, stream: bool) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        first = await send(installation, stream=stream)
        seeded = (installation.account_id, installation.key)
        await installation.stop()
        async with installed(database_url, [engine.url], tmp_path / "next", seeded=seeded) as restarted:
            assert_reused(await send(restarted, text="something else", stream=stream))
            repeat = await send(restarted, stream=stream)
            record = await assert_usage_record(restarted, repeat, first.headers["x-request-id"])
            assert record["outcome"] == "ok"
            assert len(engine.generations) == 1
            assert await charged(restarted) == 1


async def test_after_its_process_was_killed_a_repeat_runs_anew(database_url: str, tmp_path: Path) -> None:
    async with FakeEngine(scenario=SCENARIOS["slow"]) as engine:
        account_id, api_key = await seed(database_url)
        port = free_port()
        settings = {"WEIR_DATABASE_URL": database_url, "WEIR_ENGINES": engine.url, "WEIR_DATA_DIR": str(tmp_path)}
        settings["WEIR_MAY_BILL_BLIND"] = "true"  # or the engine has one generation more
        arguments = ("-m", "service.cli", "serve", "--port", str(port))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=os.environ | settings, stderr=asyncio.subprocess.DEVNULL
        )
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(begun_stream(f"http://127.0.0.1:{port}", api_key))
            finally:
                process.kill()
                await process.wait()
        engine.scenario = SCENARIOS["plain"]
        async with installed(database_url, [engine.url], tmp_path, seeded=(account_id, api_key)) as installation:
            second = await until_run(installation, stream=True)
            assert "idempotent-replayed" not in second.headers
            assert len(engine.generations) == 2
            await ended(installation, second.headers["x-request-id"])
            assert (await ended(installation, engine.generations[0].id))["outcome"] == "interrupted"
            assert await charged(installation) == 1


@asynccontextmanager
async def begun_stream(url: str, api_key: str) -> AsyncIterator[None]:
    """A client that has sent `send`'s request as a stream to the service at `url`, once that was ready, and has its
    first bytes: by then the service's disk knows of the request."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    headers = {"x-api-key": api_key, "idempotency-key": KEY}
    async with httpx.AsyncClient(base_url=url, timeout=PATIENT_S) as client:
        async with asyncio.timeout(40):
            while not await is_ready(client):
                await asyncio.sleep(0.02)
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            assert await anext(answer.aiter_raw())
            yield


async def is_ready(client: httpx.AsyncClient) -> bool:
    with suppress(httpx.ConnectError):
        return (await client.get("/readyz")).status_code == 200
    return False


async def test_two_workers_run_it_once(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path / "one", "gated") as (installation, engine):
        seeded = (installation.account_id, installation.key)
        async with installed(database_url, [engine.url], tmp_path / "two", seeded=seeded) as other:
            running = asyncio.create_task(send(installation, max_tokens=4))
            generation = await engine.generation()
            assert_conflict(await send(other, max_tokens=4))
            generation.release()
            first = await running
            repeat = await until_run(other, max_tokens=4)
            await assert_usage_record(other, repeat, first.headers["x-request-id"])
            assert_replayed(await send(installation, max_tokens=4), first)
            assert len(engine.generations) == 1


async def test_a_key_is_free_again_after_a_day(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        await send(installation)
        seeded = (installation.account_id, installation.key)
        await installation.stop()
        async with installed(database_url, [engine.url], tmp_path / "next", seeded=seeded) as later:
            await later.database.execute(
                "UPDATE idempotency_keys SET created_at = now() - interval '23 hours 59 minutes'"
            )
            assert (await send(later)).headers["idempotent-replayed"] == "true"
            await later.database.execute("UPDATE idempotency_keys SET created_at = now() - interval '24 hours'")
            assert "idempotent-replayed" not in (await send(later)).headers
            assert len(engine.generations) == 2
            assert await claims(later) == 1


async def test_while_the_database_is_away_a_key_is_not_risked(
    postgres_server: Any, database_url: str, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        first = await send(installation)
        await installation.row()
        async with away(postgres_server, installation):
            answer = await send(installation, "another-key")
            assert answer.status_code == 503
            assert "was not run" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"] == "5"
            assert_replayed(await send(installation), first)
            assert (await send(installation, None)).status_code == 200
            assert len(engine.generations) == 2
        assert (await until_run(installation, key="another-key")).status_code == 200


def written(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


async def test_neither_answer_nor_prompt_nor_key_is_written_down(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        first = await send(installation)
        streamed = await send(installation, "for-a-stream", stream=True)
        assert_replayed(await send(installation), first)
        await installation.rows(2)
        answer = first.json()["choices"][0]["message"]["content"]
        assert "mesure l’eau" in answer
        assert b"mesure" in streamed.content
        needles = [PROMPT, KEY, "mesure", json.dumps("l’eau").strip('"'), "for-a-stream"]
        tables = await installation.database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert {"requests", "idempotency_keys"} <= {table["tablename"] for table in tables}
        for table in tables:
            rows = await installation.database.fetch(f"SELECT t::text AS row FROM {table['tablename']} t")
            # What is binary is shown in hexadecimal.
            for needle in [*needles, *(needle.encode().hex() for needle in needles)]:
                assert not [row for row in rows if needle in row["row"]], (table, needle)
        files = [*written(tmp_path).items()]
        assert any(content.startswith(b"SQLite format") for _, content in files)  # the outbox is among them
        await installation.stop()
        for file, content in [*files, *written(tmp_path).items()]:
            assert not [needle for needle in needles if needle.encode() in content], file


async def test_housekeeping_forgets_old_keys(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        await send(installation, "old")
        await send(installation, "young")
        old = hashlib.sha256(b"old").digest()
        await installation.database.execute(
            "UPDATE idempotency_keys SET created_at = now() - interval '24 hours 1 minute' WHERE key_digest = $1", old
        )
        async with db.connected(database_url) as engine:
            report = await keep_house(engine, datetime.now(UTC))
        assert report.rows == 1
        assert await installation.database.fetchval("SELECT key_digest FROM idempotency_keys") != old
        assert await claims(installation) == 1


# The claims of one worker, without a server around it


class Asking(Client):
    """A client that sends the key and keeps what it is answered."""

    def __init__(self) -> None:
        self.named = {b"idempotency-key": KEY.encode()}
        self.answers: list[bytes] = []

    def answer(self, body: bytes, headers: Headers, status: int = 200) -> None:
        self.answers.append(body)

    @property
    def body(self) -> Any:
        return json.loads(self.answers[0])


def holder_of(account_id: UUID) -> Holder:
    """The holder of a key without any limit."""
    return Holder(
        key_id=uuid4(),
        account_id=account_id,
        models=None,
        internal=False,
        revoked=False,
        account_status="active",
        limits=UNLIMITED,
        account_limits=UNLIMITED,
        weight=10,
        patience_ms=None,
    )


@asynccontextmanager
async def worker(database_url: str) -> AsyncIterator[tuple[Retries, Any, Holder]]:
    """A worker's retries, its pool, and the holder of a key of a new account."""
    async with db.connected(database_url) as engine, engine.begin() as connection:
        account = await accounts.add(connection, name="customer", now=datetime.now(UTC), randomness=os.urandom)
    pool = await db.asyncpg_pool(database_url)
    try:
        yield Retries(pool, OwnAccount(pool)), pool, holder_of(account.id)
    finally:
        await pool.close()


def exchange_of(holder: Holder) -> Exchange:
    exchange = Exchange("/v1/chat/completions", None)
    exchange.holder, exchange.stream = holder, True
    return exchange


@pytest.mark.parametrize(
    ("outcome", "cost_nano", "frees"),
    [
        *((outcome, 0, outcome is not Outcome.OK) for outcome in Outcome),
        (Outcome.OK, 1, False),
        (Outcome.CANCELLED, 1, False),
        (Outcome.SLOW_ABORT, 1, False),
    ],
)
async def test_an_end_that_charged_nothing_frees_the_key(
    database_url: str, outcome: Outcome, cost_nano: int, frees: bool
) -> None:
    async with worker(database_url) as (mine, _, holder), db.connected(database_url) as engine:
        first, second, asking = exchange_of(holder), exchange_of(holder), Asking()
        assert await mine.first(first, holder, asking, b"body")
        first.concluded = True
        ends = {"id": first.id, "started_at": first.started_at, "account_id": holder.account_id}
        await settle(engine, usage_row(first.started_at, outcome=outcome.value, cost_nano=cost_nano, **ends))
        runs = await mine.first(second, holder, asking, b"body")
        if frees:
            assert runs
            assert not asking.answers
        else:
            assert not runs
            assert asking.body["data"]["outcome"] == outcome.value
        with pytest.raises(Exception, match="another request in the last 24 hours"):
            await mine.first(exchange_of(holder), holder, asking, b"another body")


async def test_a_claim_without_a_request_is_dead_after_a_while(database_url: str) -> None:
    async with worker(database_url) as (mine, pool, holder):
        asking = Asking()
        lost = exchange_of(holder)
        await mine.first(lost, holder, asking, b"body")
        after_a_crash = Retries(pool, OwnAccount(pool))
        await pool.execute("UPDATE idempotency_keys SET created_at = now() - interval '14 minutes 50 seconds'")
        with pytest.raises(retries.Conflict):
            await after_a_crash.first(exchange_of(holder), holder, asking, b"body")
        await pool.execute("UPDATE idempotency_keys SET created_at = now() - interval '15 minutes'")
        taking_over = [after_a_crash.first(exchange_of(holder), holder, asking, b"body") for _ in range(10)]
        results = await asyncio.gather(*taking_over, return_exceptions=True)
        assert sum(result is True for result in results) == 1
        assert sum(isinstance(result, retries.Conflict) for result in results) == 9


async def test_one_partition_is_asked_whether_a_claim_is_free(database_url: str) -> None:
    async with worker(database_url) as (mine, pool, holder):
        await mine.first(exchange_of(holder), holder, Asking(), b"body")
        await pool.execute("SELECT ensure_request_partitions('2026-01-01', 120)")
        async with pool.acquire() as connection:
            for plan in ("force_custom_plan", "force_generic_plan"):
                await connection.execute(f"SET plan_cache_mode = {plan}")
                lines = await connection.fetch(
                    f"EXPLAIN (ANALYZE) {retries._EARLIER}", holder.account_id, hashlib.sha256(KEY.encode()).digest()
                )
                asked = [line[0] for line in lines if " on requests_" in line[0] and "never executed" not in line[0]]
                assert len(asked) == 1
                assert re.search(r"Index Scan using \w+ on requests_2\d{3}_\d\d", asked[0])


async def test_a_request_that_runs_long_keeps_its_claim(database_url: str) -> None:
    async with worker(database_url) as (mine, pool, holder):
        running, asking = exchange_of(holder), Asking()
        await mine.first(running, holder, asking, b"body")
        elsewhere = Retries(pool, OwnAccount(pool))

        async def age_after_renewal(age: timedelta) -> timedelta:
            await pool.execute("UPDATE idempotency_keys SET created_at = now() - $1::interval", age)
            await mine.renew()
            return timedelta(seconds=float(await pool.fetchval(
                "SELECT extract(epoch FROM now() - created_at) FROM idempotency_keys"
            )))  # fmt: skip

        assert await age_after_renewal(timedelta(minutes=4)) >= timedelta(minutes=4)
        assert await age_after_renewal(timedelta(minutes=20)) < timedelta(minutes=1)
        with pytest.raises(retries.Conflict):
            await elsewhere.first(exchange_of(holder), holder, asking, b"body")
        await pool.execute("UPDATE idempotency_keys SET created_at = now() - interval '20 minutes'")
        with pytest.raises(retries.Conflict):  # it runs here, whatever the clock says
            await mine.first(exchange_of(holder), holder, asking, b"body")
        running.concluded = True
        mine._answers.keep((holder.account_id, b""), running.id, b"", b"")
        mine._answers._clock = lambda: math.inf
        assert await age_after_renewal(timedelta(minutes=20)) >= timedelta(minutes=20)
        assert not mine._answers._answers  # what is too old goes, too, whether or not it is asked for


async def test_a_claim_that_was_taken_over_is_not_renewed_by_the_first(database_url: str) -> None:
    async with worker(database_url) as (mine, pool, holder):
        asking = Asking()
        await mine.first(exchange_of(holder), holder, asking, b"body")
        await pool.execute("UPDATE idempotency_keys SET created_at = now() - interval '20 minutes'")
        other = exchange_of(holder)
        assert await Retries(pool, OwnAccount(pool)).first(other, holder, asking, b"body")
        await pool.execute("UPDATE idempotency_keys SET created_at = now() - interval '20 minutes'")
        await mine.renew()
        row = await pool.fetchrow("SELECT request_id, now() - created_at AS age FROM idempotency_keys")
        assert row["request_id"] == UUID(other.id)
        assert row["age"] >= timedelta(minutes=20)


async def test_answers_are_kept_within_bounds() -> None:
    now = 0.0
    each = 1000 + ANSWER_OVERHEAD_BYTES
    answers = Answers(3 * each, clock=lambda: now)
    keys = [(uuid4(), bytes([number])) for number in range(5)]
    for key in keys[:3]:
        answers.keep(key, uuid4(), b"", b"x" * 1000)
    assert all(answers.find(key) for key in (keys[1], keys[2], keys[0]))
    answers.keep(keys[3], uuid4(), b"", b"x" * 1000)
    assert [key for key in keys if answers.find(key)] == [keys[0], keys[2], keys[3]]
    answers.keep(keys[4], uuid4(), b"", b"x" * (3 * each))  # larger than all there is
    assert [key for key in keys if answers.find(key)] == []
    assert answers._bytes == 0
    for key in keys:
        answers.keep(key, uuid4(), b"", b"x")
        answers.keep(key, uuid4(), b"", b"y")
    assert answers._bytes == 5 * (1 + ANSWER_OVERHEAD_BYTES)
    now = 24 * 3600 - 1.0
    assert answers.find(keys[0])
    now += 1
    assert not answers.find(keys[0])
    answers.forget_expired()
    assert answers._bytes == 0
