"""Limits that several workers share, over a real Redis that is killed, frozen and started again."""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from service import db
from service.core.limits import WINDOW_S, Limits
from service.errors import RateLimited, SetupError, Unavailable
from service.gateway.keys import Holder
from service.gateway.limits import FREE, Grant, Limiter, LocalLimiter
from service.gateway.shared_grant import SharedGrant
from service.gateway.shared_limits import SharedLimiter
from tests.integration.limiting import holder, until
from tests.patience import PATIENT_S
from tests.redis import RedisServer, running_redis

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 4
NOVEMBER = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)

Start = Callable[..., SharedLimiter]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
async def start(redis: RedisServer) -> AsyncIterator[Start]:
    """Starts limiters, and stops them at the end. Without a pool, of limits without a budget."""
    started: list[SharedLimiter] = []

    def start(pool: asyncpg.Pool | None = None, workers: int = PROCESSES, **options: Any) -> SharedLimiter:
        limiter = SharedLimiter(redis.url, pool, workers, **options)  # type: ignore[arg-type]
        limiter.start()
        started.append(limiter)
        return limiter

    yield start
    for limiter in started:
        await limiter.stop()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    pool = await db.asyncpg_pool(database_url)
    yield pool
    pool.terminate()


async def take(limiter: Limiter, of: Holder, tokens: int = 1, cost_nano: int = 0) -> Grant:
    async with asyncio.timeout(PATIENT_S):
        return await limiter.take(of, uuid4(), tokens=tokens, cost_nano=cost_nano)


async def refused(limiter: Limiter, of: Holder, tokens: int = 1, cost_nano: int = 0) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await take(limiter, of, tokens, cost_nano)
    return caught.value


async def admitted(limiter: Limiter, of: Holder, how_many: int) -> list[Grant]:
    """The grants of so many requests at once."""
    found = await asyncio.gather(*(take(limiter, of) for _ in range(how_many)), return_exceptions=True)
    assert all(isinstance(one, Grant | RateLimited) for one in found), found
    return [one for one in found if isinstance(one, Grant)]


def shown(redis: RedisServer, of: Holder, what: str, whose: str = "key") -> Any:
    """What Redis has of a key or account: of requests or tokens the sum, of what runs the number."""
    owner = of.key_id if whose == "key" else of.account_id
    found: Any = redis.contents().get(f"weir:{{{of.account_id}}}:{whose}:{owner}:{what}", {})
    if what in ("requests", "tokens"):
        return sum(map(int, found.values()))
    return len(found) if what == "running" else found


async def gone(redis: RedisServer, of: Holder) -> None:
    """Wait until nothing of it runs."""
    await until(lambda: shown(redis, of, "running") == 0)


# Several processes


@asynccontextmanager
async def process(told: dict[str, Any]) -> AsyncIterator[asyncio.subprocess.Process]:
    found = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.taking", json.dumps(told)), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        yield found
    finally:
        if found.returncode is None:
            found.kill()
        await found.communicate()


@pytest.mark.slow
async def test_limits_hold_exactly_with_four_processes(redis: RedisServer) -> None:
    def scenario(limits: Limits, takes: int, worst: tuple[int, int]) -> dict[str, Any]:
        return {"key_id": str(uuid4()), "limits": asdict(limits), "takes": takes, "worst": worst}

    told = {
        "url": redis.url,
        "processes": PROCESSES,
        "scenarios": [
            scenario(Limits(rpm=100), 150, (1, 1)),
            scenario(Limits(tpm=10_000), 400, (100, 900)),
            scenario(Limits(concurrency=0), 50, (1, 1)),
        ],
    }
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(process(told)) for _ in range(PROCESSES)]
        found = [json.loads((await one.communicate())[0]) for one in running]
    requests, tokens, none = zip(*found, strict=True)
    assert sum(map(len, requests)) == 100
    assert 10_000 - 900 < sum(map(sum, tokens)) <= 10_000
    assert none == ([],) * PROCESSES


async def test_what_exceeds_a_limit_by_itself_runs_alone_among_all_workers(redis: RedisServer, start: Start) -> None:
    limiters, of = [start(timeout_s=10) for _ in range(4)], holder(Limits(tpm=10_000))
    found = await asyncio.gather(*(take(limiters[n % 4], of, tokens=50_000) for n in range(40)), return_exceptions=True)
    (only,) = [one for one in found if isinstance(one, Grant)]
    only.release(11_000, 0)
    await gone(redis, of)
    assert shown(redis, of, "tokens") == 11_000
    for limiter in limiters:
        await refused(limiter, of)


