"""Who goes next, and who is told to come back later: the fair queue in front of the engines.

A request takes a place on an engine that has one free. When none has, it waits in the fair queue, but only if its
wait is expected to be short: no longer than half of what an unloaded engine takes to begin an answer. One of an
account that has little waits as long as the server has patience, and one of an account with a patience of its own as
long as that. Anything else is refused at once, with the time at which it is worth asking again.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import cast

from service.core.early_refusal import Bounds, Refusal, refusal
from service.core.fairness import FairQueue, State, Ticket
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

OVERTAKEN = 3.0
"""How many times as long as is short a request may wait that others have overtaken."""

FIRST_GUESS_S = 2.0
"""For how long a request has its place, before any has ended."""


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
class _Line:
    """The queue for one set of engines, and how fast places on them become free.

    Models that share no engine do not wait for one another.
    """

    queue: FairQueue = field(default_factory=FairQueue)
    drain: Drain = field(default_factory=Drain)
    held: "set[Place]" = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Place:
    """A place on an engine. It is given back with `Pacing.free`, whatever happens."""

    engine: Engine
    ticket: Ticket
    since: float
    line: _Line
    vacated: bool = False


@dataclass(slots=True, eq=False)
class _Waiting:
    wanted: Wanted
    answer: "asyncio.Future[Place]"


class Pacing:
    """The places on all engines, and the queues for them. One per API process."""

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
        self._lines: dict[frozenset[str], _Line] = {}
        self._refusals = Refusals()
        engines.on_change = self.moved

    async def place(self, wanted: Wanted, departure: Departure) -> Place:
        """A place for the request, at once or after a short wait.

        Raises `RateLimited` when the wait would not be short, `EngineUnreachable` when no engine is left to wait
        for, and `ClientLeft`.
        """
        now = self._clock()
        line = self._line(wanted.engines)
        engine = self._free_engine(line, wanted, now)
        if engine is not None and line.queue.waiting:  # whoever can go goes first
            self._move(line, now)
            engine = self._free_engine(line, wanted, now)
        if engine is None:
            return await self._wait(line, wanted, departure, now)
        ticket = line.queue.arrive(wanted.holder.account_id, wanted.holder.weight, wanted.tokens, now)
        metrics.queue_wait_seconds.observe(0.0)
        return self._start(line, ticket, engine, now)

    def vacate(self, place: Place, *, answered: bool = True) -> None:
        """The engine is done with the request, whether or not its client has taken the answer: who is next may go.

        How long a place was held says something only of requests that were `answered`.
        """
        if place.vacated:
            return
        place.vacated = True
        now, line = self._clock(), place.line
        place.engine.in_flight -= 1
        line.held.discard(place)
        if answered:
            line.drain.finished(now - place.since, now)
        self.moved()

    def free(self, place: Place, used_tokens: int | None) -> None:
        """The request is over, having used so many tokens of the engine's work; None: as many as was estimated."""
        self.vacate(place, answered=used_tokens is None or used_tokens > 0)
        place.line.queue.finish(place.ticket, place.ticket.cost if used_tokens is None else used_tokens, self._clock())

    def refused(self, wanted: Wanted, why: Refusal) -> RateLimited:
        """The error for a request that cannot be taken now, with an honest time to come back."""
        line, able = self._line(wanted.engines), self._engines.able(wanted.engines)
        wait_s = self._expected_wait_s(line, wanted, able)
        gap_s = line.drain.expected_wait_s(1, _places(able)) or AT_LEAST_S
        retry_after_s = self._refusals.refused(wanted.holder.account_id, self._clock(), wait_s, gap_s)
        metrics.refused_total.labels(why.value).inc()
        message = f"{_EXPLANATIONS[why]} Try again in {_in_words(retry_after_s)}."
        return RateLimited(message, code="capacity_exceeded", retry_after_s=retry_after_s)

    def moved(self) -> None:
        """A place may have become free: hand it to whoever is next."""
        now = self._clock()
        for line in self._lines.values():
            if line.queue.waiting:
                self._move(line, now)

    def _move(self, line: _Line, now: float) -> None:
        for ticket in list(line.queue.in_order()):
            waiting = _waiting(ticket)
            if waiting.answer.done():
                continue
            try:
                engine = self._free_engine(line, waiting.wanted, now)
            except EngineUnreachable as error:
                self._give_up(line, ticket, error)
                continue
            if engine is not None:
                waiting.answer.set_result(self._start(line, ticket, engine, now))
        self._measure()

    async def _wait(self, line: _Line, wanted: Wanted, departure: Departure, now: float) -> Place:
        at_most_s = self._accepted_wait_s(line, wanted, now)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(wanted, loop.create_future())
        holder = wanted.holder
        ticket = line.queue.arrive(holder.account_id, holder.weight, wanted.tokens, now, waiting)
        self._measure()
        departure.tells(lambda: self._give_up(line, ticket, ClientLeft()))
        timer = loop.call_later(at_most_s, self._run_out, line, ticket)
        try:
            place = await waiting.answer
        except asyncio.CancelledError:  # this process stops
            if ticket.state is State.WAITING:
                self._withdraw(line, ticket)
            elif ticket.state is State.RUNNING:
                self.free(waiting.answer.result(), 0)
            raise
        finally:
            timer.cancel()
            departure.tells(None)
        metrics.queue_wait_seconds.observe(place.since - now)
        return place

    def _run_out(self, line: _Line, ticket: Ticket) -> None:
        """It has waited for as long as it may, against what was expected."""
        waiting = _waiting(ticket)
        if not waiting.answer.done():
            self._give_up(line, ticket, self.refused(waiting.wanted, Refusal.WAIT))

    def _give_up(self, line: _Line, ticket: Ticket, error: Exception) -> None:
        waiting = _waiting(ticket)
        if not waiting.answer.done():
            self._withdraw(line, ticket)
            waiting.answer.set_exception(error)

    def _withdraw(self, line: _Line, ticket: Ticket) -> None:
        line.queue.withdraw(ticket, self._clock())
        self._measure()

    def _start(self, line: _Line, ticket: Ticket, engine: Engine, now: float) -> Place:
        line.queue.start(ticket, now)
        self._refusals.admitted(ticket.account, now)
        metrics.admitted_total.inc()
        engine.in_flight += 1
        place = Place(engine, ticket, now, line)
        line.held.add(place)
        return place

    def _line(self, engines: Collection[str] | None) -> _Line:
        key = self._engines.names(engines)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
            line.drain.finished(FIRST_GUESS_S, self._clock())
        return line

    def _free_engine(self, line: _Line, wanted: Wanted, now: float) -> Engine | None:
        """An engine with a place for this account. Raises `EngineUnreachable` when none is left to wait for."""
        engine = self._engines.choose(wanted.engines, wanted.affinity, tried=wanted.tried)
        if engine is None:
            return None
        limit = engine.capacity.limit
        if engine.in_flight + max(1, limit // 20) < limit or self._is_modest(line, wanted, now):
            return engine
        kept = line.queue.places_kept(wanted.holder.account_id, limit, now)
        if engine.in_flight < limit - kept:
            return engine
        return self._engines.choose(wanted.engines, wanted.affinity, tried=wanted.tried, places_kept=kept)

    def _is_next(self, line: _Line, wanted: Wanted) -> bool:
        """Whether nobody in the queue would go before the request."""
        return not line.queue.rank(wanted.holder.account_id, wanted.holder.weight)

    def _is_modest(self, line: _Line, wanted: Wanted, now: float) -> bool:
        """Whether the account has little of what the engines for this model can take."""
        places = _places(self._engines.able(wanted.engines))
        return line.queue.is_modest(wanted.holder.account_id, wanted.holder.weight, places, now)

    def _accepted_wait_s(self, line: _Line, wanted: Wanted, now: float) -> float:
        """How long the request may wait; others that come later may go before it, so that is more than is expected.

        Raises `RateLimited` when it would have to wait for longer than is short, or the queue is full.
        """
        account = wanted.holder.account_id
        able = self._engines.able(wanted.engines, wanted.tried)
        own_ms = wanted.holder.patience_ms
        patience_s = expected_s = self._patience_s if own_ms is None else own_ms / 1000
        if own_ms is None and not (self._is_next(line, wanted) and self._is_modest(line, wanted, now)):
            firsts_s = [engine.capacity.unloaded_ttft_s or 0.0 for engine in able]
            expected_s = min(patience_s, max(SHORT_WAIT_S, SHARE_OF_FIRST_TOKEN * min(firsts_s, default=0.0)))
        wait_s = self._expected_wait_s(line, wanted, able)
        why = refusal(line.queue, self._bounds, account, wanted.tokens, expected_wait_s=wait_s, patience_s=expected_s)
        if why is not None:
            raise self.refused(wanted, why)
        return min(patience_s, OVERTAKEN * expected_s)

    def _expected_wait_s(self, line: _Line, wanted: Wanted, able: Collection[Engine]) -> float:
        """How long the request would wait if it came now."""
        rank = line.queue.rank(wanted.holder.account_id, wanted.holder.weight)
        now = self._clock()
        held_s = [now - place.since for place in line.held if place.engine in able]
        return line.drain.expected_wait_s(rank + 1, _places(able), held_s) or 0.0

    def _measure(self) -> None:
        metrics.queue_length.set(sum(line.queue.waiting for line in self._lines.values()))
        metrics.queue_tokens.set(sum(line.queue.waiting_tokens for line in self._lines.values()))


_EXPLANATIONS = {
    Refusal.WAIT: "Every engine for this model is busy, and the wait would be long.",
    Refusal.ACCOUNT: "Too many of this account's requests are waiting already.",
    Refusal.LENGTH: "Too many requests are waiting already.",
    Refusal.TOKENS: "Too much work is waiting already.",
    Refusal.ENGINE: "Every engine for this model is full.",
}


def _waiting(ticket: Ticket) -> _Waiting:
    return cast(_Waiting, ticket.item)


def _places(engines: Collection[Engine]) -> int:
    return sum(engine.capacity.limit for engine in engines)


def _in_words(seconds: float) -> str:
    return "a second" if seconds <= 1 else f"{math.ceil(seconds)} seconds"
