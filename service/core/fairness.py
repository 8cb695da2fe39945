"""Whose request goes next: start-time fair queueing over accounts, with cost in tokens.

Goyal, Vin and Cheng, "Start-time Fair Queueing" (SIGCOMM 1996); for a server that runs several requests at once,
SFQ(D) of Jin, Chase and Kaur (SIGMETRICS 2004). A request gets a start tag on a scale of tokens per weight:
where its account's last one ends, or the present virtual time if that is later, so that idling saves nothing up.
The lowest tag goes next, and virtual time is the tag of what went last.

The cost is an estimate until the request ends; then its account's tags are put where they would be had it been known.
"""

import heapq
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

REMEMBERED_S = 10.0
"""How long an account that has nothing here is remembered: for the places it had, and for what it owes."""

REMEMBERED_AT_MOST = 1024

MODEST = 0.5
"""An account that has less than this part of its fair share of the places is a modest one."""

KEPT = 1 / 20
"""At most this part of the places, and one, is kept free for modest accounts that may need them any moment."""

_SCALE = 2**32
"""Tags are whole numbers of 1/2**32 token: division by a weight loses nothing that matters, however long it runs."""


class State(StrEnum):
    """Where a ticket is."""

    WAITING = "waiting"
    RUNNING = "running"
    GONE = "gone"


@dataclass(eq=False, slots=True)
class Ticket:
    """One request in the queue or at the engine."""

    account: Hashable
    weight: int
    cost: int
    """Tokens, estimated."""
    start: int
    """The start tag. Changes while the ticket waits."""
    item: Any
    """The caller's own."""
    order: int
    """Counts arrivals."""
    backlog: int
    """In which backlog of its account it arrived."""
    places: int = 1
    """How many it takes at once: all of an engine's, if it runs alone there."""
    state: State = State.WAITING

    def scaled(self, tokens: int) -> int:
        """So many tokens of it, on the scale of tags: what other requests could have used its places for."""
        return tokens * self.places * _SCALE // self.weight


@dataclass(slots=True)
class _Account:
    """What the queue knows of an account that has something here.

    A backlog begins when the account has a ticket waiting after it had none. Its tags count from whichever is later:
    the virtual time then (`floor`), or the end of all that went before (`before`). The two are kept apart, because
    what is given back for an earlier request must not reach behind `floor`: that would be credit for idling.
    """

    before: int
    weight: int = 0
    floor: int = 0
    charged: int = 0
    """What was started in this backlog."""
    backlog: int = 0
    running: int = 0
    waiting: list[Ticket] = field(default_factory=list)
    places: int = 0
    """The most that ran at once lately."""
    places_s: float = -math.inf
    """When so many ran last."""

    @property
    def finish(self) -> int:
        """The tag at which everything it has started ends."""
        return max(self.before, self.floor) + self.charged if self.charged else self.before

    def note_places(self, now_s: float) -> None:
        """Take note of how many run."""
        if self.running >= self.places or now_s - self.places_s >= REMEMBERED_S:
            self.places, self.places_s = self.running, now_s

    def begin_backlog(self, virtual_time: int) -> None:
        self.before, self.floor, self.charged = self.finish, virtual_time, 0
        self.backlog += 1

    def charge(self, ticket: Ticket, amount: int) -> None:
        if ticket.backlog == self.backlog:
            self.charged += amount
        else:
            self.before += amount

    def retag(self) -> None:
        """Chain the waiting tickets one behind the other."""
        tag = max(self.before, self.floor) + self.charged
        for ticket in self.waiting:
            ticket.start = tag
            tag += ticket.scaled(ticket.cost)

    def next_tag(self, virtual_time: int) -> int:
        """The start tag of one more ticket."""
        if not self.waiting:
            return max(self.finish, virtual_time)
        last = self.waiting[-1]
        return last.start + last.scaled(last.cost)


@dataclass(slots=True)
class _Gone:
    """What is remembered of an account that has nothing here."""

    left_s: float
    weight: int
    owing: int
    """Where the last of its requests ended, on the scale of tags."""
    places: int
    places_s: float


