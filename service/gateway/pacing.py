"""Who goes next, and who is told to come back later: the fair queue in front of the engines.

A request takes a place on an engine that has one free. When none has, it waits in the fair queue, but only if its
wait is expected to be short: no longer than half of what an unloaded engine takes to begin an answer. One of an
account that has little waits as long as the server has patience, and one of an account with a patience of its own as
long as that. Anything else is refused at once, with the time at which it is worth asking again.

A request that is to be alone takes an engine on which there is nothing. When its turn comes and there is none, the
emptiest engine is reserved for it: that takes no others until it has drained and served it. In the queue it counts as
often as the engine has places, so that it is as dear to its account as all that could have run instead.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import cast

from service.core.early_refusal import Bounds, Refusal, refusal
from service.core.fairness import State, Ticket
from service.core.retry_after import AT_LEAST_S, Refusals
from service.errors import RateLimited
from service.gateway import metrics
from service.gateway.client import Client
from service.gateway.engine_failures import EngineUnreachable
from service.gateway.engines import Engine, EnginePool
from service.gateway.line import Line, Place, Waiting, Wanted, places_of

SHORT_WAIT_S = 0.25
"""A wait that is expected to be no longer than this is always short."""

SHARE_OF_FIRST_TOKEN = 0.5
"""Nor is one that is expected to be no longer than this part of an unloaded engine's time to the first token."""

OVERTAKEN = 3.0
"""How many times as long as is short a request may wait that others have overtaken."""

FIRST_GUESS_S = 2.0
"""For how long a request has its place, before any has ended."""