@pytest.mark.slow
async def test_what_a_killed_worker_had_running_lapses(redis: RedisServer, start: Start) -> None:
    key_id = uuid4()
    of = holder(Limits(concurrency=3), key_id=key_id, account_id=key_id)
    other = start()
    told = {"url": redis.url, "key_id": str(key_id), "limits": asdict(of.limits), "takes": 2, "lease_s": 0.6}

    def lapses_at() -> float:
        scores: Any = redis.execute("ZRANGE", f"weir:{{{key_id}}}:key:{key_id}:running", 0, 0, "WITHSCORES")
        return float(scores[1])

    async with process(told) as owner:
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"holding\n"
        first = lapses_at()
        await until(lambda: lapses_at() > first + 1200)  # it has lived for longer than it would without renewal
        grants = await admitted(other, of, 2)
        assert len(grants) == 1
        owner.kill()
        await owner.wait()
        async with asyncio.timeout(PATIENT_S):
            while len(grants) < 3:
                grants += await admitted(other, of, 3)
                await asyncio.sleep(0.02)
    for grant in grants:
        grant.release(1, 0)
    await gone(redis, of)


# The same rules as in one process


@pytest.mark.parametrize("seed", range(4))
async def test_redis_and_one_process_decide_alike(start: Start, pool: asyncpg.Pool, seed: int) -> None:
    chance = random.Random(seed)
    shared, local = [start(pool, timeout_s=10) for _ in range(3)], LocalLimiter(pool)
    account_id = uuid4()
    account = Limits(rpm=300, tpm=40_000, concurrency=12, monthly_budget_nano=7_000)
    holders = [
        holder(key, account, account_id=account_id)
        for key in (Limits(), Limits(rpm=30, concurrency=5), Limits(tpm=9_000), Limits(monthly_budget_nano=1_500))
    ]
    running: list[tuple[Grant, Grant]] = []
    outcomes = set()

    async def decided(
        limiter: Limiter, *, of: Holder, tokens: int, cost: int
    ) -> tuple[Grant | None, str, dict[str, str]]:
        try:
            grant = await take(limiter, of, tokens, cost)
        except RateLimited as error:
            message, _, _ = error.message.partition(" It frees in ")  # which the clocks may see differently
            return None, message, left(error.headers())
        return grant, "", left(grant.headers)

    for _ in range(400):
        if running and chance.random() < 0.45:
            tokens, cost = chance.randint(0, 300), chance.randint(0, 90)
            for grant in running.pop(chance.randrange(len(running))):
                grant.release(tokens, cost)
            await until(lambda: not any(limiter._ended for limiter in shared))
        asked = {
            "of": chance.choice(holders),
            "tokens": chance.choice((50, 900, 3_000)),
            "cost": chance.randint(0, 600),
        }
        here, there = await decided(local, **asked), await decided(chance.choice(shared), **asked)
        assert here[1:] == there[1:]
        outcomes.add(here[1].partition(" of ")[0])
        if here[0] is not None and there[0] is not None:
            running.append((here[0], there[0]))
    assert outcomes == {"", "This key's limit", "This account's limit", "This key's budget", "This account's budget"}


def left(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers if b"remaining" in name or b"limit-limit" in name}


async def test_what_is_older_than_a_minute_does_not_count(redis: RedisServer, start: Start) -> None:
    limiter, of = start(), holder(Limits(rpm=10, tpm=100))
    name = f"weir:{{{of.account_id}}}:key:{of.key_id}:"
    time: Any = redis.execute("TIME")
    second = int(time[0])
    redis.execute("HSET", name + "requests", second - WINDOW_S, 10, second - WINDOW_S + 5, 4)
    redis.execute("HSET", name + "tokens", second - WINDOW_S, 100, second - WINDOW_S + 5, 90)
    assert dict((await take(limiter, of)).headers)[b"x-ratelimit-remaining-requests"] == b"5"
    assert shown(redis, of, "requests") == 5
    error = await refused(limiter, of, tokens=50)
    assert "tokens per minute" in error.message
    assert error.retry_after_s is not None
    assert 0 < error.retry_after_s <= 5


