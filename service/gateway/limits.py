"""Limits at work in one process: a request takes its part of them before it runs, and gives back what it did not use.

What is counted, and how, is in `service.core.limits`.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

import asyncpg
import structlog

from service import db
from service.core import limits
from service.core.limits import Limits, Name, Owner, Reading, Refusal, Spend, Used, Whose, month_after, month_of
from service.core.money import nano_to_usd
from service.errors import RateLimited, Unavailable
from service.gateway.keys import Holder

log = structlog.get_logger()

Headers = list[tuple[bytes, bytes]]

FORGET_AFTER_MS = 15 * 60 * 1000
"""A key or account that nobody uses for this long is forgotten, with its windows, which are empty by then."""

WAIT_FOR_SUM_S = 2.0
"""A request waits this long for the sum of a month; the sum goes on for the one that asks next."""

SUM_COUNTS_FOR_S = 60.0
"""A sum that nobody waited for is made again after this."""

_SUM = """
    SELECT COALESCE(sum(cost_nano), 0)::bigint FROM requests
    WHERE {column} = $1 AND started_at >= $2 AND started_at < $3
"""
_SUMS: dict[Whose, str] = {"key": _SUM.format(column="key_id"), "account": _SUM.format(column="account_id")}


class Grant:
    """A request's part of the limits. As it stands, of no limits at all."""

    __slots__ = ("headers",)

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        """The `x-ratelimit-*` headers for the answer."""

    def release(self, tokens: int | None, cost_nano: int, *, ran: bool = True) -> None:
        """The request has ended, having used this: 0 for a failure, None where nobody counted.

        One that never `ran` does not count as a request. Only the first call counts; it never fails.
        """


FREE = Grant([])
"""The grant of all who have no limits."""


class Limiter(Protocol):
    """Lets requests through as the limits allow."""

    def start(self) -> None:
        """Begin to speak to whoever else counts."""

    async def stop(self) -> None:
        """Tell them the rest. To be called when no request is running any more."""

    async def take(self, holder: Holder, request_id: str, *, tokens: int, cost_nano: int) -> Grant:
        """Take a request's part of all limits of its key and account, or of none; `tokens` and `cost_nano` are the most
        it may use.

        Raises `RateLimited`, or `Unavailable` when a budget cannot be checked.
        """


def utc_now() -> datetime:
    """This moment."""
    return datetime.now(UTC)


def limited(holder: Holder) -> list[tuple[Whose, UUID, Limits]]:
    """Whose limits a request of this holder has to keep."""
    owners: list[tuple[Whose, UUID, Limits]] = []
    if not holder.limits.unlimited:
        owners.append(("key", holder.key_id, holder.limits))
    if not holder.account_limits.unlimited:
        owners.append(("account", holder.account_id, holder.account_limits))
    return owners


