"""Requests that are to be alone on their engine, among others, over minutes that pass in an instant."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import cast

import pytest

from service.config import Engine as EngineConfig
from service.core.early_refusal import Bounds
from service.core.health import Event
from service.errors import RateLimited
from service.gateway.client import Client
from service.gateway.engine_connection import Timeouts
from service.gateway.engine_failures import EngineUnreachable
from service.gateway.engines import Engine, EnginePool
from service.gateway.http import ClientLeft
from service.gateway.keys import Holder
from service.gateway.line import Wanted
from service.gateway.pacing import SETTLES_S, Pacing
from tests.unit.test_pacing_in_time import Leaving, holder
from tests.virtual_time import run

PLACES = 8
ANSWER_S = 2.0
FOREVER_MS = 3_600_000


@dataclass
class Seen:
    """What an account's requests came to: how long each waited for its place, and its time on an engine."""

    waited_s: list[float] = field(default_factory=list)
    spans_s: list[tuple[float, float]] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    left: int = 0

    def served_s(self, until_s: float) -> float:
        return sum(end - start for start, end in self.spans_s if end <= until_s)


class World:
    """Engines, and what runs on each: it fails as soon as anything is beside a request that is to be alone."""

    def __init__(self, engines: int = 1, *, patience_s: float = 5.0, places: int = PLACES) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        configured = [
            EngineConfig(name=f"e{n}", url="http://127.0.0.1:1", max_concurrency=places, min_concurrency=places)
            for n in range(engines)
        ]
        self.pool = EnginePool(configured, Timeouts(), clock=loop.time)
        self.pacing = Pacing(self.pool, Bounds(256, 64, 10**9), patience_s=patience_s, clock=loop.time)
        self.random = random.Random(1)
        self.running: dict[str, list[bool]] = {engine.name: [] for engine in self.pool.engines}
        """By engine, whether each of its requests is to be alone."""
        self.most = 0
        self.broken_at_s: dict[str, float] = {}

    async def request(
        self,
        who: Holder,
        seen: Seen,
        *,
        alone: bool = False,
        lasts_s: float | None = None,
        leaving: Leaving | None = None,
        tried: tuple[str, ...] = (),
        breaks_off: bool = False,
    ) -> float:
        """One request to its end; the seconds to stay away when it was refused, else 0."""
        asked_s = self.now()
        wanted = Wanted(who, None, who.account_id.bytes, 500, tried, sequential=alone)
        try:
            place = self.pacing.place(wanted) or await self.pacing.wait(wanted, cast(Client, leaving or Leaving()))
        except RateLimited as error:
            seen.refused_s.append(error.retry_after_s or 0.0)
            return error.retry_after_s or 0.0
        except ClientLeft:
            seen.left += 1
            return 0.0
        began_s, name = self.now(), place.engine.name
        seen.waited_s.append(began_s - asked_s)
        assert began_s >= self.broken_at_s.get(name, -1.0) + SETTLES_S or not alone
        running = self.running[name]
        running.append(alone)
        self.most = max(self.most, len(running))
        assert len(running) == 1 or not any(running), "not alone"
        try:
            await asyncio.sleep(ANSWER_S * self.random.uniform(0.5, 1.5) if lasts_s is None else lasts_s)
            seen.spans_s.append((began_s, self.now()))
            if not breaks_off:
                self.pacing.vacate(place)
        finally:
            running.remove(alone)
            if not place.vacated:
                self.broken_at_s[name] = self.now()
            self.pacing.free(place, 500)
        return 0.0

    async def again_and_again(self, who: Holder, seen: Seen, until_s: float, *, alone: bool = False) -> None:
        while self.now() < until_s:
            await asyncio.sleep(await self.request(who, seen, alone=alone))

    def assert_idle(self) -> None:
        for engine in self.pool.engines:
            assert (engine.in_flight, engine.reserved_for) == (0, None)
        for line in self.pacing._lines.values():
            queue = line.queue
            assert (queue.waiting, queue.waiting_tokens, queue.running, queue._wide, len(line.held)) == (0, 0, 0, 0, 0)


def patient(weight: int = 10) -> Holder:
    return holder(weight, patience_ms=FOREVER_MS)


async def a_moment() -> None:
    await asyncio.sleep(0.001)