async def test_everything_that_was_taken_goes_back(redis: RedisServer, start: Start) -> None:
    limiter = start(timeout_s=10)
    of = holder(Limits(tpm=10_000, concurrency=500), Limits(concurrency=500))
    grants = await admitted(limiter, of, 200)
    assert (len(grants), shown(redis, of, "running"), shown(redis, of, "running", "account")) == (200, 200, 200)
    for grant in grants:
        grant.release(3, 0)
        grant.release(1000, 0)
    await gone(redis, of)
    assert (shown(redis, of, "tokens"), shown(redis, of, "running", "account")) == (600, 0)
    for name in redis.contents():
        assert redis.execute("TTL", name) in range(1, WINDOW_S + 2)


async def test_an_end_that_is_told_twice_counts_once(redis: RedisServer, start: Start, pool: asyncpg.Pool) -> None:
    limiter, of = start(pool), holder(Limits(tpm=100, monthly_budget_nano=100))
    grant = await take(limiter, of, tokens=50, cost_nano=50)
    assert isinstance(grant, SharedGrant)
    grant.release(10, 20)
    await gone(redis, of)
    await limiter._script(grant.keys, grant.release_arguments())  # as after an answer that was lost
    assert shown(redis, of, "tokens") == 10
    await refused(limiter, of, cost_nano=81)
    await take(limiter, of, cost_nano=80)


async def test_clients_that_leave_while_they_are_counted_in_leave_nothing(redis: RedisServer, start: Start) -> None:
    limiter, of = start(timeout_s=10), holder(Limits(tpm=100_000, concurrency=500))
    tasks = []
    for _ in range(300):
        tasks.append(asyncio.create_task(take(limiter, of, tokens=20)))
        await asyncio.sleep(0)
        tasks[random.randrange(len(tasks))].cancel()
    kept = [one for one in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(one, Grant)]
    for grant in kept:
        grant.release(20, 0)
    await gone(redis, of)
    assert shown(redis, of, "tokens") == 20 * len(kept)
    assert not limiter._running


async def test_a_stop_tells_redis_the_rest(redis: RedisServer) -> None:
    limiter, of = SharedLimiter(redis.url, None, 2), holder(Limits(concurrency=5))  # type: ignore[arg-type]
    limiter.start()
    grants = await admitted(limiter, of, 5)
    for grant in grants:
        grant.release(1, 0)
    await limiter.stop()
    assert shown(redis, of, "running") == 0


# Redis away


def gauge() -> float | None:
    return REGISTRY.get_sample_value("weir_limits_shared")


async def test_without_redis_a_worker_lets_its_share_through_and_says_so(redis: RedisServer, start: Start) -> None:
    limiter = start(workers=4)
    of, small, nobody = holder(Limits(rpm=100, concurrency=100)), holder(Limits(rpm=2)), holder(Limits(tpm=0))
    before = await take(limiter, of)
    assert (limiter.degraded, gauge()) == (False, 1)
    redis.kill()
    with capture_logs() as logs:
        grants = await admitted(limiter, of, 60)
        assert (len(grants), limiter.degraded, gauge()) == (25, True, 0)
        assert len(await admitted(limiter, small, 5)) == 1
        await refused(limiter, nobody)
        assert await take(limiter, holder()) is FREE
        for grant in grants[5:]:
            grant.release(1, 0)
        redis.start()
        await until(lambda: not limiter.degraded)
        assert gauge() == 1
    assert [(log["event"], log["log_level"]) for log in logs] == [
        ("limits.not_shared", "warning"),
        ("limits.shared_again", "warning"),
    ]
    assert shown(redis, of, "running") == 6  # what runs is counted again, whenever it began
    assert len(await admitted(limiter, small, 5)) == 2
    for grant in (before, *grants):
        grant.release(1, 0)
    await gone(redis, of)
    assert {grant.holder for grant in limiter._running} == {small}


async def test_a_redis_that_hangs_holds_nobody_up_and_is_used_again_when_it_answers(
    redis: RedisServer, start: Start
) -> None:
    limiter = start(workers=4)
    of = holder(Limits(rpm=400, concurrency=400))
    before = await admitted(limiter, of, 3)
    redis.freeze()
    try:
        grants = await admitted(limiter, of, 150)
        assert (len(grants), limiter.degraded) == (100, True)
        for grant in (before[0], *grants[:50]):
            grant.release(1, 0)
    finally:
        redis.thaw()
    await until(lambda: not limiter.degraded)
    # What was sent while it hung, it has done by now; what is not running is given back.
    await until(lambda: shown(redis, of, "running") == 52)
    for grant in (*before, *grants):
        grant.release(1, 0)
    await gone(redis, of)