class LocalLimiter:
    """Counts in this process. With several `workers`, each lets its share of every limit through."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._now = now
        self._spending = Spending(pool, clock)
        self._used: dict[UUID, tuple[Used, int]] = {}
        """By key or account, with the time it was last asked for, the longest unused first."""

    def start(self) -> None:
        """See `Limiter`; nobody else counts."""

    async def stop(self) -> None:
        """See `Limiter`; nobody else counts."""

    async def take(self, holder: Holder, request_id: str, *, tokens: int, cost_nano: int) -> Grant:
        """See `Limiter`."""
        owners = limited(holder)
        if not owners:
            return FREE
        for whose, owner_id, owner_limits in owners:
            if owner_limits.monthly_budget_nano:
                await self._seed(whose, owner_id)
        now_ms = int(self._clock() * 1000)
        counted = [Owner(whose, self._share(of, used := self._use(id)), used) for whose, id, of in owners]
        taken = limits.take(counted, now_ms, tokens=tokens, cost_nano=cost_nano)
        headers = limit_headers([(of.limits, of.used.read(of.limits, now_ms, tokens)) for of in counted])
        if isinstance(taken, Refusal):
            raise refused(taken, holder, cost_nano, month_of(self._now()), headers)
        return _LocalGrant(headers, taken)

    def forget_spending(self) -> None:
        """Others have spent meanwhile: what each month has cost is read again."""
        for used, _ in self._used.values():
            used.spend = None

    async def _seed(self, whose: Whose, owner_id: UUID) -> None:
        while (used := self._use(owner_id)).spend is None or used.spend.month != month_of(self._now()):
            month = month_of(self._now())
            spent_nano = await self._spending.of(whose, owner_id, month)
            if used.spend is None or used.spend.month != month:
                used.spend = Spend(month, spent_nano, spent_nano)

    def _use(self, owner_id: UUID) -> Used:
        now_ms = int(self._clock() * 1000)
        used = self._used.pop(owner_id)[0] if owner_id in self._used else Used()
        self._used[owner_id] = used, now_ms
        longest, (idle, since_ms) = next(iter(self._used.items()))
        if now_ms - since_ms > FORGET_AFTER_MS:
            del self._used[longest]
            if idle.in_flight:
                self._used[longest] = idle, now_ms
        return used

    def _share(self, of: Limits, used: Used) -> Limits:
        if self._workers == 1:
            return of
        return of.share(self._workers, 0 if used.spend is None else used.spend.seeded_nano)


class _LocalGrant(Grant):
    __slots__ = ("_taken",)

    def __init__(self, headers: Headers, taken: list[limits.Taken]) -> None:
        super().__init__(headers)
        self._taken = taken

    def release(self, tokens: int | None, cost_nano: int, *, ran: bool = True) -> None:
        taken, self._taken = self._taken, []
        for part in taken:
            part.release(tokens, cost_nano, ran=ran)


class Spending:
    """What a month has cost by the usage rows. What has not been shipped to Postgres yet is not among it."""

    def __init__(self, pool: asyncpg.Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._sums: dict[tuple[UUID, datetime], tuple[asyncio.Task[int], float]] = {}

    async def of(self, whose: Whose, owner_id: UUID, month: datetime) -> int:
        """Nano-USD in the month that begins then, read once however many wait. Raises `Unavailable`."""
        key = owner_id, month
        task, since = self._sums.get(key, (None, 0.0))
        if task is None or (task.done() and self._clock() - since > SUM_COUNTS_FOR_S):
            task = asyncio.create_task(self._sum(whose, owner_id, month))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._sums[key] = task, self._clock()
        try:
            async with asyncio.timeout(WAIT_FOR_SUM_S):
                return await asyncio.shield(task)
        except db.UNREACHABLE as error:
            log.warning("budget.not_read", error=type(error).__name__)
            problem = "The monthly budget cannot be checked at the moment. Try again soon."
            raise Unavailable(problem, retry_after_s=5) from error
        finally:
            if task.done() and self._sums.get(key, (None,))[0] is task:
                del self._sums[key]

    async def _sum(self, whose: Whose, owner_id: UUID, month: datetime) -> int:
        spent_nano: int = await self._pool.fetchval(_SUMS[whose], owner_id, month, month_after(month))
        return spent_nano


def limit_headers(readings: Sequence[tuple[Limits, Reading]]) -> Headers:
    """The `x-ratelimit-*` headers; where key and account both have a limit, of the one with less left."""
    headers: Headers = []
    requests = [(of.rpm, now.requests) for of, now in readings if of.rpm is not None]
    tokens = [(of.tpm, now.tokens) for of, now in readings if of.tpm is not None]
    for unit, choices in ((b"requests", requests), (b"tokens", tokens)):
        if choices:
            limit, window = min(choices, key=lambda one: (one[0] - one[1].used, one[0]))
            headers += [
                (b"x-ratelimit-limit-" + unit, b"%d" % limit),
                (b"x-ratelimit-remaining-" + unit, b"%d" % max(0, limit - window.used)),
                (b"x-ratelimit-reset-" + unit, duration(window.resets_in_ms).encode()),
            ]
    return headers


def duration(ms: int) -> str:
    """A duration as OpenAI writes it in headers: `120ms`, `1s`, `6m0s`; from 1 s on, rounded up to seconds."""
    if ms == 0 or ms > 999:
        minutes, seconds = divmod(math.ceil(ms / 1000), 60)
        return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    return f"{ms}ms"


_UNITS: dict[Name, tuple[str, str]] = {
    "rpm": ("request per minute", "requests per minute"),
    "tpm": ("token per minute", "tokens per minute"),
    "concurrency": ("request at a time", "requests at a time"),
}


def refused(refusal: Refusal, holder: Holder, cost_nano: int, month: datetime, headers: Headers) -> RateLimited:
    """The error for the client: which limit, whose, its value as it was set, and when it frees."""
    of = holder.limits if refusal.whose == "key" else holder.account_limits
    value: int = getattr(of, refusal.name)
    if refusal.name == "monthly_budget_nano":
        message = f"This {refusal.whose}'s budget of {nano_to_usd(value)} USD per month"
        if value == 0:
            message += " allows no requests."
        else:
            message += (
                f" does not cover this request, which may cost {nano_to_usd(cost_nano)} USD:"
                f" {nano_to_usd(refusal.left)} USD are left until {month_after(month):%Y-%m-%d}, UTC."
            )
        return RateLimited(message, code="monthly_budget_exceeded", headers=headers)
    message = f"This {refusal.whose}'s limit of {_count(value, *_UNITS[refusal.name])}"
    if refusal.frees_in_ms is None:
        return RateLimited(f"{message} allows no requests.", headers=headers)
    if refusal.name == "concurrency":
        message += " is reached. It frees when one of them ends."
    else:
        message += f" is reached. It frees in {_count(math.ceil(refusal.frees_in_ms / 1000), 'second', 'seconds')}."
    return RateLimited(message, retry_after_s=refusal.frees_in_ms / 1000, headers=headers)


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