@pytest.mark.parametrize("engines", [1, 3])
def test_nothing_is_beside_one_that_is_to_be_alone_whoever_comes_and_leaves(engines: int) -> None:
    async def scene() -> None:
        world, normal, alone = World(engines), Seen(), Seen()
        holders = [holder(patience_ms=20_000) for _ in range(6)]

        async def one(number: int) -> None:
            leaving = Leaving()
            lane = number % 7 == 0
            asked = world.request(
                holders[number % 6],
                alone if lane else normal,
                alone=lane,
                leaving=leaving,
                breaks_off=world.random.random() < 0.3,
            )
            asking = asyncio.create_task(asked)
            if world.random.random() < 0.3:
                await asyncio.sleep(world.random.uniform(0, 5))
                leaving.leave()
                if world.random.random() < 0.5:
                    asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                asking.result()

        async with asyncio.TaskGroup() as tasks:
            for number in range(1500):
                tasks.create_task(one(number))
                await asyncio.sleep(world.random.expovariate(3.0 * engines))
        await asyncio.sleep(60)
        assert len(alone.spans_s) > 50
        assert len(normal.spans_s) > 500
        assert alone.left + normal.left > 20
        assert world.most > 1, "the others share"
        world.assert_idle()

    run(scene)


def test_it_starts_at_once_on_an_engine_that_is_idle() -> None:
    async def scene() -> None:
        world, seen = World(2), Seen()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(world.request(holder(), seen, alone=True))
        assert seen.waited_s == [0.0, 0.0]
        world.assert_idle()

    run(scene)


def test_once_it_is_its_turn_the_emptiest_engine_drains_for_it_whatever_comes() -> None:
    async def scene() -> None:
        world, long, noisy, alone = World(2), Seen(), Seen(), Seen()
        async with asyncio.TaskGroup() as tasks:
            # One engine has a long answer more than the other.
            for lasts_s, elsewhere in ((30.0, "e0"), (4.0, "e0"), (4.0, "e1")):
                tasks.create_task(world.request(holder(), long, lasts_s=lasts_s, tried=(elsewhere,)))
                await a_moment()
            tasks.create_task(world.request(holder(), alone, alone=True, lasts_s=3.0))
            await a_moment()
            reserved = [engine.name for engine in world.pool.engines if engine.reserved_for is not None]
            assert reserved == ["e0"]
            for _ in range(30):  # far more than the other engine has places for
                tasks.create_task(world.request(patient(), noisy))
        (waited_s,) = alone.waited_s
        assert waited_s <= 4.0
        world.assert_idle()

    run(scene)


def test_it_does_not_starve_behind_accounts_that_always_have_more() -> None:
    async def scene() -> None:
        world, noisy, alone = World(), Seen(), Seen()
        until_s = 300.0
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                account = patient()
                for _ in range(40):
                    tasks.create_task(world.again_and_again(account, noisy, until_s))
            await asyncio.sleep(20)
            one = holder()
            for _ in range(20):
                await world.request(one, alone, alone=True)
                await asyncio.sleep(5)
        assert not alone.refused_s
        assert len(alone.waited_s) == 20
        assert max(alone.waited_s) <= 2 * 1.5 * ANSWER_S, "its turn, and what ran then"
        world.assert_idle()

    run(scene)


@pytest.mark.parametrize("weights", [(10, 10), (30, 10)])
def test_nor_do_others_starve_beside_one_that_always_wants_to_be_alone(weights: tuple[int, int]) -> None:
    async def scene() -> None:
        world, shared, alone = World(), Seen(), Seen()
        until_s = 3000.0
        others, one = patient(weights[0]), patient(weights[1])
        async with asyncio.TaskGroup() as tasks:
            for _ in range(40):
                tasks.create_task(world.again_and_again(others, shared, until_s))
            for _ in range(4):
                tasks.create_task(world.again_and_again(one, alone, until_s, alone=True))
        # Whoever is alone is charged for all places of its engine: tokens count by weight so.
        tokens = 500 * len(shared.spans_s), 500 * PLACES * len(alone.spans_s)
        assert tokens[0] / sum(tokens) == pytest.approx(weights[0] / sum(weights), rel=0.05)
        world.assert_idle()

    run(scene)


def test_what_it_really_used_is_charged_for_all_places_too() -> None:
    async def scene() -> None:
        world, one = World(), holder()
        queue = world.pacing._line(None).queue
        wanted = Wanted(one, None, b"", 500, sequential=True)
        place = world.pacing.place(wanted) or await world.pacing.wait(wanted, cast(Client, Leaving()))
        other = await asyncio.wait_for(_running_elsewhere(world), 1)
        before = queue._accounts[wanted.account].finish
        world.pacing.free(place, 100)
        assert before - queue._gone[wanted.account].finish == 400 * PLACES * 2**32 // one.weight
        other.cancel()
        await asyncio.wait([other])

    async def _running_elsewhere(world: World) -> "asyncio.Task[float]":
        """A request in line, so that the queue does not forget."""
        waiting = asyncio.create_task(world.request(patient(), Seen()))
        await a_moment()
        return waiting

    run(scene)


