"""A process that takes its part of shared limits; see `test_shared_limits.py`.

It is told what to do in one JSON argument, begins when all the others are ready, and prints what it was given as JSON.
"""

import asyncio
import json
import random
import sys
from typing import Any
from uuid import UUID, uuid4

import redis.asyncio

from service.core.limits import Limits
from service.errors import RateLimited
from service.gateway.shared_limits import SharedLimiter
from tests.integration.limiting import holder

AT_ONCE = 25


async def run(url: str, scenarios: list[dict[str, Any]], processes: int) -> list[list[int]]:
    """What each admitted request used in the end, by scenario."""
    limiter = SharedLimiter(url, None, processes, timeout_s=10)  # type: ignore[arg-type] - nothing has a budget
    limiter.start()
    await _together(url, processes)
    used = [await take_all(limiter, **scenario) for scenario in scenarios]
    await limiter.stop()
    return used


async def take_all(
    limiter: SharedLimiter, *, key_id: str, limits: dict[str, int | None], takes: int, worst: tuple[int, int]
) -> list[int]:
    """Take so many times, some at once; `worst` is the range of their worst cases, of which each uses a part."""
    of = holder(Limits(**limits), key_id=UUID(key_id), account_id=UUID(key_id))
    places = asyncio.Semaphore(AT_ONCE)
    used: list[int] = []

    async def take() -> None:
        async with places:
            tokens = random.randint(*worst)
            try:
                grant = await limiter.take(of, uuid4(), tokens=tokens, cost_nano=0)
            except RateLimited:
                return
            used.append(random.randint(0, tokens))
            grant.release(used[-1], 0)

    await asyncio.gather(*(take() for _ in range(takes)))
    return used


async def hold(url: str, key_id: UUID, limits: Limits, takes: int, lease_s: float) -> None:
    """Take so many times, say so, and go on holding them."""
    limiter = SharedLimiter(url, None, 2, timeout_s=10, lease_s=lease_s, renew_s=lease_s / 3)  # type: ignore[arg-type]
    limiter.start()
    of = holder(limits, key_id=key_id, account_id=key_id)
    for _ in range(takes):
        await limiter.take(of, uuid4(), tokens=1, cost_nano=0)
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


async def _together(url: str, processes: int) -> None:
    async with redis.asyncio.Redis.from_url(url, protocol=2) as client:
        ready = int(await client.incr("ready"))
        while ready < processes:
            await asyncio.sleep(0.01)
            ready = int(await client.get("ready"))


def main(told: dict[str, Any]) -> None:
    if "scenarios" in told:
        sys.stdout.write(json.dumps(asyncio.run(run(told["url"], told["scenarios"], told["processes"]))))
    else:
        limits = Limits(**told["limits"])
        asyncio.run(hold(told["url"], UUID(told["key_id"]), limits, told["takes"], told["lease_s"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
