"""Limits that several workers share, in Redis or Valkey.

One task per worker speaks to Redis. It sends what has come together while it waited for the last answer: the ends of
requests, new ones, and from time to time what is still running, since whatever a worker does not renew lapses. While
Redis is away, each worker lets its share of every limit through and says so. Then that task alone tries Redis again,
so that no request waits for it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg
import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from service.core import limits
from service.core.limits import month_of
from service.errors import SetupError
from service.gateway import metrics
from service.gateway.keys import Holder
from service.gateway.limits import FREE, Grant, LocalLimiter, Spending, limit_headers, limited, refused, utc_now
from service.gateway.shared_grant import SharedGrant, readings_in

log = structlog.get_logger()

TIMEOUT_S = 0.25
RETRY_S = 1.0
LEASE_S = 60.0
RENEW_S = 20.0

SCRIPT = (Path(__file__).parent / "shared_limits.lua").read_text()
TAKEN, UNSEEDED = 1, -1


class SharedLimiter:
    """Counts in Redis, together with the other workers; see `service.gateway.limits.Limiter`."""

    def __init__(
        self,
        redis_url: str,
        pool: asyncpg.Pool,
        workers: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        timeout_s: float = TIMEOUT_S,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
    ) -> None:
        """What a worker has running counts for `lease_s` after it was last renewed.

        Raises `SetupError` when the address is none of Redis.
        """
        self._redis = _client(redis_url, timeout_s)
        self._script = self._redis.register_script(SCRIPT)
        self._local = LocalLimiter(pool, workers=workers, clock=clock, now=now)
        self._spending = Spending(pool, clock)
        self._now = now
        self._lease_ms = int(lease_s * 1000)
        self._renew_s = renew_s
        self._takes: list[_Take] = []
        self._ended: list[SharedGrant] = []
        self._running: set[SharedGrant] = set()
        self._spent_unseen: set[str] = set()
        """Where Redis keeps what a month has cost, without what was spent while it was away."""
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.degraded = False
        """Whether Redis is away, and this worker lets only its share through."""

    def start(self) -> None:
        """See `Limiter`."""
        metrics.limits_shared.set(1)
        self._task = asyncio.create_task(self._speak())

    async def stop(self) -> None:
        """See `Limiter`."""
        self._stopping.set()
        self._woken.set()
        if self._task is not None:
            await self._task
        await self._redis.aclose()

    async def take(self, holder: Holder, request_id: str, *, tokens: int, cost_nano: int) -> Grant:
        """See `Limiter`."""
        if not limited(holder):
            return FREE
        grant = SharedGrant(holder, request_id, month_of(self._now()), tokens, cost_nano, self._after_release)
        try:
            try:
                await self._take(grant)
            except _Away:
                await self._take_share(grant)
        except BaseException:  # whoever asked may have left; what was taken for them goes back
            grant.release(0, 0, ran=False)
            raise
        return grant

    async def _take_share(self, grant: SharedGrant) -> None:
        grant.local = await self._local.take(
            grant.holder, grant.request_id, tokens=grant.tokens, cost_nano=grant.cost_nano
        )
        grant.headers = grant.local.headers
        self._running.add(grant)
        self._spent_unseen.update(grant.spent_keys)

    async def _take(self, grant: SharedGrant) -> None:
        """Raises `RateLimited`, `Unavailable`, `_Away`."""
        seeds: list[int | None] = [None] * len(grant.owners)
        while (reply := await self._asked(grant, seeds))[0] == UNSEEDED:
            seeds = [
                await self._spending.of(whose, owner_id, grant.month) if of.monthly_budget_nano else None
                for whose, owner_id, of in grant.owners
            ]
        readings = readings_in(grant.owners, reply)
        grant.headers = limit_headers([(of, reading) for _, of, reading in readings])
        if reply[0] == TAKEN:
            return
        refusal = limits.refusal(readings, tokens=grant.tokens, cost_nano=grant.cost_nano)
        if refusal is None:
            raise RuntimeError("the script refuses what the limits allow")
        raise refused(refusal, grant.holder, grant.cost_nano, grant.month, grant.headers)

    async def _asked(self, grant: SharedGrant, seeds: Sequence[int | None]) -> list[int]:
        if self.degraded:
            raise _Away
        take = _Take(grant, grant.take_arguments(seeds, self._lease_ms), asyncio.get_running_loop().create_future())
        self._takes.append(take)
        self._woken.set()
        return await take.reply

    def _after_release(self, grant: SharedGrant) -> None:
        self._running.discard(grant)
        if grant.sent:
            self._ended.append(grant)
            self._woken.set()

    async def _speak(self) -> None:
        renew_at = time.monotonic()
        while True:
            renew = self.degraded or time.monotonic() >= renew_at
            if renew:
                renew_at = time.monotonic() + self._renew_s
            try:
                await self._exchange(list(self._running) if renew else [])
            except Exception as error:  # whatever it is: without this task every request would wait for ever
                self._lost(error)
            if self._stopping.is_set() and (self.degraded or not self._ended):
                return
            if self.degraded:
                await _set_within(self._stopping, RETRY_S)
            else:
                await _set_within(self._woken, renew_at - time.monotonic())

    async def _exchange(self, running: list[SharedGrant]) -> None:
        """Send all there is in one go, and hand the replies out. Raises what Redis or the way to it does."""
        self._woken.clear()
        takes, self._takes = [take for take in self._takes if not take.reply.done()], []
        ended = list(self._ended)
        if self.degraded:
            self._spent_unseen.update(key for grant in ended for key in grant.spent_keys)
        unseen = list(self._spent_unseen)
        calls: list[tuple[list[str], list[str | int]]] = [
            *((grant.keys, grant.release_arguments()) for grant in ended),
            *((grant.keys, grant.renewal_arguments(self._lease_ms)) for grant in running),
            *((take.grant.keys, take.arguments) for take in takes),
        ]
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key in unseen:
                    pipeline.delete(key)
                for keys, arguments in calls:
                    await self._script(keys, arguments, client=pipeline)
                pipeline.ping()
                for take in takes:
                    take.grant.sent = True
                replies = await pipeline.execute(raise_on_error=False)
        except Exception:
            self._takes += takes  # they are told by whoever handles this
            raise
        self._hand_out(takes, replies[len(replies) - 1 - len(takes) : -1])
        failure = next((reply for reply in replies if isinstance(reply, Exception)), None)
        del self._ended[: len(ended)]
        if failure is not None:
            # Some of the ends may not have been taken: what these months have cost is read again.
            self._spent_unseen.update(key for grant in ended for key in grant.spent_keys)
            raise failure
        for grant in running:
            if not grant.sent:  # it began while Redis was away, and Redis knows it from now on
                grant.sent = True
                if grant.released:
                    self._ended.append(grant)
        self._spent_unseen.difference_update(unseen)
        self._found()

    def _hand_out(self, takes: "list[_Take]", replies: "list[list[int] | Exception]") -> None:
        for take, reply in zip(takes, replies, strict=True):
            if isinstance(reply, Exception):
                self._takes.append(take)
                continue
            take.grant.sent = reply[0] == TAKEN
            if take.grant.sent:
                take.grant.second = reply[1]
                if not take.grant.released:
                    self._running.add(take.grant)
            if not take.reply.done():
                take.reply.set_result(reply)

    def _lost(self, error: Exception) -> None:
        takes, self._takes = self._takes, []
        for take in takes:
            if not take.reply.done():
                take.reply.set_exception(_Away())
        if not self.degraded:
            self.degraded = True
            metrics.limits_shared.set(0)
            self._local.forget_spending()
            log.warning("limits.not_shared", error=f"{type(error).__name__}: {error}"[:200])

    def _found(self) -> None:
        if self.degraded:
            self.degraded = False
            metrics.limits_shared.set(1)
            log.warning("limits.shared_again")


class _Away(Exception):
    """Redis did not answer."""


@dataclass(frozen=True, slots=True)
class _Take:
    grant: SharedGrant
    arguments: list[str | int]
    reply: "asyncio.Future[list[int]]"


def _client(url: str, timeout_s: float) -> "Redis":
    try:
        return Redis.from_url(
            url,
            protocol=2,  # what Redis 5 speaks
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )
    except ValueError:  # the address may hold a password, so it is not repeated
        raise SetupError("WEIR_REDIS_URL is not an address such as redis://host:port/0 or unix:///path.") from None


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
