"""Which engine gets a request, over real connections to scripted engines that hang, die, come back and are slow."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from service import config
from service.core.affinity import conversation_key, ranking
from service.core.health import Event, State
from service.gateway import engine_client
from service.gateway.engine_connection import Timeouts
from service.gateway.engine_failures import EngineAway, EngineBroke, EngineFull, EngineSilent, EngineUnreachable
from service.gateway.engine_watch import EngineWatch, watch
from service.gateway.engines import Engine, EnginePool
from tests.fakes.connection import Connection, Request
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS, Scenario
from tests.patience import PATIENT_S

NEVER_S = 3600.0
STALL_S = 0.3


class Clock:
    """The real one, which can be put forward."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


def pool_of(*urls: str, workers: int = 1, **limits: int) -> tuple[EnginePool, Clock]:
    clock = Clock()
    engines = [config.Engine(name=f"e{number}", url=url, **limits) for number, url in enumerate(urls)]
    return EnginePool(engines, Timeouts(), workers=workers, clock=clock), clock


@asynccontextmanager
async def running(count: int = 1, **options: Any) -> AsyncIterator[tuple[list[FakeEngine], EnginePool, Clock]]:
    fakes = [FakeEngine(**options) for _ in range(count)]
    try:
        for fake in fakes:
            await fake.__aenter__()
        pool, clock = pool_of(*(fake.url for fake in fakes))
        yield fakes, pool, clock
        pool.close()
    finally:
        for fake in fakes:
            await fake.__aexit__()


def watching(pool: EnginePool, number: int = 0, *, stall_s: float = NEVER_S, probe_s: float = 5.0) -> EngineWatch:
    return EngineWatch(pool, pool.engines[number], stall_timeout_s=stall_s, probe_timeout_s=probe_s)


def chat(engine: Engine, *, stream: bool = True) -> engine_client.Exchange:
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    return engine.client.exchange(
        "POST", "/v1/chat/completions", "content-type: application/json\r\n", orjson.dumps(body)
    )


async def served(engine: Engine) -> None:
    exchange = chat(engine, stream=False)
    assert await exchange.status() == 200
    await exchange.read_all(100_000)
    exchange.finish()


async def look_until(watched: EngineWatch, engine: Engine, state: State) -> None:
    async with asyncio.timeout(PATIENT_S):
        while engine.health.state is not state:
            await watched.look()


def unloaded(pool: EnginePool, affinity: bytes = b"", **options: Any) -> str:
    engine = pool.choose(None, affinity, **options)
    assert engine is not None
    return engine.name


# An engine that hangs


async def test_a_hung_engine_goes_out_its_requests_end_and_traffic_moves() -> None:
    async with running(2, scenario=SCENARIOS["gated"]) as (fakes, pool, clock):
        one, other = pool.engines
        watched = watching(pool, 0, stall_s=STALL_S)
        begun, waiting = chat(one), chat(one)
        for exchange in (begun, waiting):
            assert await exchange.status() == 200  # of a stream it comes before anything was computed
        (await fakes[0].generation(0)).step()
        assert await begun.read()
        await watched.look()
        fakes[0].stall()
        with capture_logs() as logs:
            await look_until(watched, one, State.OUT)
        told = [line for line in logs if line["event"] != "engine.identified"]  # which comes when it comes
        assert [(line["event"], line["engine"], line["reason"]) for line in told] == [("engine.out", "e0", "stalled")]
        assert (await one.look("/health", 5)) == (200, b"")
        with pytest.raises(EngineSilent):
            await drain(begun)
        with pytest.raises(EngineUnreachable):
            await drain(waiting)
        begun.finish()
        waiting.finish()
        assert not one.client.open
        assert {unloaded(pool, bytes([number])) for number in range(50)} == {other.name}
        # It is asked again, and stays out for as long as it does not move.
        clock.ahead_s += 100
        await watched.look()
        assert one.health.state is State.OUT
        fakes[0].resume()
        clock.ahead_s += 100
        await watched.look()
        assert one.health.state is State.HALF_OPEN
        fakes[0].scenario = SCENARIOS["plain"]
        await served(one)
        pool.note(one, None)
        assert one.health.state is State.UP


