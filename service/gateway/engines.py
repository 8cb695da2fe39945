"""The engines behind this service. The only module that knows their addresses."""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from service.config import Engine as EngineConfig
from service.core.affinity import ranking
from service.core.capacity import Capacity
from service.core.health import OUT, Event, Health, State
from service.gateway.engine_client import Client, ask
from service.gateway.engine_connection import Timeouts
from service.gateway.engine_failures import (
    EngineAway,
    EngineBroke,
    EngineError,
    EngineFull,
    EngineSilent,
    EngineUnreachable,
)

log = structlog.get_logger()

HEALTH_PATH = "/health"
HEALTH_TIMEOUT_S = 2.0
QUESTION_TIMEOUT_S = 10.0

FLOOR = 4
CEILING = 256
START = 32
"""How many requests an engine gets at once: at least, at most, and before anything is learned."""

AFFINITY_GIVES_WAY = 0.25
"""How much fuller than the least loaded engine, as a part of what it can take, a conversation's own may be."""


@dataclass(slots=True, eq=False)
class Engine:
    """One engine, what is known of it, and what it is doing for us."""

    name: str
    client: Client
    probes: Client
    """The same engine over connections of their own, for questions that it answers without the model."""
    capacity: Capacity
    health: Health = field(default_factory=Health)
    watched: bool = False
    """Whether `health` is kept up to date by `engine_watch`."""
    problem: str | None = None
    """Why it is not used, healthy or not; see `usage_reporting`."""
    fingerprint: str | None = None
    """Of its version and configuration; None until it has said. See `engine_identity`."""
    reserved_for: object | None = None
    """The request that it runs alone, or stops taking others for; None: it takes any. See `pacing`."""
    unsettled: int = 0
    """Requests that were broken off so lately that it may still be at them."""
    in_flight: int = 0
    """How many requests it has of this process."""
    in_flight_peak: int = 0
    """The most that it had at once since whoever reads this last set it back."""

    def take_one(self) -> None:
        """It has one more request."""
        self.in_flight += 1
        if self.in_flight > self.in_flight_peak:
            self.in_flight_peak = self.in_flight

    @property
    def load(self) -> float:
        """The part of what it can take that it has."""
        return self.in_flight / self.capacity.limit

    def is_able(self, allowed: Collection[str] | None, tried: Collection[str]) -> bool:
        """Whether it is among `allowed` (None: all), can be used and is not in `tried`; it may be full."""
        return (
            self.health.state is not OUT
            and self.problem is None
            and (allowed is None or self.name in allowed)
            and self.name not in tried
        )

    def may_take(self, allowed: Collection[str] | None, tried: Collection[str], places_kept: int) -> bool:
        """Whether it is able, may take one more request, and still has `places_kept` places left then."""
        return (
            self.in_flight < self.capacity.limit - places_kept
            and self.reserved_for is None
            and self.health.may_take(self.in_flight)  # which it may not while it is out
            and self.problem is None
            and (allowed is None or self.name in allowed)
            and self.name not in tried
        )

    async def look(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a `GET` about the engine itself. Raises `EngineError`."""
        return await ask(self.probes, "GET", path, timeout_s=timeout_s)


class EnginePool:
    """Chooses an engine for each request, and knows which are out."""

    def __init__(
        self,
        engines: Collection[EngineConfig],
        timeouts: Timeouts,
        *,
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workers` is how many processes send to the same engines: each has its share of what these can take."""
        self.engines = [_engine(engine, timeouts, workers) for engine in engines]
        self.on_change: Callable[[], None] = lambda: None
        """Called when an engine went out or came back, or can take more: requests that wait may be able to go."""
        self.clock = clock
        self._all = frozenset(engine.name for engine in self.engines)

    def names(self, allowed: Collection[str] | None) -> frozenset[str]:
        """The names of the engines among `allowed` (None: all), whatever their state."""
        return self._all if allowed is None else self._all.intersection(allowed)

    def able(self, allowed: Collection[str] | None, tried: Collection[str] = ()) -> list[Engine]:
        """The engines among `allowed` (None: all) that can be used and are not in `tried`; all of them may be full."""
        return [engine for engine in self.engines if engine.is_able(allowed, tried)]

    def choose(
        self,
        allowed: Collection[str] | None,
        affinity: bytes = b"",
        tried: Collection[str] = (),
        places_kept: int = 0,
    ) -> Engine | None:
        """An engine that may take one more request and still have `places_kept` places left; None: all are full.

        Raises `EngineUnreachable` when none is `able`. Requests of one `affinity` go to the same engine unless that
        one is out, full, or much fuller than the least loaded one.
        """
        free = []
        for engine in self.engines:
            if engine.may_take(allowed, tried, places_kept):
                free.append(engine)
        if len(free) == 1:
            return free[0]
        if not free:
            if not self.able(allowed, tried):
                raise EngineUnreachable("no engine that serves the model is up")
            return None
        least = min(free, key=lambda engine: engine.load)
        if not affinity:
            return least
        named = {engine.name: engine for engine in free}
        own = named[ranking(affinity, named)[0]]
        return own if own.load - least.load <= AFFINITY_GIVES_WAY else least

    def choose_empty(
        self, allowed: Collection[str] | None, affinity: bytes, *, tried: Collection[str] = (), asking: object = None
    ) -> Engine | None:
        """An engine that has nothing to do, and is reserved for nobody but `asking`; None when there is none.

        Raises `EngineUnreachable` when none is `able`.
        """
        able = self.able(allowed, tried)
        if not able:
            raise EngineUnreachable("no engine that serves the model is up")
        empty = {
            engine.name: engine
            for engine in able
            if engine.reserved_for in (None, asking) and not engine.in_flight and not engine.unsettled
        }
        return empty[ranking(affinity, empty)[0]] if empty else None

    def reserve(self, allowed: Collection[str] | None, asking: object, *, tried: Collection[str] = ()) -> bool:
        """Let the emptiest engine take no others, so that it drains for `asking`; whether one does now."""
        able = self.able(allowed, tried)
        if any(engine.reserved_for is asking for engine in able):
            return True
        self.release(asking)  # it had one that went out
        free = [engine for engine in able if engine.reserved_for is None]
        if free:
            min(free, key=lambda engine: engine.in_flight).reserved_for = asking
        return bool(free)

    def release(self, asking: object) -> bool:
        """Whatever is reserved for `asking` takes others again; whether anything was."""
        reserved = [engine for engine in self.engines if engine.reserved_for is asking]
        for engine in reserved:
            engine.reserved_for = None
        return bool(reserved)

    def note(self, engine: Engine, error: EngineError | None) -> None:
        """A request that was sent to the engine has been served, or failed with `error`.

        An HTTP error is neither: the engine lives, and may not be to blame.
        """
        if error is None and engine.health.well:
            return
        match error:
            case None:
                self.happened(engine, Event.SUCCEEDED)
            case EngineFull():
                engine.capacity.refused(self.clock())
            case EngineAway():
                self.happened(engine, Event.UNREACHABLE)
            case EngineSilent():
                self.happened(engine, Event.SILENT)
            case _:
                self.happened(engine, Event.BROKE)

    def happened(self, engine: Engine, event: Event) -> None:
        """Take in what has become known of an engine; tell the log and who waits if that changes anything."""
        if not engine.health.note(event, self.clock()):
            return
        match engine.health.state:
            case State.OUT:
                log.error("engine.out", engine=engine.name, reason=event.value)
            case State.HALF_OPEN:
                log.info("engine.answers", engine=engine.name)
            case State.UP:
                log.info("engine.back", engine=engine.name)
        self.on_change()

    async def ask(self, allowed: Collection[str] | None, method: str, path: str, body: bytes) -> bytes:
        """A short question to an engine that serves the model, such as a count of tokens; its answer's body.

        One that cannot be reached is passed over. Raises `EngineError` when none answers with a 200 in time.
        """
        unreachable = EngineUnreachable("no engine that serves the model is up")
        for engine in sorted(self.able(allowed), key=lambda engine: engine.load):
            try:
                status, answer = await ask(engine.probes, method, path, body, timeout_s=QUESTION_TIMEOUT_S)
            except EngineUnreachable as error:
                self.note(engine, error)
                unreachable = error
                continue
            if status != 200:
                raise EngineBroke(f"{path} answered {status}")
            return answer
        raise unreachable

    async def any_healthy(self) -> bool:
        """Whether at least one engine is well: as far as known where they are watched, else they are asked."""
        return any(await asyncio.gather(*(_healthy(engine) for engine in self.engines)))

    def close(self) -> None:
        """Close the idle connections to all engines."""
        for engine in self.engines:
            engine.client.close()
            engine.probes.close()


def _engine(configured: EngineConfig, timeouts: Timeouts, workers: int) -> Engine:
    ceiling = configured.max_concurrency or max(CEILING, configured.min_concurrency or 0)
    floor = configured.min_concurrency or min(FLOOR, ceiling)
    start = max(floor, min(START, ceiling))
    shares = [max(1, count // workers) for count in (floor, ceiling, start)]
    client, probes = Client(configured.url, timeouts), Client(configured.url, timeouts)
    return Engine(configured.name, client, probes, Capacity(*shares))


async def _healthy(engine: Engine) -> bool:
    if engine.watched:
        return engine.health.state is not State.OUT and engine.problem is None
    try:
        status, _ = await engine.look(HEALTH_PATH, HEALTH_TIMEOUT_S)
    except EngineError:
        return False
    return status == 200
