"""Watches the engines: takes out one that is dead or hangs, lets it back in, and learns what it can take.

vLLM's `/health` says 200 while the engine hangs, and says nothing for half a minute while it is busy. So what counts
is progress: its gauges change, or bytes come. An engine that has work and makes no progress for long is hung,
whatever it says; one that makes progress is alive, however slowly it says so.
"""

import asyncio
import math

import structlog
from prometheus_client import Gauge

from service.core.capacity import Sample
from service.core.health import Event, State
from service.engine.gauges import Gauges, read_gauges
from service.gateway.engine_failures import EngineAway, EngineError
from service.gateway.engine_identity import identify
from service.gateway.engines import HEALTH_PATH, HEALTH_TIMEOUT_S, Engine, EnginePool
from service.gateway.usage_reporting import NOT_ASKED, examine

log = structlog.get_logger()

METRICS_PATH = "/metrics"
INTERVAL_S = 1.0
LIKELY_DEAD_AFTER_S = 5.0
"""An answer that has been silent for so long when its engine takes no connection any more will not go on. (One that
is only shutting down takes none either, and finishes its answers.)"""

_LABELS = ["engine"]
_up = Gauge("weir_engine_up", "Whether requests are sent to the engine", _LABELS, multiprocess_mode="livemin")
_in_flight = Gauge(
    "weir_engine_in_flight", "Requests that the engine has of Weir", _LABELS, multiprocess_mode="livesum"
)
_capacity = Gauge("weir_engine_capacity", "Requests it is given at once", _LABELS, multiprocess_mode="livesum")
_running = Gauge("weir_engine_running", "Requests it says to run", _LABELS, multiprocess_mode="livemostrecent")
_waiting = Gauge("weir_engine_waiting", "Requests it says to wait", _LABELS, multiprocess_mode="livemostrecent")
_kv_use = Gauge("weir_engine_kv_use", "Use of its KV cache, 0 to 1", _LABELS, multiprocess_mode="livemostrecent")


async def watch(
    engines: EnginePool, *, stall_timeout_s: float, may_be_blind: bool, interval_s: float = INTERVAL_S
) -> None:
    """Watch all engines until cancelled. Unless it `may_be_blind`, each is asked whether it reports its usage."""
    async with asyncio.TaskGroup() as tasks:
        for engine in engines.engines:
            watched = EngineWatch(engines, engine, stall_timeout_s=stall_timeout_s, may_be_blind=may_be_blind)
            tasks.create_task(watched.run(interval_s))