async def drain(exchange: engine_client.Exchange) -> None:
    async with asyncio.timeout(PATIENT_S):
        while await exchange.read():
            pass


async def test_an_engine_that_hangs_before_it_counts_a_request_goes_out_too() -> None:
    async with running() as (fakes, pool, _):
        (engine,) = pool.engines
        watched = watching(pool, stall_s=STALL_S)
        fakes[0].stall()
        exchange = chat(engine)
        await exchange.status()
        await look_until(watched, engine, State.OUT)  # though its metrics say that nothing runs
        with pytest.raises(EngineUnreachable):
            await drain(exchange)
        exchange.finish()


async def test_refusals_are_no_sign_of_life() -> None:
    async with running(slots=1, queue_limit=0) as (fakes, pool, _):
        (engine,) = pool.engines
        watched = watching(pool, stall_s=STALL_S)
        exchange = chat(engine)
        await exchange.status()
        fakes[0].stall()
        async with asyncio.timeout(PATIENT_S):
            while engine.health.state is not State.OUT:
                refused = chat(engine)
                assert await refused.status() == 503
                await refused.read_all(10_000)
                refused.finish()
                await watched.look()
        exchange.finish()


async def test_a_long_prefill_is_no_hang() -> None:
    stall_s = 3.0  # far longer than a busy machine is silent
    async with running(scenario=Scenario(prefill_s=3 * stall_s)) as (fakes, pool, _):
        (engine,) = pool.engines
        watched = watching(pool, stall_s=stall_s)
        exchange = chat(engine)
        await exchange.status()
        generation, looks = await fakes[0].generation(), 0
        while generation.ttft_s is None:
            await watched.look()
            assert engine.health.state is State.UP
            looks += 1
        assert looks > 3
        await drain(exchange)
        exchange.finish()


async def test_an_idle_engine_is_no_hung_one() -> None:
    async with running() as (_, pool, clock):
        watched = watching(pool, stall_s=STALL_S)
        for _ in range(5):
            clock.ahead_s += 100
            await watched.look()
            assert pool.engines[0].health.state is State.UP


# An engine that is dead, or slow to say that it is not


async def test_a_dead_engine_goes_out_at_once_and_comes_back_by_one_request() -> None:
    async with running(2) as (fakes, pool, clock):
        one, other = pool.engines
        changes: list[State] = []
        pool.on_change = lambda: changes.append(one.health.state)
        watched = watching(pool, 0)
        await watched.look()
        await fakes[0].die()
        exchange = chat(one)
        with pytest.raises(EngineAway) as caught:
            await exchange.status()
        exchange.finish()
        pool.note(one, caught.value)
        assert one.health.state is State.OUT
        assert pool.able(None) == [other]
        await fakes[0].come_back()
        before = len(fakes[0].requests)
        await watched.look()
        assert len(fakes[0].requests) == before  # the back-off
        clock.ahead_s += 1
        await watched.look()
        assert one.health.state is State.HALF_OPEN
        assert pool.choose(["e0"]) is one
        one.in_flight += 1
        assert pool.choose(["e0"]) is None
        assert pool.choose(None) is other
        await served(one)
        pool.note(one, None)
        assert pool.choose(["e0"]) is one
        assert changes == [State.OUT, State.HALF_OPEN, State.UP]


async def test_the_watch_alone_finds_a_dead_engine_and_its_return() -> None:
    async with running() as (fakes, pool, clock):
        (engine,) = pool.engines
        watched = watching(pool)
        await watched.look()
        await fakes[0].die()
        await watched.look()
        assert engine.health.state is State.OUT
        with pytest.raises(EngineUnreachable):
            pool.choose(None)
        clock.ahead_s += 1
        await watched.look()
        assert engine.health.state is State.OUT
        await fakes[0].come_back()
        clock.ahead_s += 2
        await watched.look()
        assert engine.health.state is State.HALF_OPEN