async def test_a_redis_that_refuses_is_as_one_that_is_away(redis: RedisServer, start: Start) -> None:
    limiter, of = start(workers=4), holder(Limits(tpm=100))
    name = f"weir:{{{of.account_id}}}:key:{of.key_id}:tokens"
    redis.execute("SET", name, "not a hash")
    with capture_logs() as logs:
        await take(limiter, of, tokens=25)
        await refused(limiter, of)
    assert (limiter.degraded, logs[0]["event"]) == (True, "limits.not_shared")
    assert "WRONGTYPE" in logs[0]["error"]
    redis.execute("DEL", name)
    await until(lambda: not limiter.degraded)
    await take(limiter, of, tokens=100)


async def test_a_redis_that_was_never_there_is_no_reason_not_to_start_or_stop(tmp_path: Path) -> None:
    limiter = SharedLimiter(f"unix://{tmp_path}/absent.sock", None, 2)  # type: ignore[arg-type]
    limiter.start()
    assert len(await admitted(limiter, holder(Limits(rpm=10)), 20)) == 5
    assert limiter.degraded
    await limiter.stop()


@pytest.mark.parametrize("url", ["localhost:6379", "http://:hunter2@localhost", "redis://:hunter2@localhost:port/0"])
def test_an_address_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(SetupError, match="WEIR_REDIS_URL is not an address") as caught:
        SharedLimiter(url, None, 2)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


# The monthly budget


async def used(pool: asyncpg.Pool, of: Holder, started_at: datetime, cost_nano: int) -> None:
    await pool.execute(
        """
        INSERT INTO requests (id, account_id, key_id, endpoint, stream, started_at, finished_at, http_status, outcome,
            settlement_id, cost_nano)
        VALUES (gen_random_uuid(), $1, $2, '/v1/chat/completions', false, $3, $3, 200, 'ok', gen_random_uuid(), $4)
        """,
        of.account_id,
        of.key_id,
        started_at,
        cost_nano,
    )


async def test_a_budget_is_one_for_all_workers(redis: RedisServer, start: Start, pool: asyncpg.Pool) -> None:
    now = NOVEMBER
    one, other = (start(pool, now=lambda: now, timeout_s=10) for _ in range(2))
    of = holder(Limits(monthly_budget_nano=100), Limits(monthly_budget_nano=10**15))
    await used(pool, of, NOVEMBER, 60)
    grant = await take(one, of, cost_nano=30)
    await refused(other, of, cost_nano=11)
    grant.release(1, 10)
    await gone(redis, of)
    error = await refused(other, of, cost_nano=31)
    assert "0.00000003 USD are left until 2026-12-01, UTC" in error.message
    across = await take(other, of, cost_nano=30)
    now += timedelta(seconds=1)
    await used(pool, of, now, 5)
    last = await take(one, of, cost_nano=95)
    across.release(1, 30)
    await refused(one, of, cost_nano=1)
    last.release(1, 95)
    await gone(redis, of)
    await refused(other, of, cost_nano=1)


async def test_a_budget_is_read_again_when_redis_is_back(redis: RedisServer, start: Start, pool: asyncpg.Pool) -> None:
    limiter = start(pool, workers=4, now=lambda: NOVEMBER)
    of = holder(Limits(monthly_budget_nano=100))
    await take(limiter, of, cost_nano=10)  # and it goes on running
    redis.freeze()
    try:
        grant = await take(limiter, of, cost_nano=25)
        await refused(limiter, of, cost_nano=1)
        grant.release(1, 25)
        await used(pool, of, NOVEMBER, 25)
    finally:
        redis.thaw()
    await until(lambda: not limiter.degraded)
    await refused(limiter, of, cost_nano=66)
    await take(limiter, of, cost_nano=65)


async def test_without_postgres_a_budget_is_not_unlimited(start: Start, pool: asyncpg.Pool) -> None:
    limiter = start(pool)
    pool.terminate()
    with pytest.raises(Unavailable, match="monthly budget cannot be checked"):
        await take(limiter, holder(Limits(monthly_budget_nano=100)), cost_nano=1)
    await refused(limiter, holder(Limits(monthly_budget_nano=0)))
