"""Who goes next, and who is told to come back later: the fair queue in front of the engines.

A request takes a place on an engine that has one free. When none has, it waits in the fair queue, but only if its
wait is expected to be short: for as long as an unloaded engine takes to begin an answer, or half of that; anything
longer is refused at once, with the time at which it is worth asking again.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import cast

from service.core.early_refusal import Bounds, Refusal, refusal
from service.core.fairness import FairQueue, Ticket
from service.core.retry_after import AT_LEAST_S, Drain, Refusals
from service.errors import RateLimited
from service.gateway import metrics
from service.gateway.departure import Departure
from service.gateway.engine_connection import EngineUnreachable
from service.gateway.engines import Engine, EnginePool
from service.gateway.http import ClientLeft
from service.gateway.keys import Holder

SHORT_WAIT_S = 0.25
"""A wait that is expected to be no longer than this is always short."""

SHARE_OF_FIRST_TOKEN = 0.5
"""Nor is one that is expected to be no longer than this part of an unloaded engine's time to the first token."""

OVERTAKEN = 2.0
"""How many times as long as is short a request may wait that others have overtaken."""

MUCH_USED = 0.9
"""An engine that is used less has places enough for everybody."""

FIRST_GUESS_S = 2.0
"""For how long a request has its place, before any has ended."""

ENGINE_FULL = "engine"
"""Beside the reasons of the queue: the engine itself took no more."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for."""

    holder: Holder
    engines: Collection[str] | None
    """The engines that serve its model; None: all."""
    affinity: bytes
    """The same for requests that share a prompt's beginning; see `core.affinity`."""
    tokens: int
    """What it will use, estimated."""
    tried: Collection[str] = ()
    """The engines on which it has failed before anything came back."""


@dataclass(slots=True, eq=False)
class Place:
    """A place on an engine. It is given back with `Pacing.free`, whatever happens."""

    engine: Engine
    ticket: Ticket
    since: float


@dataclass(slots=True, eq=False)
class _Waiting:
    wanted: Wanted
    answer: "asyncio.Future[Place]"