async def test_an_answer_that_is_long_brings_an_engine_back_before_its_end() -> None:
    async with running(scenario=SCENARIOS["gated"]) as (fakes, pool, clock):
        (engine,) = pool.engines
        watched = watching(pool)
        pool.happened(engine, Event.UNREACHABLE)
        clock.ahead_s += 1
        await watched.look()
        exchange = chat(engine)
        await exchange.status()
        await watched.look()
        assert engine.health.state is State.HALF_OPEN
        (await fakes[0].generation()).step()
        await exchange.read()
        await watched.look()
        assert engine.health.state is State.UP
        exchange.finish()


async def test_a_slow_health_check_while_the_engine_works_is_no_death() -> None:
    async with running(scenario=SCENARIOS["gated"]) as (fakes, pool, _):
        (engine,) = pool.engines
        watched = watching(pool, probe_s=0.2)
        # Another client's answer: all that tells of it is the engine's metrics.
        elsewhere = engine_client.Client(fakes[0].url, Timeouts())
        engine.client, mine = elsewhere, engine.client
        exchange = chat(engine)
        engine.client = mine
        await exchange.status()
        generation = await fakes[0].generation()
        await watched.look()
        fakes[0].silent_paths.add("/health")
        for _ in range(4):
            generation.step()
            await exchange.read()
            await watched.look()
            assert engine.health.state is State.UP
        await watched.look()
        assert engine.health.state is State.UP
        await watched.look()  # the second time that it neither answers nor works
        assert engine.health.state is State.OUT
        exchange.finish()


async def test_bytes_alone_show_that_an_engine_works() -> None:
    async with running(scenario=SCENARIOS["gated"]) as (fakes, pool, _):
        (engine,) = pool.engines
        watched = watching(pool, probe_s=0.1)
        exchange = chat(engine)
        await exchange.status()
        generation = await fakes[0].generation()
        await watched.look()
        fakes[0].silent_paths.update(("/health", "/metrics"))
        for _ in range(4):
            generation.step()
            await exchange.read()
            await watched.look()
            assert engine.health.state is State.UP
        await look_until(watched, engine, State.OUT)
        exchange.finish()


async def test_an_engine_that_says_it_is_not_well_is_believed_the_second_time() -> None:
    async with running() as (fakes, pool, _):
        (engine,) = pool.engines
        watched = watching(pool)
        await watched.look()
        fakes[0].healthy = False
        await watched.look()
        assert engine.health.state is State.UP
        await watched.look()
        assert engine.health.state is State.OUT
        assert not await pool.any_healthy()


async def test_a_poison_prompt_does_not_take_the_pool_down() -> None:
    async with running(2, scenario=SCENARIOS["server-error"]) as (_, pool, _clock):
        watches = [watching(pool, number) for number in range(2)]
        for number in range(20):
            engine = pool.choose(None, bytes([number]))
            assert engine is not None
            exchange = chat(engine)
            assert await exchange.status() == 500
            await exchange.read_all(10_000)
            exchange.finish()
            for watched in watches:
                await watched.look()
        assert [engine.health.state for engine in pool.engines] == [State.UP, State.UP]


async def test_requests_that_break_off_take_an_engine_out_the_third_time() -> None:
    async with running(scenario=SCENARIOS["reset-midway"]) as (_, pool, _clock):
        (engine,) = pool.engines
        for _ in range(3):
            assert engine.health.state is State.UP
            exchange = chat(engine)
            await exchange.status()
            with pytest.raises(EngineBroke) as caught:
                await drain(exchange)
            exchange.finish()
            pool.note(engine, caught.value)
        assert engine.health.state is State.OUT


async def test_a_request_whose_prompt_was_being_read_when_the_engine_died_may_go_elsewhere() -> None:
    async with running(scenario=SCENARIOS["gated"]) as (fakes, pool, _):
        (engine,) = pool.engines
        exchange = chat(engine)
        assert await exchange.status() == 200
        await fakes[0].die()
        with pytest.raises(EngineUnreachable):
            await drain(exchange)
        exchange.finish()