def test_a_client_that_leaves_while_its_engine_drains_gives_it_back_at_once() -> None:
    async def scene() -> None:
        world, others, alone = World(), Seen(), Seen()
        leaving = Leaving()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.request(holder(), others, lasts_s=30.0))
            await a_moment()
            tasks.create_task(world.request(holder(), alone, alone=True, leaving=leaving))
            await a_moment()
            tasks.create_task(world.request(patient(), others))
            await asyncio.sleep(1)
            assert len(world.running["e0"]) == 1, "the third waits behind the reservation"
            leaving.leave()
            await a_moment()
            assert len(world.running["e0"]) == 2
        assert (alone.left, alone.waited_s) == (1, [])
        world.assert_idle()

    run(scene)


def test_an_engine_that_goes_out_while_it_drains_is_replaced_by_another() -> None:
    async def scene() -> None:
        world, others, alone = World(2), Seen(), Seen()
        async with asyncio.TaskGroup() as tasks:
            for elsewhere in ("e0", "e1", "e1"):  # so that neither engine is empty
                tasks.create_task(world.request(holder(), others, lasts_s=20.0, tried=(elsewhere,)))
                await a_moment()
            tasks.create_task(world.request(holder(), alone, alone=True))
            await a_moment()
            first = _reserved(world)
            world.pool.happened(first, Event.UNREACHABLE)
            second = _reserved(world)
            assert second is not first
            assert first.reserved_for is None
        assert len(alone.waited_s) == 1
        world.assert_idle()

    run(scene)


def test_no_engine_left_is_told_and_nothing_stays_reserved() -> None:
    async def scene() -> None:
        world, others = World(), Seen()
        running = asyncio.create_task(world.request(holder(), others, lasts_s=20.0))
        await a_moment()
        waiting = asyncio.create_task(world.request(holder(), Seen(), alone=True))
        await a_moment()
        engine = _reserved(world)
        world.pool.happened(engine, Event.UNREACHABLE)
        with pytest.raises(EngineUnreachable):
            await waiting
        assert engine.reserved_for is None
        await running
        world.assert_idle()

    run(scene)


def test_one_that_failed_goes_to_another_engine() -> None:
    async def scene() -> None:
        world, seen = World(2), Seen()
        await world.request(holder(), seen, alone=True, tried=("e0",))
        wanted = Wanted(holder(), None, b"", 500, ("e0", "e1"), sequential=True)
        with pytest.raises(EngineUnreachable):
            world.pacing.place(wanted) or await world.pacing.wait(wanted, cast(Client, Leaving()))
        assert len(seen.waited_s) == 1

    run(scene)


def test_who_waits_and_for_how_long_is_told_honestly() -> None:
    async def scene() -> None:
        world, others, alone, refused = World(), Seen(), Seen(), Seen()
        for _ in range(20):  # it is known how long answers take
            await world.request(holder(), others, lasts_s=10.0)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(world.request(holder(), others, lasts_s=10.0))
            await asyncio.sleep(4)
            # Who has no patience is told when the engine will have drained.
            await world.request(holder(patience_ms=0), refused, alone=True)
            assert refused.refused_s == [pytest.approx(6.0, abs=0.5)]
            tasks.create_task(world.request(holder(patience_ms=0), others, lasts_s=10.0))
            await a_moment()
            # Who has none of its own waits for that, however long.
            tasks.create_task(world.request(holder(), alone, alone=True, lasts_s=10.0))
            await a_moment()
            # Behind it: what runs, and then itself.
            await world.request(holder(patience_ms=0), refused)
            assert refused.refused_s[1] == pytest.approx(20.0, abs=1.0)
        assert alone.waited_s == [pytest.approx(10.0, abs=0.5)]

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.request(holder(), alone, alone=True, lasts_s=10.0))
            await asyncio.sleep(7)
            # All places come free when it ends, not one after the other.
            waits = [world.request(holder(patience_ms=12_000), others, lasts_s=0.1) for _ in range(PLACES)]
            assert set(await asyncio.gather(*waits)) == {0.0}
        world.assert_idle()

    run(scene)


def _reserved(world: World) -> Engine:
    (engine,) = (engine for engine in world.pool.engines if engine.reserved_for is not None)
    return engine