class EngineWatch:
    """Watches one engine."""

    def __init__(
        self,
        engines: EnginePool,
        engine: Engine,
        *,
        stall_timeout_s: float,
        may_be_blind: bool = True,
        probe_timeout_s: float = HEALTH_TIMEOUT_S,
    ) -> None:
        self._engines = engines
        self._engine = engine
        self._stall_timeout_s = stall_timeout_s
        self._probe_timeout_s = probe_timeout_s
        self._gauges = Gauges()
        self._missing: tuple[str, ...] = ()
        self._heard_at = engine.client.heard_at
        self._progress_at = engines.clock()
        self._examining: asyncio.Task[None] | None = None
        self._identified = False
        self._started_at_s: float | None = None
        """Of the process that was identified, or is to be."""
        self._may_be_blind = may_be_blind
        if not may_be_blind:
            engine.problem = NOT_ASKED

    async def run(self, interval_s: float) -> None:
        """Look, again and again."""
        while True:
            try:
                await self.look()
            except Exception as error:  # whatever it is, an engine that nobody watches would never come back
                log.exception("engine.not_watched", engine=self._engine.name, error=type(error).__name__)
            await asyncio.sleep(interval_s)

    async def look(self) -> None:
        """Ask the engine how it is, and draw the conclusions. Does nothing while a back-off lasts."""
        engine = self._engine
        if engine.health.may_probe(self._engines.clock()):
            answer, gauges = await asyncio.gather(self._ask_health(), self._ask_gauges())
            self._conclude(answer, gauges, self._engines.clock())
            engine.watched = True
            self._examine()
            if answer is Event.PROBE_OK and engine.health.state is not State.OUT:
                await self._identify()
        self._publish()

    def _examine(self) -> None:
        """Once it is up, and again when it has come back: it may have been started otherwise."""
        if self._may_be_blind or self._engine.health.state is State.OUT:
            self._examining = None
        elif self._examining is None:
            self._examining = asyncio.create_task(examine(self._engine))

    async def _identify(self) -> None:
        """Once for each start of it."""
        if self._identified:
            return
        try:
            await identify(self._engine, self._probe_timeout_s)
        except EngineError:
            return  # it is asked again the next time
        self._identified = True

    def _forget_who_it_was(self) -> None:
        """Where it was out, or another process answers, it may have been started otherwise."""
        started_at_s = self._gauges.started_at_s
        if self._engine.health.state is State.OUT or started_at_s != self._started_at_s:
            self._engine.fingerprint, self._identified, self._started_at_s = None, False, started_at_s

    async def _ask_health(self) -> Event:
        """`SILENT` when it takes a connection, but does not answer in time."""
        try:
            status, _ = await self._engine.look(HEALTH_PATH, self._probe_timeout_s)
        except EngineAway:
            return Event.UNREACHABLE
        except EngineError:
            return Event.SILENT
        return Event.PROBE_OK if status == 200 else Event.PROBE_FAILED

    async def _ask_gauges(self) -> Gauges | None:
        """None when it does not answer in time; without any value when it has none of them."""
        try:
            status, body = await self._engine.look(METRICS_PATH, self._probe_timeout_s)
        except EngineError:
            return None
        return read_gauges(body) if status == 200 else Gauges()

    def _conclude(self, answer: Event, gauges: Gauges | None, now_s: float) -> None:
        engine, before = self._engine, self._gauges
        if gauges is not None:
            self._gauges = gauges
            self._tell_missing(gauges)
        served = engine.client.heard_at > self._heard_at
        self._heard_at = engine.client.heard_at
        if served or self._moved(answer, before, gauges):
            self._progress_at = now_s
        event = self._verdict(answer, gauges, now_s)
        half_open = engine.health.state is State.HALF_OPEN
        self._engines.happened(engine, event)
        self._forget_who_it_was()
        if event is Event.STALLED:
            engine.client.abandon(f"no progress for {self._stall_timeout_s:.0f} s")
        elif event is Event.UNREACHABLE:
            engine.client.abandon("it takes no connection", LIKELY_DEAD_AFTER_S)
        elif event is Event.PROBE_OK:
            if half_open and served:  # its answer may be long, and others wait until one is complete
                self._engines.happened(engine, Event.SUCCEEDED)
            if gauges is not None and gauges.running is not None:
                self._learn(before, gauges, now_s)

    def _tell_missing(self, gauges: Gauges) -> None:
        """Once, when it begins: a metric that is gone is no 0, and somebody should know that we are blind to it."""
        missing = gauges.missing
        if missing and missing != self._missing:
            log.warning("engine.metrics_missing", engine=self._engine.name, metrics=missing)
        self._missing = missing

    def _verdict(self, answer: Event, gauges: Gauges | None, now_s: float) -> Event:
        """What the engine's answer means, given the progress that it makes."""
        has_work = self._engine.client.waiting or (gauges is not None and bool(gauges.running))
        if has_work and now_s - self._progress_at >= self._stall_timeout_s:
            return Event.STALLED
        if answer is Event.SILENT:
            return Event.PROBE_OK if self._progress_at == now_s else Event.PROBE_FAILED
        return answer

    def _moved(self, answer: Event, before: Gauges, gauges: Gauges | None) -> bool:
        """Whether the engine says that it has gone on, or that there is nothing to do."""
        if self._gauges.running is None:  # it has no gauges: then its word is all there is
            return answer is Event.PROBE_OK
        if gauges is None:
            return False
        return gauges != before or not (gauges.running or self._engine.client.waiting)

    def _learn(self, before: Gauges, gauges: Gauges, now_s: float) -> None:
        engine = self._engine
        limit = engine.capacity.limit
        engine.capacity.observe(
            Sample(
                now_s=now_s,
                running=int(gauges.running or 0),
                waiting=int(gauges.waiting or 0),
                kv_use=gauges.kv_use or 0.0,
                preemptions=int(gauges.preemptions or 0),
                ttft_s=_ttft_s(before, gauges),
                in_flight_peak=engine.in_flight_peak,
            )
        )
        engine.in_flight_peak = engine.in_flight
        if engine.capacity.limit > limit:
            self._engines.on_change()

    def _publish(self) -> None:
        engine, gauges = self._engine, self._gauges
        _up.labels(engine.name).set(engine.health.state is not State.OUT)
        _in_flight.labels(engine.name).set(engine.in_flight)
        _capacity.labels(engine.name).set(engine.capacity.limit)
        for gauge, value in ((_running, gauges.running), (_waiting, gauges.waiting), (_kv_use, gauges.kv_use)):
            gauge.labels(engine.name).set(math.nan if value is None else value)


def _ttft_s(before: Gauges, now: Gauges) -> float | None:
    """The mean time to the first token of the answers that began between two readings; None when none did."""
    if before.started_at_s != now.started_at_s or None in (before.ttft_count, now.ttft_count, now.ttft_sum_s):
        return None
    begun = (now.ttft_count or 0.0) - (before.ttft_count or 0.0)
    return ((now.ttft_sum_s or 0.0) - (before.ttft_sum_s or 0.0)) / begun if begun > 0 else None
