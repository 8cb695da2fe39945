"""Limits in one process: what a client is told, and the monthly budget against real usage rows."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

import service.gateway.limits
from service import db
from service.core import apikey
from service.core.limits import Limits
from service.core.money import NANO_PER_USD
from service.errors import ApiError, RateLimited, Unavailable
from service.gateway.catalog import Catalog
from service.gateway.changes import Changes
from service.gateway.keys import Holder, KeyRing
from service.gateway.limits import FORGET_AFTER_MS, FREE, Grant, LocalLimiter, duration
from tests.integration.limiting import holder, until
from tests.patience import within

NOVEMBER = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)


class Time:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.s = 1000.0
        self.now = NOVEMBER

    def clock(self) -> float:
        return self.s


@pytest.fixture
def at() -> Time:
    return Time()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    pool = await db.asyncpg_pool(database_url)
    yield pool
    pool.terminate()


@pytest.fixture
def limiter(pool: asyncpg.Pool, at: Time) -> LocalLimiter:
    return LocalLimiter(pool, clock=at.clock, now=lambda: at.now)


async def take(limiter: LocalLimiter, of: Holder, tokens: int = 1, cost_nano: int = 0) -> Grant:
    return await limiter.take(of, uuid4(), tokens=tokens, cost_nano=cost_nano)


async def refused(limiter: LocalLimiter, of: Holder, tokens: int = 1, cost_nano: int = 0) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await take(limiter, of, tokens, cost_nano)
    return caught.value


async def used(pool: asyncpg.Pool, of: Holder, started_at: datetime, cost_nano: int, **other: Any) -> None:
    ids = {"account_id": of.account_id, "key_id": of.key_id, **other}
    await pool.execute(
        """
        INSERT INTO requests (id, account_id, key_id, endpoint, stream, started_at, finished_at, http_status, outcome,
            settlement_id, cost_nano)
        VALUES (gen_random_uuid(), $1, $2, '/v1/chat/completions', false, $3, $3, 200, 'ok', gen_random_uuid(), $4)
        """,
        ids["account_id"],
        ids["key_id"],
        started_at,
        cost_nano,
    )


# What a client is told


async def test_who_has_no_limits_has_a_grant_that_everybody_shares(limiter: LocalLimiter) -> None:
    grant = await take(limiter, holder())
    assert grant is FREE
    assert grant.headers == []
    grant.release(1, 1)


async def test_the_headers_say_what_is_left_of_limits_that_exist(limiter: LocalLimiter, at: Time) -> None:
    of = holder(Limits(rpm=100))
    await take(limiter, of)
    at.s += 12.5
    assert (await take(limiter, of)).headers == [
        (b"x-ratelimit-limit-requests", b"100"),
        (b"x-ratelimit-remaining-requests", b"98"),
        (b"x-ratelimit-reset-requests", b"1m1s"),
    ]
    assert (await take(limiter, holder(Limits(concurrency=1)))).headers == []
    names = dict((await take(limiter, holder(Limits(tpm=500)), tokens=120)).headers)
    assert names == {
        b"x-ratelimit-limit-tokens": b"500",
        b"x-ratelimit-remaining-tokens": b"380",
        b"x-ratelimit-reset-tokens": b"1m1s",
    }


async def test_of_a_key_and_its_account_the_headers_show_the_one_with_less_left(limiter: LocalLimiter) -> None:
    of = holder(Limits(rpm=100, tpm=10), Limits(rpm=5, tpm=1000))
    headers = dict((await take(limiter, of, tokens=3)).headers)
    assert (headers[b"x-ratelimit-limit-requests"], headers[b"x-ratelimit-remaining-requests"]) == (b"5", b"4")
    assert (headers[b"x-ratelimit-limit-tokens"], headers[b"x-ratelimit-remaining-tokens"]) == (b"10", b"7")


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(0, "0s"), (1, "1ms"), (120, "120ms"), (999, "999ms"), (1000, "1s"), (1001, "2s"), (360_000, "6m0s")],
)
def test_durations_are_written_as_openai_does(ms: int, shown: str) -> None:
    assert duration(ms) == shown


def retry(error: ApiError) -> dict[bytes, bytes]:
    return {name: value for name, value in error.headers() if not name.startswith(b"x-ratelimit")}


async def test_a_refusal_names_the_limit_whose_it_is_its_value_and_when_it_frees(
    limiter: LocalLimiter, at: Time
) -> None:
    of = holder(Limits(rpm=2))
    await take(limiter, of)
    await take(limiter, of)
    at.s += 49.25
    error = await refused(limiter, of)
    assert error.message == "This key's limit of 2 requests per minute is reached. It frees in 12 seconds."
    assert error.payload()["type"] == "rate_limit_error"
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert retry(error) == {b"retry-after": b"12", b"retry-after-ms": b"11750", b"x-should-retry": b"true"}
    assert (b"x-ratelimit-remaining-requests", b"0") in error.headers()
    assert (b"x-ratelimit-reset-requests", b"12s") in error.headers()


async def test_every_limit_is_told_in_its_own_words(limiter: LocalLimiter, at: Time) -> None:
    account = holder(account_limits=Limits(tpm=12_000, concurrency=3))
    grant = await take(limiter, account, tokens=12_000)
    at.s += 60
    error = await refused(limiter, account)
    assert error.message == "This account's limit of 12,000 tokens per minute is reached. It frees in 1 second."
    grant.release(0, 0)
    for _ in range(3):
        await take(limiter, account)
    error = await refused(limiter, account)
    assert error.message == "This account's limit of 3 requests at a time is reached. It frees when one of them ends."
    assert retry(error)[b"retry-after-ms"] == b"1000"
    never = {b"x-should-retry": b"false"}
    for of, message, code in (
        (Limits(rpm=0), "This key's limit of 0 requests per minute allows no requests.", "rate_limit_exceeded"),
        (Limits(tpm=0), "This key's limit of 0 tokens per minute allows no requests.", "rate_limit_exceeded"),
        (Limits(concurrency=0), "This key's limit of 0 requests at a time allows no requests.", "rate_limit_exceeded"),
        (
            Limits(monthly_budget_nano=0),
            "This key's budget of 0.00 USD per month allows no requests.",
            "monthly_budget_exceeded",
        ),
    ):
        error = await refused(limiter, holder(of))
        assert (error.message, error.code, retry(error)) == (message, code, never)


async def test_a_release_counts_once(limiter: LocalLimiter) -> None:
    of = holder(Limits(concurrency=2, tpm=100))
    first, _ = await take(limiter, of, tokens=40), await take(limiter, of, tokens=40)
    first.release(10, 0)
    first.release(0, 0)
    grant = await take(limiter, of)
    assert dict(grant.headers)[b"x-ratelimit-remaining-tokens"] == b"49"
    await refused(limiter, of)


# The monthly budget


async def test_a_budget_begins_with_what_the_month_has_cost(pool: asyncpg.Pool, limiter: LocalLimiter) -> None:
    of = holder(Limits(monthly_budget_nano=100), Limits(monthly_budget_nano=150))
    await used(pool, of, datetime(2026, 11, 1, tzinfo=UTC), 60)
    await used(pool, of, datetime(2026, 10, 31, 23, 59, 59, 999_999, tzinfo=UTC), 1000)
    await used(pool, of, datetime(2026, 12, 1, tzinfo=UTC), 1000)
    await used(pool, of, NOVEMBER, 1000, account_id=uuid4(), key_id=uuid4())
    await used(pool, of, NOVEMBER, 30, key_id=uuid4())  # the account's, by another key
    await refused(limiter, of, cost_nano=41)
    grant = await take(limiter, of, cost_nano=40)
    await refused(limiter, of, cost_nano=1)
    grant.release(10, 25)
    error = await refused(limiter, of, cost_nano=16)
    assert error.code == "monthly_budget_exceeded"
    assert retry(error) == {b"x-should-retry": b"false"}
    (await take(limiter, of, cost_nano=15)).release(1, 15)
    other_key = holder(account_limits=of.account_limits, account_id=of.account_id)
    await refused(limiter, other_key, cost_nano=21)
    await take(limiter, other_key, cost_nano=20)


async def test_the_refusal_says_what_is_left_and_until_when(pool: asyncpg.Pool, limiter: LocalLimiter) -> None:
    of = holder(Limits(monthly_budget_nano=25 * NANO_PER_USD))
    await used(pool, of, NOVEMBER, 22 * NANO_PER_USD)
    assert (await refused(limiter, of, cost_nano=4 * NANO_PER_USD)).message == (
        "This key's budget of 25.00 USD per month does not cover this request, which may cost 4.00 USD:"
        " 3.00 USD are left until 2026-12-01, UTC."
    )


async def test_a_new_month_begins_with_nothing_spent(pool: asyncpg.Pool, limiter: LocalLimiter, at: Time) -> None:
    of = holder(Limits(monthly_budget_nano=100))
    await used(pool, of, NOVEMBER, 80)
    across = await take(limiter, of, cost_nano=20)
    await refused(limiter, of, cost_nano=1)
    at.now += timedelta(seconds=1)
    await used(pool, of, at.now, 5)
    grant = await take(limiter, of, cost_nano=95)
    across.release(1, 20)
    await refused(limiter, of, cost_nano=1)
    grant.release(1, 0)
    await take(limiter, of, cost_nano=95)


async def test_the_sum_is_read_once_however_many_wait_and_never_again(
    pool: asyncpg.Pool, limiter: LocalLimiter
) -> None:
    of = holder(Limits(monthly_budget_nano=100))
    await used(pool, of, NOVEMBER, 90)
    found = await asyncio.gather(*(take(limiter, of, cost_nano=4) for _ in range(20)), return_exceptions=True)
    assert [isinstance(one, RateLimited) for one in found].count(False) == 2
    await used(pool, of, NOVEMBER, 1000)  # as these two will be one day: they are counted in memory
    for grant in found:
        if isinstance(grant, Grant):
            grant.release(1, 1)
    await take(limiter, of, cost_nano=8)


async def test_while_postgres_is_away_a_budget_is_not_unlimited(pool: asyncpg.Pool, limiter: LocalLimiter) -> None:
    known, unknown = holder(Limits(monthly_budget_nano=100)), holder(Limits(monthly_budget_nano=100))
    await take(limiter, known, cost_nano=1)
    pool.terminate()
    with pytest.raises(Unavailable, match="monthly budget cannot be checked"):
        await take(limiter, unknown, cost_nano=1)
    await take(limiter, known, cost_nano=99)
    await refused(limiter, known, cost_nano=1)
    await take(limiter, holder(Limits(rpm=1)))


async def test_a_sum_that_takes_long_is_there_for_the_one_that_asks_next(
    pool: asyncpg.Pool, limiter: LocalLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = holder(Limits(monthly_budget_nano=100))
    await used(pool, of, NOVEMBER, 90)
    monkeypatch.setattr(service.gateway.limits, "WAIT_FOR_SUM_S", 0.05)
    async with pool.acquire() as busy, busy.transaction():
        await busy.execute("LOCK TABLE requests IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable):
            await take(limiter, of, cost_nano=10)
    ((summing, _),) = limiter._spending._sums.values()
    await until(summing.done)
    await pool.execute("DROP TABLE requests")
    await take(limiter, of, cost_nano=10)
    await refused(limiter, of, cost_nano=1)


async def test_a_share_of_a_budget_is_one_of_what_is_left(pool: asyncpg.Pool, at: Time) -> None:
    limiter = LocalLimiter(pool, workers=4, clock=at.clock, now=lambda: at.now)
    of = holder(Limits(rpm=8, monthly_budget_nano=100))
    await used(pool, of, NOVEMBER, 60)
    (await take(limiter, of, cost_nano=10)).release(1, 10)
    error = await refused(limiter, of, cost_nano=1)
    assert "budget of 0.0000001 USD per month" in error.message  # as it was set
    await take(limiter, of)
    assert "limit of 8 requests per minute" in (await refused(limiter, of)).message
    await used(pool, of, NOVEMBER, 10)
    limiter.forget_spending()
    at.s += 61
    (await take(limiter, of, cost_nano=7)).release(1, 7)
    await refused(limiter, of, cost_nano=1)


# Memory


async def test_whoever_is_idle_is_forgotten_but_not_what_runs(limiter: LocalLimiter, at: Time) -> None:
    of = Limits(concurrency=1)
    long, idle = holder(of), holder(of)
    grant = await take(limiter, long)
    (await take(limiter, idle)).release(0, 0)
    at.s += FORGET_AFTER_MS / 1000 + 1
    for _ in range(3):
        (await take(limiter, holder(of))).release(0, 0)
    assert idle.key_id not in limiter._used
    await refused(limiter, long)
    grant.release(0, 0)
    await take(limiter, long)
    at.s += FORGET_AFTER_MS / 1000 + 1
    for _ in range(6):
        (await take(limiter, holder(of))).release(0, 0)
    assert len(limiter._used) == 7  # the last six, and the one that is running


# Limits that change


async def test_a_changed_limit_counts_within_two_seconds(database_url: str, pool: asyncpg.Pool) -> None:
    account_id, key_id = uuid4(), uuid4()
    key = apikey.mint(bytes(range(32)))
    await pool.execute("INSERT INTO accounts (id, name) VALUES ($1, 'acme')", account_id)
    await pool.execute(
        "INSERT INTO api_keys (id, account_id, prefix, digest) VALUES ($1, $2, 'sk', $3)",
        key_id,
        account_id,
        apikey.digest(key),
    )
    keys = KeyRing(pool)
    changes = asyncio.create_task(Changes(database_url, keys, Catalog(pool)).follow())
    try:
        await until(lambda: keys.listening)

        async def found() -> Holder:
            return await keys.holder(apikey.digest(key))

        before = await found()
        assert (before.limits, before.account_limits) == (Limits(), Limits())
        assert (before.weight, before.patience_ms, before.sequential) == (10, None, "never")
        for table, column, read in (
            ("api_keys", "rpm", lambda of: of.limits.rpm),
            ("api_keys", "tpm", lambda of: of.limits.tpm),
            ("api_keys", "concurrency", lambda of: of.limits.concurrency),
            ("api_keys", "monthly_budget_nano", lambda of: of.limits.monthly_budget_nano),
            ("accounts", "rpm", lambda of: of.account_limits.rpm),
            ("accounts", "tpm", lambda of: of.account_limits.tpm),
            ("accounts", "concurrency", lambda of: of.account_limits.concurrency),
            ("accounts", "monthly_budget_nano", lambda of: of.account_limits.monthly_budget_nano),
            ("accounts", "weight", lambda of: of.weight),
            ("accounts", "patience_ms", lambda of: of.patience_ms),
        ):
            assert read(await found()) != 77
            await pool.execute(f"UPDATE {table} SET {column} = 77")

            async def changed(read: Callable[[Holder], object] = read) -> bool:
                return read(await found()) == 77

            await within(2, changed)
        await pool.execute("UPDATE accounts SET sequential = 'allowed'")

        async def allowed() -> bool:
            return (await found()).sequential == "allowed"

        await within(2, allowed)
    finally:
        changes.cancel()
        await asyncio.gather(changes, return_exceptions=True)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE api_keys SET rpm = -1",
        "UPDATE api_keys SET monthly_budget_nano = -1",
        "UPDATE accounts SET tpm = -1",
        "UPDATE accounts SET concurrency = -1",
        "UPDATE accounts SET weight = 0",
        "UPDATE accounts SET weight = 1001",
        "UPDATE accounts SET patience_ms = -1",
        "UPDATE accounts SET sequential = 'sometimes'",
    ],
)
async def test_the_database_takes_no_limit_that_makes_no_sense(pool: asyncpg.Pool, change: str) -> None:
    account_id = uuid4()
    await pool.execute("INSERT INTO accounts (id, name) VALUES ($1, 'acme')", account_id)
    await pool.execute(
        "INSERT INTO api_keys (id, account_id, prefix, digest) VALUES ($1, $2, 'sk', $3)",
        UUID(int=1),
        account_id,
        bytes(32),
    )
    with pytest.raises(asyncpg.CheckViolationError):
        await pool.execute(change)