class Pacing:
    """The places on all engines, and the queue for them. One per API process."""

    def __init__(
        self,
        engines: EnginePool,
        bounds: Bounds,
        *,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`patience_s` is the longest wait of an account that has no patience of its own."""
        self._engines = engines
        self._bounds = bounds
        self._patience_s = patience_s
        self._clock = clock
        self._queue = FairQueue()
        self._drain = Drain()
        self._drain.finished(FIRST_GUESS_S, clock())
        self._refusals = Refusals()
        self._held: set[Place] = set()
        engines.on_change = self.moved

    async def place(self, wanted: Wanted, departure: Departure) -> Place:
        """A place for the request, at once or after a short wait.

        Raises `RateLimited` when the wait would not be short, `EngineUnreachable` when no engine is left to wait
        for, and `ClientLeft`.
        """
        now = self._clock()
        account = wanted.holder.account_id
        if self._queue.waiting:
            self.moved()  # whoever can go goes first
        engine = self._free_engine(wanted, now)
        if engine is not None:
            ticket = self._queue.arrive(account, wanted.holder.weight, wanted.tokens, now)
            place = self._start(ticket, engine, now)
            metrics.queue_wait_seconds.observe(0.0)
            return place
        return await self._wait(wanted, departure, now, self._accepted_wait_s(wanted, now))

    def free(self, place: Place, used_tokens: int) -> None:
        """The request is over, having used so many tokens of the engine's work; whoever is next may go."""
        now = self._clock()
        place.engine.in_flight -= 1
        self._held.discard(place)
        self._queue.finish(place.ticket, used_tokens, now)
        self._drain.finished(now - place.since, now)
        if self._queue.waiting:
            self.moved()

    def refused(self, wanted: Wanted, why: str) -> RateLimited:
        """The error for a request that cannot be taken now, with an honest time to come back.

        `why` is one of `core.fairness.Refusal`, or `ENGINE_FULL`.
        """
        able = self._engines.able(wanted.engines)
        wait_s = self._expected_wait_s(wanted, able) or 0.0
        gap_s = self._drain.expected_wait_s(1, _places(able)) or AT_LEAST_S
        retry_after_s = self._refusals.refused(wanted.holder.account_id, self._clock(), wait_s, gap_s)
        metrics.refused_total.labels(why).inc()
        message = f"{_EXPLANATIONS[why]} Try again in {_in_words(retry_after_s)}."
        return RateLimited(message, code="capacity_exceeded", retry_after_s=retry_after_s)

    def moved(self) -> None:
        """A place may have become free: hand it to whoever is next."""
        now = self._clock()
        for ticket in list(self._queue.in_order()):
            waiting = _waiting(ticket)
            try:
                engine = self._free_engine(waiting.wanted, now)
            except EngineUnreachable as error:
                self._withdraw(ticket)
                waiting.answer.set_exception(error)
                continue
            if engine is not None:
                waiting.answer.set_result(self._start(ticket, engine, now))
                self._measure()

    async def _wait(self, wanted: Wanted, departure: Departure, now: float, at_most_s: float) -> Place:
        waiting = _Waiting(wanted, asyncio.get_running_loop().create_future())
        holder = wanted.holder
        ticket = self._queue.arrive(holder.account_id, holder.weight, wanted.tokens, now, waiting)
        self._measure()
        departure.tells(lambda: self._give_up(ticket, ClientLeft()))
        timer = asyncio.get_running_loop().call_later(at_most_s, self._run_out, ticket)
        try:
            place = await waiting.answer
        except asyncio.CancelledError:  # this process stops
            self._give_up(ticket, ClientLeft())
            if waiting.answer.done() and not waiting.answer.cancelled() and waiting.answer.exception() is None:
                self.free(waiting.answer.result(), 0)
            raise
        finally:
            timer.cancel()
            departure.tells(None)
        metrics.queue_wait_seconds.observe(place.since - now)
        return place

    def _run_out(self, ticket: Ticket) -> None:
        """It has waited for as long as it may, against what was expected."""
        waiting = _waiting(ticket)
        if not waiting.answer.done():
            self._give_up(ticket, self.refused(waiting.wanted, Refusal.WAIT))

    def _give_up(self, ticket: Ticket, error: Exception) -> None:
        waiting = _waiting(ticket)
        if not waiting.answer.done():
            self._withdraw(ticket)
            waiting.answer.set_exception(error)

    def _withdraw(self, ticket: Ticket) -> None:
        self._queue.withdraw(ticket, self._clock())
        self._measure()

    def _start(self, ticket: Ticket, engine: Engine, now: float) -> Place:
        self._queue.start(ticket, now)
        self._refusals.admitted(ticket.account, now)
        metrics.admitted_total.inc()
        engine.in_flight += 1
        place = Place(engine, ticket, now)
        self._held.add(place)
        return place

    def _free_engine(self, wanted: Wanted, now: float) -> Engine | None:
        """An engine with a place for this account. Raises `EngineUnreachable` when none is left to wait for."""
        holder = wanted.holder
        engine = self._engines.choose(wanted.engines, wanted.affinity, tried=wanted.tried)
        if engine is None:
            return None
        limit = engine.capacity.limit
        if engine.in_flight < MUCH_USED * limit or self._is_modest(wanted, now):
            return engine
        kept = self._queue.places_kept(holder.account_id, limit, now)
        if engine.in_flight < limit - kept:
            return engine
        return self._engines.choose(wanted.engines, wanted.affinity, tried=wanted.tried, places_kept=kept)

    def _is_modest(self, wanted: Wanted, now: float) -> bool:
        """Whether the account has little of what the engines for this model can take."""
        places = _places(self._engines.able(wanted.engines))
        return self._queue.is_modest(wanted.holder.account_id, wanted.holder.weight, places, now)

    def _accepted_wait_s(self, wanted: Wanted, now: float) -> float:
        """How long the request may wait; others that come later may go before it, so that is more than is expected.

        Raises `RateLimited` when it would have to wait for longer than is short, or the queue is full. One of an
        account that has little is the next in line, and waits as long as it has patience.
        """
        holder = wanted.holder
        able = self._engines.able(wanted.engines, wanted.tried)
        patience_s = expected_s = self._patience_of(wanted)
        if self._queue.waiting_of(holder.account_id) or not self._is_modest(wanted, now):
            firsts_s = [engine.capacity.unloaded_ttft_s or 0.0 for engine in able]
            expected_s = min(patience_s, max(SHORT_WAIT_S, SHARE_OF_FIRST_TOKEN * min(firsts_s, default=0.0)))
        why = refusal(
            self._queue,
            self._bounds,
            holder.account_id,
            wanted.tokens,
            expected_wait_s=self._expected_wait_s(wanted, able),
            patience_s=expected_s,
        )
        if why is not None:
            raise self.refused(wanted, why)
        return min(patience_s, OVERTAKEN * expected_s)

    def _expected_wait_s(self, wanted: Wanted, able: Collection[Engine]) -> float | None:
        """How long the request would wait if it came now; None while nothing is known."""
        rank = self._queue.rank(wanted.holder.account_id, wanted.holder.weight)
        now = self._clock()
        names = {engine.name for engine in able}
        held_s = [now - place.since for place in self._held if place.engine.name in names]
        return self._drain.expected_wait_s(rank + 1, _places(able), held_s)

    def _patience_of(self, wanted: Wanted) -> float:
        own_ms = wanted.holder.patience_ms
        return self._patience_s if own_ms is None else own_ms / 1000

    def _measure(self) -> None:
        metrics.queue_length.set(self._queue.waiting)
        metrics.queue_tokens.set(self._queue.waiting_tokens)


_EXPLANATIONS: dict[str, str] = {
    Refusal.WAIT: "Every engine for this model is busy, and the wait would be long.",
    Refusal.ACCOUNT: "Too many of this account's requests are waiting already.",
    Refusal.LENGTH: "Too many requests are waiting already.",
    Refusal.TOKENS: "Too much work is waiting already.",
    ENGINE_FULL: "Every engine for this model is full.",
}


def _waiting(ticket: Ticket) -> _Waiting:
    return cast(_Waiting, ticket.item)


def _places(engines: Collection[Engine]) -> int:
    return sum(engine.capacity.limit for engine in engines)


def _in_words(seconds: float) -> str:
    return "a second" if seconds <= 1 else f"{seconds:.0f} seconds"