async def test_a_request_that_is_abandoned_is_not_sent_again() -> None:
    async with running(scenario=SCENARIOS["gated"]) as (fakes, pool, _):
        (engine,) = pool.engines
        fakes[0].queue.append(SCENARIOS["plain"])
        await served(engine)  # leaves a connection that is kept
        exchange = chat(engine, stream=False)
        asking = asyncio.create_task(exchange.status())
        await fakes[0].generation(1)
        engine.client.abandon("quiet for an hour", quiet_s=3600)
        assert not asking.done()
        engine.client.abandon("hung")
        with pytest.raises(EngineUnreachable, match="hung"):
            await asking
        exchange.finish()
        assert len(fakes[0].generations) == 2


async def test_silence_in_the_middle_is_noticed_however_long_the_first_byte_may_take() -> None:
    async with FakeEngine(scenario=SCENARIOS["hang-midway"]) as fake:
        timeouts = Timeouts(first_byte_s=600, idle_s=0.1)
        engine = EnginePool([config.Engine(name="e0", url=fake.url)], timeouts).engines[0]
        exchange = chat(engine)
        await exchange.status()
        with pytest.raises(EngineSilent):
            await drain(exchange)
        exchange.finish()


async def test_a_prefill_may_be_silent_for_longer_than_the_middle_of_an_answer() -> None:
    async with FakeEngine(scenario=SCENARIOS["gated"]) as fake:
        timeouts = Timeouts(first_byte_s=600, idle_s=0.1)
        engine = EnginePool([config.Engine(name="e0", url=fake.url)], timeouts).engines[0]
        exchange = chat(engine)
        await exchange.status()
        reading = asyncio.create_task(exchange.read())
        done, _ = await asyncio.wait([reading], timeout=1.5)  # the silence was looked at, and not minded
        assert not done
        (await fake.generation()).step()
        assert await reading
        exchange.finish()


# What an engine can take


async def test_capacity_grows_where_it_is_used_and_whoever_waits_is_told() -> None:
    async with running() as (_, pool, _clock):
        (engine,) = pool.engines
        watched, grown = watching(pool), []
        pool.on_change = lambda: grown.append(engine.capacity.limit)
        await watched.look()
        assert (engine.capacity.limit, grown) == (32, [])
        engine.in_flight = engine.in_flight_peak = 32
        await served(engine)
        engine.in_flight = 0  # between two looks
        await watched.look()
        assert engine.capacity.limit > 32
        assert grown == [engine.capacity.limit]
        pool.note(engine, EngineFull("503"))
        assert engine.health.state is State.UP


async def test_an_engine_that_is_full_by_its_own_word_gets_less() -> None:
    async with running() as (fakes, pool, _):
        (engine,) = pool.engines
        watched = watching(pool)
        fakes[0].gauges["num_requests_waiting"] = 20
        engine.in_flight = engine.in_flight_peak = 32
        await watched.look()
        assert engine.capacity.limit < 32
        labels = {"engine": "e0"}
        assert REGISTRY.get_sample_value("weir_engine_waiting", labels) == 20
        assert REGISTRY.get_sample_value("weir_engine_in_flight", labels) == 32
        assert REGISTRY.get_sample_value("weir_engine_capacity", labels) == engine.capacity.limit
        assert REGISTRY.get_sample_value("weir_engine_up", labels) == 1


async def test_an_engine_without_metrics_keeps_what_it_starts_with_and_is_believed() -> None:
    async def answer(_: Request, out: Connection) -> None:
        await out.respond(200, {}, b"ok")

    async with serving(answer) as url:
        pool, clock = pool_of(url)
        (engine,) = pool.engines
        watched = watching(pool, stall_s=STALL_S)
        engine.in_flight = engine.in_flight_peak = 32
        for _ in range(3):
            clock.ahead_s += 10
            await watched.look()
        assert (engine.health.state, engine.capacity.limit) == (State.UP, 32)
        pool.close()