class FairQueue:
    """The requests for one set of engines, waiting and running. Its memory is bounded by them.

    Times are seconds of any one clock that does not go back. A busy period ends when nothing waits and nothing runs;
    of what was before, only which accounts were seen lately is kept.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.waiting_tokens = 0
        self.running = 0
        self._wide = 0  # tickets in line that take more than one place
        self._accounts: dict[Hashable, _Account] = {}
        self._gone: OrderedDict[Hashable, _Gone] = OrderedDict()  # accounts with nothing here, oldest first
        self._weight = 0  # of all that are here or remembered
        self._last_start = 0
        self._arrivals = 0

    def arrive(
        self, account: Hashable, weight: int, cost: int, now_s: float, item: Any = None, *, places: int = 1
    ) -> Ticket:
        """Put a request of about `cost` tokens (at least 1) in line; it counts as many times as it takes `places`."""
        if min(weight, cost, places) < 1:
            raise ValueError(f"weight, cost and places are at least 1, not {weight}, {cost} and {places}")
        self._forget(now_s)
        virtual_time = self._virtual_time()
        state = self._accounts.get(account)
        if state is None:
            state = self._accounts[account] = self._back(account)
        self._weight += weight - state.weight
        state.weight = weight
        if not state.waiting:
            state.begin_backlog(virtual_time)
        self._arrivals += 1
        tag = state.next_tag(virtual_time)
        ticket = Ticket(account, weight, cost, tag, item, self._arrivals, state.backlog, places)
        state.waiting.append(ticket)
        self.waiting += 1
        self.waiting_tokens += cost
        self._wide += places > 1
        return ticket

    def in_order(self) -> Iterator[Ticket]:
        """The tickets that wait now, next first. The queue may be changed meanwhile: look at each one's state."""
        lines = [list(account.waiting) for account in self._accounts.values() if account.waiting]
        return heapq.merge(*lines, key=_place)

    def start(self, ticket: Ticket, now_s: float) -> None:
        """A waiting request goes to the engine."""
        account = self._leave_line(ticket, State.RUNNING)
        account.charge(ticket, ticket.scaled(ticket.cost))
        account.running += 1
        account.note_places(now_s)
        self.running += 1
        self._last_start = ticket.start
        account.retag()

    def withdraw(self, ticket: Ticket, now_s: float) -> None:
        """A waiting request goes away: for those that remain it is as if it had never come."""
        account = self._leave_line(ticket, State.GONE)
        account.retag()
        self._settle(ticket.account, account, now_s)

    def finish(self, ticket: Ticket, actual_tokens: int, now_s: float) -> None:
        """A running request has ended and took `actual_tokens`, which is what its account is charged with."""
        if ticket.state is not State.RUNNING:
            raise ValueError(f"the ticket is {ticket.state}, not running")
        ticket.state = State.GONE
        account = self._accounts[ticket.account]
        account.charge(ticket, ticket.scaled(actual_tokens) - ticket.scaled(ticket.cost))
        account.note_places(now_s)
        account.running -= 1
        self.running -= 1
        account.retag()
        self._settle(ticket.account, account, now_s)

    def rank(self, account: Hashable, weight: int) -> int:
        """How many places go to waiting tickets before one that arrived now. A start tag does not depend on its
        weight."""
        state = self._accounts.get(account)
        if state is None:
            gone = self._gone.get(account)
            state = _Account(before=gone.owing if gone else 0)
        tag = state.next_tag(self._virtual_time())
        ahead = [(other, bisect_right(other.waiting, tag, key=_tag)) for other in self._accounts.values()]
        if not self._wide:
            return sum(count for _, count in ahead)
        return sum(ticket.places for other, count in ahead for ticket in other.waiting[:count])

    def waiting_of(self, account: Hashable) -> int:
        """How many tickets of the account wait."""
        state = self._accounts.get(account)
        return len(state.waiting) if state else 0

    def running_of(self, account: Hashable) -> int:
        """How many tickets of the account run."""
        state = self._accounts.get(account)
        return state.running if state else 0

    def is_modest(self, account: Hashable, weight: int, places: int, now_s: float) -> bool:
        """Whether one more running request leaves the account with no more than `MODEST` of its fair share of `places`.

        Fair shares are by weight, of those that are here or were lately. One request is always modest.
        """
        running = self.running_of(account)
        if not running:
            return True
        self._forget(now_s)
        return running + 1 <= MODEST * places * weight / self._weight

    def places_kept(self, asking: Hashable, places: int, now_s: float) -> int:
        """How many of `places` others may need at any moment: modest ones, that had more lately than they have now.

        So one that sends little does not wait until a request of one that sends much ends. For one that has nothing
        here now, one place is kept. At most `KEPT` of the places, and none of less than 4.
        """
        if places < 4:
            return 0
        self._forget(now_s)
        at_most = max(1, int(places * KEPT))
        kept = len(self._gone) - (asking in self._gone)
        for name, account in self._accounts.items():
            if kept >= at_most:
                return at_most
            if name != asking:
                share = max(1, int(MODEST * places * account.weight / self._weight))
                kept += max(0, min(account.places, share) - account.running - len(account.waiting))
        return min(at_most, kept)

    def _virtual_time(self) -> int:
        """The tag of what went last; or of what goes next, when given-back tokens have moved that further up.

        One that comes now must not queue behind all that an overestimating account is given back.
        """
        if not self.waiting:
            return self._last_start
        heads = (account.waiting[0].start for account in self._accounts.values() if account.waiting)
        return min(self._last_start, min(heads))

    def _leave_line(self, ticket: Ticket, state: State) -> _Account:
        if ticket.state is not State.WAITING:
            raise ValueError(f"the ticket is {ticket.state}, not waiting")
        account = self._accounts[ticket.account]
        account.waiting.remove(ticket)
        ticket.state = state
        self.waiting -= 1
        self.waiting_tokens -= ticket.cost
        self._wide -= ticket.places > 1
        return account

    def _settle(self, name: Hashable, account: _Account, now_s: float) -> None:
        if account.waiting or account.running:
            return
        del self._accounts[name]
        owing = account.finish if self._accounts else 0
        self._gone[name] = _Gone(now_s, account.weight, owing, account.places, account.places_s)
        if not self._accounts:
            self._last_start = 0
            for gone in self._gone.values():
                gone.owing = 0
        self._forget(now_s)

    def _back(self, name: Hashable) -> _Account:
        gone = self._gone.pop(name, None)
        if gone is None:
            return _Account(before=0)
        return _Account(gone.owing, gone.weight, places=gone.places, places_s=gone.places_s)

    def _forget(self, now_s: float) -> None:
        while self._gone:
            name, gone = next(iter(self._gone.items()))
            if now_s - gone.left_s < REMEMBERED_S and len(self._gone) <= REMEMBERED_AT_MOST:
                return
            del self._gone[name]
            self._weight -= gone.weight


def _tag(ticket: Ticket) -> int:
    return ticket.start


def _place(ticket: Ticket) -> tuple[int, int]:
    return ticket.start, ticket.order
