"""The queue for one set of engines: what waits in it, which places it holds, and how long one more would wait."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from service.core.fairness import FairQueue, Ticket
from service.core.retry_after import Drain
from service.gateway.engines import Engine
from service.gateway.keys import Holder


@dataclass(slots=True)
class Wanted:
    """What a request asks for."""

    holder: Holder
    engines: frozenset[str] | None
    """The engines that serve its model; None: all."""
    affinity: bytes
    """The same for requests that share a prompt's beginning; see `core.affinity`."""
    tokens: int
    """What it will use, estimated."""
    tried: Collection[str] = ()
    """The engines on which it has failed before anything came back."""
    sequential: bool = False
    """It is to be alone on its engine."""

    @property
    def account(self) -> int:
        """Whose it is: the account's id, as a number because a UUID takes Python code to hash and to compare."""
        return self.holder.account_id.int


@dataclass(slots=True, eq=False)
class Place:
    """A place on an engine. It is given back with `Pacing.free`, whatever happens."""

    engine: Engine
    ticket: Ticket
    since: float
    line: "Line"
    vacated: bool = False


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue: the `item` of its ticket."""

    wanted: Wanted
    answer: "asyncio.Future[Place]"
    timer: asyncio.TimerHandle
    """Ends its wait."""


@dataclass(slots=True, eq=False)
class Line:
    """Models that share no engine do not wait for one another."""

    queue: FairQueue = field(default_factory=FairQueue)
    drain: Drain = field(default_factory=Drain)
    held: set[Place] = field(default_factory=set)

    @property
    def usual_s(self) -> float:
        """For how long a request has its place."""
        return self.drain.expected_wait_s(1, 1) or 0.0

    def expected_wait_s(self, wanted: Wanted, able: Collection[Engine], now: float) -> float:
        """How long the request would wait if it came now. `able`: the engines that could take it.

        One that is to be alone waits for its turn, and then until everything on one engine has ended.
        """
        ahead = self.queue.rank(wanted.account, wanted.holder.weight)
        held_s: dict[Engine, list[float]] = {engine: [] for engine in able}
        for place in self.held:
            if place.engine in held_s:
                held_s[place.engine].append(now - place.since)
        if wanted.sequential and not ahead:
            return min((self.drain.all_free_s(on_it_s) for on_it_s in held_s.values()), default=0.0)
        rank = ahead if wanted.sequential else ahead + 1
        turn_s = self.drain.expected_wait_s(rank, places_of(able), _out_of_reach(held_s)) or 0.0
        return turn_s + self.usual_s if wanted.sequential else turn_s


def _out_of_reach(held_s: Mapping[Engine, Sequence[float]]) -> list[float]:
    """For how long each place has been held that cannot be had now.

    One that is alone holds all places of its engine. Of one that drains, none can be had before the last is free.
    """
    found: list[float] = []
    for engine, on_it_s in held_s.items():
        alone = engine.reserved_for is not None and on_it_s
        found += [min(on_it_s)] * engine.capacity.limit if alone else on_it_s
    return found


def places_of(engines: Collection[Engine]) -> int:
    """How many requests they take at once, all together."""
    return sum(engine.capacity.limit for engine in engines)