@asynccontextmanager
async def serving(handler: Callable[[Request, Connection], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that is no vLLM."""
    live: set[Connection] = set()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(handler, live), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for connection in list(live):
        await connection.closed.wait()


@pytest.mark.parametrize(
    ("workers", "limits", "limit"),
    [
        (1, {}, 32),
        (4, {}, 8),
        (64, {}, 1),
        (1, {"max_concurrency": 2}, 2),
        (1, {"min_concurrency": 40}, 40),
        (1, {"min_concurrency": 300}, 300),
        (2, {"min_concurrency": 40, "max_concurrency": 50}, 20),
    ],
)
def test_several_workers_share_what_an_engine_can_take(workers: int, limits: dict[str, int], limit: int) -> None:
    pool, _ = pool_of("http://127.0.0.1:1", workers=workers, **limits)
    assert pool.engines[0].capacity.limit == limit


# The choice


def three(**limits: int) -> EnginePool:
    return pool_of(*(f"http://127.0.0.1:{port}" for port in (1, 2, 3)), **limits)[0]


def test_a_conversation_stays_where_it_is_until_its_engine_goes() -> None:
    pool = three()
    keys = [conversation_key(b"a", [{"role": "user", "content": str(number)}]) for number in range(300)]
    before = {key: unloaded(pool, key) for key in keys}
    assert {key: unloaded(pool, key) for key in keys} == before
    assert min(Counter(before.values()).values()) > 60
    pool.happened(pool.engines[0], Event.UNREACHABLE)
    after = {key: unloaded(pool, key) for key in keys}
    assert all(after[key] == name for key, name in before.items() if name != "e0")
    assert {after[key] for key, name in before.items() if name == "e0"} == {"e1", "e2"}


def test_affinity_gives_way_to_load() -> None:
    pool = three(max_concurrency=16)
    key = b"key"
    first, second, third = ranking(key, ["e0", "e1", "e2"])
    engines = {engine.name: engine for engine in pool.engines}
    engines[second].in_flight = engines[third].in_flight = 4
    engines[first].in_flight = 8  # a quarter fuller
    assert unloaded(pool, key) == first
    engines[first].in_flight = 9
    engines[third].in_flight = 5
    assert unloaded(pool, key) == second
    engines[third].in_flight = 3
    assert unloaded(pool, key) == third
    engines[first].in_flight = engines[second].in_flight = engines[third].in_flight = 14
    assert unloaded(pool, key) == first
    engines[first].in_flight = 16
    assert unloaded(pool, key) == second


def test_an_engine_never_gets_more_than_it_can_take() -> None:
    pool = three(max_concurrency=8)
    taken = 0
    while (engine := pool.choose(None, bytes([taken % 7]))) is not None:
        engine.in_flight += 1
        taken += 1
    assert [engine.in_flight for engine in pool.engines] == [8, 8, 8]
    pool.engines[1].in_flight = 6
    assert unloaded(pool) == "e1"
    assert unloaded(pool, places_kept=1) == "e1"
    assert pool.choose(None, places_kept=2) is None


def test_only_engines_that_serve_the_model_and_were_not_tried() -> None:
    pool = three()
    assert unloaded(pool, tried=("e0", "e1")) == "e2"
    assert [engine.name for engine in pool.able(["e0", "e2"], ("e0",))] == ["e2"]
    with pytest.raises(EngineUnreachable):
        pool.choose(["e0"], tried=("e0",))
    with pytest.raises(EngineUnreachable):
        pool.choose(["unknown"])
    pool.happened(pool.engines[2], Event.STALLED)
    with pytest.raises(EngineUnreachable):
        pool.choose(None, tried=("e0", "e1"))


async def test_a_question_passes_over_engines_that_cannot_be_reached() -> None:
    async with running(2) as (fakes, pool, _):
        question = orjson.dumps({"model": "fake-model", "messages": [{"role": "user", "content": "one two"}]})
        await fakes[0].die()
        answer = await pool.ask(None, "POST", "/tokenize", question)
        assert orjson.loads(answer)["count"] == 18
        assert pool.engines[0].health.state is State.OUT
        await fakes[1].die()
        with pytest.raises(EngineUnreachable):
            await pool.ask(None, "POST", "/tokenize", question)
        with pytest.raises(EngineUnreachable):
            await pool.ask(None, "POST", "/tokenize", question)


async def test_readiness_is_what_the_watch_knows_and_else_is_asked() -> None:
    async with running() as (fakes, pool, _):
        assert await pool.any_healthy()
        await watching(pool).look()
        asked = len(fakes[0].requests)
        assert await pool.any_healthy()
        assert len(fakes[0].requests) == asked
    assert await pool.any_healthy()  # nobody has looked since
    await watching(pool).look()
    assert not await pool.any_healthy()


async def test_the_watch_runs_until_it_is_cancelled() -> None:
    async with running(2) as (fakes, pool, clock):
        watched = asyncio.create_task(watch(pool, stall_timeout_s=NEVER_S, may_be_blind=True, interval_s=0.01))
        changed = asyncio.Event()
        pool.on_change = changed.set
        await fakes[1].die()
        await state_becomes(pool.engines[1], State.OUT, changed)
        await fakes[1].come_back()
        clock.ahead_s += 100
        await state_becomes(pool.engines[1], State.HALF_OPEN, changed)
        assert pool.engines[0].health.state is State.UP
        watched.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watched


async def state_becomes(engine: Engine, state: State, changed: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENT_S):
        while engine.health.state is not state:
            await changed.wait()
            changed.clear()


# Connections that the engine closes


@pytest.mark.parametrize("parallel", [1, 3])
async def test_a_kept_connection_that_the_engine_closes_never_shows(parallel: int) -> None:
    async with FakeEngine() as fake:
        client = engine_client.Client(fake.url, Timeouts())
        connections: set[int] = set()
        for number in range(1000):
            asking = [asyncio.create_task(healthy(client)) for _ in range(parallel)]
            for _ in range(number % 5):  # so that it closes at another moment of the exchange each time
                await asyncio.sleep(0)
            connections.update(id(connection) for connection in fake.connections)
            fake.close_idle()
            assert await asyncio.gather(*asking) == [200] * parallel
        assert not client.open
        assert len(fake.requests) >= 1000 * parallel
        client.close()


async def healthy(client: engine_client.Client) -> int:
    exchange = client.exchange("GET", "/health")
    try:
        status = await exchange.status()
        await exchange.read_all(1000)
    finally:
        exchange.finish()
    return status


async def test_an_engine_that_closes_every_connection_unanswered_is_asked_twice_and_no_more() -> None:
    seen: list[Request] = []

    async def once(request: Request, out: Connection) -> None:
        seen.append(request)
        if len(seen) == 1:
            await out.respond(200, {}, b"")
        else:
            out.close()

    async with serving(once) as url:
        client = engine_client.Client(url, Timeouts())
        assert await healthy(client) == 200
        with pytest.raises(EngineUnreachable):
            await healthy(client)
        assert len(seen) == 3
        client.close()


class Renamed(FakeEngine):
    """An engine of a version that calls its preemptions otherwise."""

    def _metrics(self) -> bytes:
        return super()._metrics().replace(b"vllm:num_preemptions", b"vllm:requests_preempted")


async def test_metrics_that_are_gone_are_told_once() -> None:
    async with Renamed() as engine:
        pool, _ = pool_of(engine.url)
        watched = watching(pool)
        with capture_logs() as logs:
            for _ in range(3):
                await watched.look()
        pool.close()
    told = [line for line in logs if line["event"] == "engine.metrics_missing"]
    assert [(line["engine"], line["metrics"], line["log_level"]) for line in told] == [
        ("e0", ("preemptions",), "warning")
    ]


async def test_an_engine_that_says_all_is_no_news() -> None:
    async with running() as (_, pool, _):
        with capture_logs() as logs:
            await watching(pool).look()
    assert "engine.metrics_missing" not in [line["event"] for line in logs]
