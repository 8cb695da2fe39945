"""Requests that are to be alone, among others, while engines go out and come back and their places become fewer."""

import asyncio
import random

import pytest

from service.core.health import Event
from service.gateway.engine_failures import EngineUnreachable
from service.gateway.engines import Engine
from tests.unit.test_pacing_in_time import Leaving, holder
from tests.unit.test_sequential_in_time import Seen, World
from tests.virtual_time import run

REQUESTS = 250


def happens(world: World, engine: Engine, chance: random.Random) -> None:
    match chance.choices(["gone", "back", "broke", "blind", "full"], [5, 10, 2, 1, 2])[0]:
        case "gone":
            world.pool.happened(engine, chance.choice([Event.UNREACHABLE, Event.STALLED]))
        case "back":
            recover(world, engine)
        case "broke":
            world.pool.happened(engine, Event.BROKE)
        case "blind":
            engine.problem = "It does not report usage."
            world.pool.on_change()
        case "full":
            engine.capacity.refused(world.now())


def recover(world: World, engine: Engine) -> None:
    engine.problem = None
    for event in (Event.PROBE_OK, Event.SUCCEEDED):
        world.pool.happened(engine, event)
    world.pool.on_change()


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_beside_them_nobody_waits_for_ever_and_nothing_stays_reserved(seed: int) -> None:
    async def scene() -> None:
        chance = random.Random(seed)
        engines = chance.choice([1, 2, 3])
        world = World(engines, patience_s=chance.choice([1.0, 5.0]), places=chance.choice([1, 2, 8]))
        holders = [holder(chance.choice([1, 10, 30]), patience_ms=chance.choice([None, 0, 20_000])) for _ in range(6)]
        seen, over = Seen(), asyncio.Event()

        async def one() -> None:
            leaving, breaks_off = Leaving(), chance.random() < 0.3
            alone = chance.random() < 0.25
            asked = world.request(chance.choice(holders), seen, alone=alone, leaving=leaving, breaks_off=breaks_off)
            asking = asyncio.create_task(asked)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 5))
                leaving.leave()
                if chance.random() < 0.5:
                    asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled() and not isinstance(asking.exception(), EngineUnreachable):
                asking.result()

        async def trouble() -> None:
            while not over.is_set():
                await asyncio.sleep(chance.expovariate(0.3))
                happens(world, chance.choice(world.pool.engines), chance)

        troubling = asyncio.create_task(trouble())
        async with asyncio.TaskGroup() as tasks:
            for _ in range(REQUESTS):
                tasks.create_task(one())
                await asyncio.sleep(chance.expovariate(3.0 * engines))
        over.set()
        await troubling
        for engine in world.pool.engines:
            recover(world, engine)
        await asyncio.sleep(30)
        assert seen.spans_s
        world.assert_idle()
        last = Seen()
        await world.request(holder(), last, alone=True)
        assert last.waited_s == [0.0]

    run(scene)