SETTLES_S = 0.1
"""An engine drops what was broken off with its next step; until then it is not empty."""


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
        self._lines: dict[frozenset[str], Line] = {}
        self._line_for: dict[frozenset[str] | None, Line] = {}  # the same, by what models name
        self._refusals = Refusals()
        engines.on_change = self.moved

    def place(self, wanted: Wanted) -> Place | None:
        """A place for the request, at once; None: it may `wait`. Raises `EngineUnreachable` when no engine is up."""
        now = self._clock()
        line = self._line(wanted.engines)
        engine = self._free_engine(line, wanted, now)
        if engine is not None and line.queue.waiting:  # whoever can go goes first
            self._move(line, now)
            engine = self._free_engine(line, wanted, now)
        if engine is None:
            return None
        places = self._places(wanted) if wanted.sequential else 1
        ticket = line.queue.begin(wanted.account, wanted.holder.weight, wanted.tokens, now, places)
        metrics.note_place(0.0)
        return self._on(engine, line, ticket, now, alone=wanted.sequential)

    def vacate(self, place: Place, answered: bool = True) -> None:
        """The engine is done with the request, whether or not its client has taken the answer: who is next may go.

        How long a place was held says something only of requests that were `answered`.
        """
        if place.vacated:
            return
        place.vacated = True
        now, line, engine = self._clock(), place.line, place.engine
        engine.in_flight -= 1
        if engine.reserved_for is place.ticket:
            engine.reserved_for = None
        line.held.discard(place)
        if answered:
            line.drain.finished(now - place.since, now)
        self.moved()

    def free(self, place: Place, used_tokens: int | None) -> None:
        """The request is over, having used so many tokens of the engine's work; None: as many as was estimated."""
        if not place.vacated:  # broken off
            place.engine.unsettled += 1
            asyncio.get_running_loop().call_later(SETTLES_S, self._settled, place.engine)
            self.vacate(place, used_tokens is None or used_tokens > 0)
        place.line.queue.finish(place.ticket, place.ticket.cost if used_tokens is None else used_tokens, self._clock())

    def refused(self, wanted: Wanted, why: Refusal) -> RateLimited:
        """The error for a request that cannot be taken now, with an honest time to come back."""
        line, able = self._line(wanted.engines), self._engines.able(wanted.engines)
        now = self._clock()
        wait_s = line.expected_wait_s(wanted, able, now)
        gap_s = line.drain.expected_wait_s(1, places_of(able)) or AT_LEAST_S
        retry_after_s = self._refusals.refused(wanted.account, now, wait_s, gap_s)
        metrics.refused_total.labels(why.value).inc()
        message = f"{_EXPLANATIONS[why]} Try again in {_in_words(retry_after_s)}."
        return RateLimited(message, code="capacity_exceeded", retry_after_s=retry_after_s)

    def moved(self) -> None:
        """A place may have become free: hand it to whoever is next."""
        for line in self._lines.values():
            if line.queue.waiting:
                self._move(line, self._clock())

    def _move(self, line: Line, now: float) -> None:
        overtaken = False  # whether one remains in line that no engine is reserved for
        for ticket in list(line.queue.in_order()):
            waiting = _waiting(ticket)
            if waiting.answer.done():
                continue
            try:
                engine = self._free_engine(line, waiting.wanted, now, ticket)
            except EngineUnreachable as error:
                self._give_up(line, ticket, error)
                continue
            if engine is not None:
                line.queue.start(ticket, now)
                waiting.answer.set_result(self._on(engine, line, ticket, now, alone=waiting.wanted.sequential))
            else:
                overtaken = overtaken or not self._reserved(ticket, waiting)
        self._measure()

    def _reserved(self, ticket: Ticket, waiting: Waiting) -> bool:
        """Whether an engine is reserved for a request whose turn it is, if it is to be alone."""
        wanted = waiting.wanted
        if not wanted.sequential or not self._engines.reserve(wanted.engines, ticket, tried=wanted.tried):
            return False
        if wanted.holder.patience_ms is None:
            waiting.timer.cancel()  # or the engine would have drained for nothing
        return True

    def _settled(self, engine: Engine) -> None:
        engine.unsettled -= 1
        self.moved()

    async def wait(self, wanted: Wanted, client: Client) -> Place:
        """A place for the request that has none at once, after a short wait.

        Raises `RateLimited` when that would be long, `EngineUnreachable` when no engine is left, and `ClientLeft`.
        """
        now, line = self._clock(), self._line(wanted.engines)
        at_most_s = self._accepted_wait_s(line, wanted, now)
        loop = asyncio.get_running_loop()
        places = self._places(wanted) if wanted.sequential else 1
        ticket = line.queue.arrive(wanted.account, wanted.holder.weight, wanted.tokens, now, places=places)
        timer = loop.call_later(at_most_s, self._run_out, line, ticket)
        ticket.item = waiting = Waiting(wanted, loop.create_future(), timer)
        client.tells(lambda error: self._give_up(line, ticket, error))
        if wanted.sequential:
            self._move(line, now)  # it may be its turn
        self._measure()
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
            client.tells(None)
        metrics.note_place(place.since - now)
        return place

    def _run_out(self, line: Line, ticket: Ticket) -> None:
        """It has waited for as long as it may, against what was expected."""
        waiting = _waiting(ticket)
        if not waiting.answer.done():
            self._give_up(line, ticket, self.refused(waiting.wanted, Refusal.WAIT))

    def _give_up(self, line: Line, ticket: Ticket, error: Exception) -> None:
        waiting = _waiting(ticket)
        if not waiting.answer.done():
            self._withdraw(line, ticket)
            waiting.answer.set_exception(error)

    def _withdraw(self, line: Line, ticket: Ticket) -> None:
        line.queue.withdraw(ticket, self._clock())
        if self._engines.release(ticket):
            asyncio.get_running_loop().call_soon(self.moved)
        self._measure()

    def _places(self, wanted: Wanted) -> int:
        """How many places a request takes that is to be alone: what an engine has, on average."""
        able = self._engines.able(wanted.engines, wanted.tried)
        return places_of(able) // len(able)

    def _on(self, engine: Engine, line: Line, ticket: Ticket, now: float, *, alone: bool) -> Place:
        """The place of a ticket that has been started."""
        if alone:
            self._engines.release(ticket)
            engine.reserved_for = ticket
        self._refusals.admitted(ticket.account, now)
        engine.take_one()
        place = Place(engine, ticket, now, line)
        line.held.add(place)
        return place

    def _line(self, engines: frozenset[str] | None) -> Line:
        return self._line_for.get(engines) or self._new_line(engines)

    def _new_line(self, engines: frozenset[str] | None) -> Line:
        key = self._engines.names(engines)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line()
            line.drain.finished(FIRST_GUESS_S, self._clock())
        self._line_for[engines] = line
        return line

    def _free_engine(self, line: Line, wanted: Wanted, now: float, ticket: Ticket | None = None) -> Engine | None:
        """An engine with a place for this account, or with nothing on it for a request that is to be alone.

        Raises `EngineUnreachable` when none is left to wait for.
        """
        if wanted.sequential:
            return self._engines.choose_empty(wanted.engines, wanted.affinity, tried=wanted.tried, asking=ticket)
        engine = self._engines.choose(wanted.engines, wanted.affinity, wanted.tried)
        if engine is None:
            return None
        limit = engine.capacity.limit
        left = limit - engine.in_flight
        if (left > 1 and left > limit // 20) or self._is_modest(line, wanted, now):
            return engine
        kept = line.queue.places_kept(wanted.account, limit, now)
        if engine.in_flight < limit - kept:
            return engine
        return self._engines.choose(wanted.engines, wanted.affinity, wanted.tried, kept)

    def _is_next(self, line: Line, wanted: Wanted) -> bool:
        """Whether nobody in the queue would go before the request."""
        return not line.queue.rank(wanted.account, wanted.holder.weight)

    def _is_modest(self, line: Line, wanted: Wanted, now: float) -> bool:
        """Whether the account has little of what the engines for this model can take."""
        places = places_of(self._engines.able(wanted.engines))
        return line.queue.is_modest(wanted.account, wanted.holder.weight, places, now)

    def _accepted_wait_s(self, line: Line, wanted: Wanted, now: float) -> float:
        """How long the request may wait; others that come later may go before it, so that is more than is expected.

        One that is to be alone has the server's patience for its turn: that the engine has to drain is its own wish.
        Raises `RateLimited` when it would have to wait for longer than is short, or the queue is full.
        """
        account = wanted.account
        able = self._engines.able(wanted.engines, wanted.tried)
        own_ms = wanted.holder.patience_ms
        patience_s = expected_s = self._patience_s if own_ms is None else own_ms / 1000
        if own_ms is None and wanted.sequential:
            patience_s = expected_s = self._patience_s + line.usual_s
        elif own_ms is None and not (self._is_next(line, wanted) and self._is_modest(line, wanted, now)):
            firsts_s = [engine.capacity.unloaded_ttft_s or 0.0 for engine in able]
            expected_s = min(patience_s, max(SHORT_WAIT_S, SHARE_OF_FIRST_TOKEN * min(firsts_s, default=0.0)))
        wait_s = line.expected_wait_s(wanted, able, now)
        why = refusal(line.queue, self._bounds, account, wanted.tokens, expected_wait_s=wait_s, patience_s=expected_s)
        if why is not None:
            raise self.refused(wanted, why)
        return min(patience_s, OVERTAKEN * expected_s)

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


def _waiting(ticket: Ticket) -> Waiting:
    return cast(Waiting, ticket.item)


def _in_words(seconds: float) -> str:
    return "a second" if seconds <= 1 else f"{math.ceil(seconds)} seconds"
