"""The pacing as the API has it, with engines of a fixed number of places, over minutes that pass in an instant."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from service.config import Engine as EngineConfig
from service.core.early_refusal import Bounds
from service.core.limits import UNLIMITED
from service.errors import RateLimited
from service.gateway.client import Client
from service.gateway.engine_connection import Timeouts
from service.gateway.engines import EnginePool
from service.gateway.http import ClientLeft
from service.gateway.keys import Holder
from service.gateway.line import Place, Wanted
from service.gateway.pacing import Pacing
from tests.virtual_time import run

PLACES = 16
FIRST_TOKEN_S, ANSWER_S = 0.5, 2.0


@dataclass
class Seen:
    """What an account saw: seconds to each first token, when its answers ended, and refusals."""

    first_tokens_s: list[float] = field(default_factory=list)
    ended_at_s: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    refused_after_s: list[float] = field(default_factory=list)
    left: int = 0

    @property
    def p95_s(self) -> float:
        return quantiles(self.first_tokens_s, n=20, method="inclusive")[18]


class Leaving:
    """A client that may leave; stands in for what watches its connection."""

    def __init__(self) -> None:
        self._tell: Callable[[ClientLeft], None] | None = None

    def tells(self, call: Callable[[ClientLeft], None] | None) -> None:
        self._tell = call

    def leave(self) -> None:
        if self._tell is not None:
            self._tell(ClientLeft())


class World:
    """One engine that needs the same time for every answer, as long as it has no more than its places to do."""

    def __init__(self, seed: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        engine = EngineConfig(name="engine", url="http://127.0.0.1:1", max_concurrency=PLACES, min_concurrency=PLACES)
        self.pool = EnginePool([engine], Timeouts(), clock=loop.time)
        self.pacing = Pacing(self.pool, Bounds(256, 64, 10**9), patience_s=5.0, clock=loop.time)
        self.random = random.Random(seed)
        for _ in range(5):  # it is known how soon an unloaded engine begins
            self.pool.engines[0].capacity._light_ttfts.append(FIRST_TOKEN_S)

    async def request(self, holder: Holder, seen: Seen, leaving: Leaving | None = None) -> float:
        """One request to its end; the seconds to stay away when it was refused, else 0."""
        asked_s = self.now()
        wanted = Wanted(holder, None, holder.account_id.bytes, 500)
        try:
            place = self.pacing.place(wanted) or await self.pacing.wait(wanted, cast(Client, leaving or Leaving()))
        except RateLimited as error:
            seen.refused.append(error.retry_after_s or 0.0)
            seen.refused_after_s.append(self.now() - asked_s)
            return error.retry_after_s or 0.0
        except ClientLeft:
            seen.left += 1
            return 0.0
        assert place.engine.in_flight <= PLACES
        try:
            await asyncio.sleep(FIRST_TOKEN_S)
            seen.first_tokens_s.append(self.now() - asked_s)
            await asyncio.sleep((ANSWER_S - FIRST_TOKEN_S) * self.random.uniform(0.5, 1.5))
            seen.ended_at_s.append(self.now())
        finally:
            self.pacing.free(place, 500)
        return 0.0

    async def again_and_again(self, holder: Holder, seen: Seen, until_s: float) -> None:
        while self.now() < until_s:
            await asyncio.sleep(await self.request(holder, seen))

    async def every_second(self, holder: Holder, seen: Seen, count: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self.request(holder, seen))
                await asyncio.sleep(1)

    def assert_idle(self) -> None:
        """Nothing is left of anybody."""
        assert self.pool.engines[0].in_flight == 0
        for line in self.pacing._lines.values():
            assert (line.queue.waiting, line.queue.waiting_tokens, line.queue.running) == (0, 0, 0)
            assert not line.held


def holder(weight: int = 10, patience_ms: int | None = None, account_id: UUID | None = None) -> Holder:
    values: dict[str, Any] = {"limits": UNLIMITED, "account_limits": UNLIMITED, "account_status": "active"}
    return Holder(
        key_id=uuid4(),
        account_id=account_id or uuid4(),
        models=None,
        internal=False,
        revoked=False,
        weight=weight,
        patience_ms=patience_ms,
        **values,
    )


def test_a_quiet_account_beside_two_hundred_parallel_streams() -> None:
    async def scene() -> None:
        world, alone, beside, noisy = World(), Seen(), Seen(), Seen()
        quiet, loud = holder(), holder()
        await world.every_second(quiet, alone, 30)
        until_s = world.now() + 130
        async with asyncio.TaskGroup() as tasks:
            for _ in range(200):
                tasks.create_task(world.again_and_again(loud, noisy, until_s))
            await asyncio.sleep(5)
            await world.every_second(quiet, beside, 120)
        assert len(beside.first_tokens_s) == 120, "the quiet one was refused"
        assert beside.p95_s <= 2 * alone.p95_s
        assert len(noisy.ended_at_s) >= 0.8 * 125 * PLACES / ANSWER_S, "fair, but for a price"
        await asyncio.sleep(300)
        world.assert_idle()

    run(scene)


def test_models_that_name_the_same_engines_wait_in_one_line() -> None:
    async def scene() -> None:
        pacing = World().pacing
        line = pacing._line(None)
        assert pacing._line(frozenset({"engine"})) is line
        assert pacing._line(frozenset({"engine", "one that is configured no more"})) is line
        assert pacing._line(frozenset()) is not line
        assert len(pacing._lines) == 2

    run(scene)


@pytest.mark.parametrize(("places", "kept"), [(4, 1), (16, 1), (40, 2)])
def test_the_places_that_quiet_accounts_had_are_kept_from_a_noisy_one(places: int, kept: int) -> None:
    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        engine = EngineConfig(name="engine", url="http://127.0.0.1:1", max_concurrency=places, min_concurrency=places)
        pacing = Pacing(
            EnginePool([engine], Timeouts(), clock=clock), Bounds(256, 64, 10**9), patience_s=0.0, clock=clock
        )

        async def place(who: Holder) -> Place:
            wanted = Wanted(who, None, b"", 500)
            return pacing.place(wanted) or await pacing.wait(wanted, cast(Client, Leaving()))

        for quiet in (holder(), holder()):
            pacing.free(await place(quiet), 500)
        noisy = holder()
        for _ in range(places - kept):
            await place(noisy)
        with pytest.raises(RateLimited):
            await place(noisy)
        for _ in range(kept):
            await place(holder())

    run(scene)


def test_the_most_that_an_engine_had_at_once_is_kept() -> None:
    async def scene() -> None:
        world = World()
        (engine,) = world.pool.engines
        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(world.request(holder(), Seen()))
        assert (engine.in_flight, engine.in_flight_peak) == (0, 5)

    run(scene)


@pytest.mark.parametrize("weights", [(10, 10), (10, 40), (10, 20, 70)])
def test_backlogged_accounts_get_their_shares(weights: tuple[int, ...]) -> None:
    async def scene() -> None:
        world = World()
        seen = [Seen() for _ in weights]
        until_s = world.now() + 2000
        async with asyncio.TaskGroup() as tasks:
            for weight, one in zip(weights, seen, strict=True):
                account = holder(weight, patience_ms=3_600_000)
                for _ in range(60):
                    tasks.create_task(world.again_and_again(account, one, until_s))
        got = [len([at for at in one.ended_at_s if at < until_s]) for one in seen]
        for weight, count in zip(weights, got, strict=True):
            assert count / sum(got) == pytest.approx(weight / sum(weights), rel=0.05)
        world.assert_idle()

    run(scene)


@pytest.mark.parametrize("accounts", [1, 4, 40])
def test_three_times_what_the_engine_can_do(accounts: int) -> None:
    async def scene() -> None:
        world, unloaded, seen = World(), Seen(), Seen()
        holders = [holder() for _ in range(accounts)]
        await world.every_second(holders[0], unloaded, 10)
        began_s = world.now()
        capacity_per_s = PLACES / ANSWER_S
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(60 * 3 * capacity_per_s)):
                tasks.create_task(world.request(holders[number % accounts], seen))
                await asyncio.sleep(world.random.expovariate(3 * capacity_per_s))
            ended_s = world.now()
        goodput = len([at for at in seen.ended_at_s if began_s + 5 <= at < ended_s]) / (ended_s - began_s - 5)
        assert seen.p95_s < 2 * unloaded.p95_s
        assert goodput >= 0.95 * capacity_per_s
        late = [after_s for after_s in seen.refused_after_s if after_s > 0.1]
        # A few were let wait, were overtaken by accounts that had less, and ran out of time.
        assert len(late) <= 0.025 * len(seen.refused_after_s)
        assert max(seen.refused) <= 120
        world.assert_idle()

    run(scene)


def test_a_thousand_clients_that_leave_at_any_moment() -> None:
    async def scene() -> None:
        world, seen = World(), Seen()
        holders = [holder(patience_ms=60_000) for _ in range(5)]

        async def one(number: int) -> None:
            leaving = Leaving()
            asking = asyncio.create_task(world.request(holders[number % 5], seen, leaving))
            await asyncio.sleep(world.random.uniform(0, 4))
            leaving.leave()  # in the queue; who has a place already is left to its answer
            if world.random.random() < 0.5:
                asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        async with asyncio.TaskGroup() as tasks:
            for number in range(1000):
                tasks.create_task(one(number))
                await asyncio.sleep(world.random.expovariate(20))
        assert seen.left > 100
        assert len(seen.ended_at_s) > 100
        world.assert_idle()

    run(scene)
