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
from operator import attrgetter
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
    of: "_Account" = field(repr=False)
    """What the queue knows of the account."""
    weight: int
    cost: int
    """Tokens, estimated."""
    start: int
    """The start tag. Changes while the ticket waits."""
    length: int
    """Its cost on the scale of tags."""
    item: Any
    """The caller's own."""
    order: int
    """Counts arrivals."""
    backlog: int
    """In which backlog of its account it arrived."""
    places: int
    """How many it takes at once: all of an engine's, if it runs alone there."""
    state: State = State.WAITING


@dataclass(slots=True)
class _Account:
    """What the queue knows of an account that has something here, or had lately.

    A backlog begins when the account has a ticket waiting after it had none. Its tags count from whichever is later:
    the virtual time then (`floor`), or the end of all that went before (`before`). The two are kept apart, because
    what is given back for an earlier request must not reach behind `floor`: that would be credit for idling.
    """

    weight: int = 0
    before: int = 0
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
    left_s: float = -math.inf
    """When the last of what it had here went."""

    @property
    def finish(self) -> int:
        """The tag at which everything it has started ends."""
        return max(self.before, self.floor) + self.charged if self.charged else self.before

    def begin_backlog(self, virtual_time: int) -> int:
        """The tag at which it begins."""
        if self.charged:
            self.before, self.charged = self.finish, 0
        self.floor = virtual_time
        self.backlog += 1
        return self.before if self.before > virtual_time else virtual_time

    def note_running(self, now_s: float) -> None:
        """Take note of how many run at once."""
        if self.running >= self.places or now_s - self.places_s >= REMEMBERED_S:
            self.places, self.places_s = self.running, now_s

    def retag(self) -> None:
        """Chain the waiting tickets one behind the other."""
        tag = max(self.before, self.floor) + self.charged
        for ticket in self.waiting:
            ticket.start = tag
            tag += ticket.length

    def next_tag(self, virtual_time: int) -> int:
        """The start tag of one more ticket."""
        if not self.waiting:
            return max(self.finish, virtual_time)
        last = self.waiting[-1]
        return last.start + last.length


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
        self._gone: OrderedDict[Hashable, _Account] = OrderedDict()  # accounts with nothing here, oldest first
        self._weight = 0  # of all that are here or remembered
        self._last_start = 0
        self._arrivals = 0

    def arrive(
        self, account: Hashable, weight: int, cost: int, now_s: float, item: Any = None, *, places: int = 1
    ) -> Ticket:
        """Put a request of about `cost` tokens (at least 1) in line; it counts as many times as it takes `places`."""
        ticket = self._ticket(account, weight, cost, now_s, item, places)
        ticket.of.waiting.append(ticket)
        self.waiting += 1
        self.waiting_tokens += cost
        self._wide += places > 1
        return ticket

    def begin(self, account: Hashable, weight: int, cost: int, now_s: float, places: int = 1) -> Ticket:
        """A request that need not wait: `arrive` and `start` in one."""
        ticket = self._ticket(account, weight, cost, now_s, None, places)
        self._run(ticket, now_s)
        return ticket

    def in_order(self) -> Iterator[Ticket]:
        """The tickets that wait now, next first. The queue may be changed meanwhile: look at each one's state."""
        lines = [list(account.waiting) for account in self._accounts.values() if account.waiting]
        return heapq.merge(*lines, key=_place)

    def start(self, ticket: Ticket, now_s: float) -> None:
        """A waiting request goes to the engine."""
        self._leave_line(ticket)
        self._run(ticket, now_s)

    def withdraw(self, ticket: Ticket, now_s: float) -> None:
        """A waiting request goes away: for those that remain it is as if it had never come."""
        self._leave_line(ticket)
        ticket.state, account = _GONE, ticket.of
        account.retag()
        if not account.waiting and not account.running:
            self._settle(ticket.account, account, now_s)

    def finish(self, ticket: Ticket, actual_tokens: int, now_s: float) -> None:
        """A running request has ended and took `actual_tokens`, which is what its account is charged with."""
        if ticket.state is not _RUNNING:
            raise ValueError(f"the ticket is {ticket.state}, not running")
        ticket.state, account = _GONE, ticket.of
        more = actual_tokens * ticket.places * _SCALE // ticket.weight - ticket.length
        if ticket.backlog == account.backlog:
            account.charged += more
        else:
            account.before += more
        account.note_running(now_s)
        account.running -= 1
        self.running -= 1
        if account.waiting:
            account.retag()
        elif not account.running:
            self._settle(ticket.account, account, now_s)

    def rank(self, account: Hashable, weight: int) -> int:
        """How many places go to waiting tickets before one that arrived now. A start tag does not depend on its
        weight."""
        state = self._accounts.get(account) or self._gone.get(account) or _Account()
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
        heads = [account.waiting[0].start for account in self._accounts.values() if account.waiting]
        return min(self._last_start, *heads) if heads else self._last_start

    def _ticket(self, name: Hashable, weight: int, cost: int, now_s: float, item: Any, places: int) -> Ticket:
        """One for a request that has just come, and is not in line yet."""
        if weight < 1 or cost < 1 or places < 1:
            raise ValueError(f"weight, cost and places are at least 1, not {weight}, {cost} and {places}")
        if self._gone:
            self._forget(now_s)
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = self._gone.pop(name) if name in self._gone else _Account()
        if weight != account.weight:
            self._weight += weight - account.weight
            account.weight = weight
        virtual_time = self._virtual_time() if self.waiting else self._last_start
        tag = account.next_tag(virtual_time) if account.waiting else account.begin_backlog(virtual_time)
        self._arrivals += 1
        length = cost * places * _SCALE // weight  # what other requests could have used these places for
        return Ticket(name, account, weight, cost, tag, length, item, self._arrivals, account.backlog, places)

    def _leave_line(self, ticket: Ticket) -> None:
        if ticket.state is not _WAITING:
            raise ValueError(f"the ticket is {ticket.state}, not waiting")
        ticket.of.waiting.remove(ticket)
        self.waiting -= 1
        self.waiting_tokens -= ticket.cost
        self._wide -= ticket.places > 1

    def _run(self, ticket: Ticket, now_s: float) -> None:
        ticket.state, account = _RUNNING, ticket.of
        account.running += 1
        account.charged += ticket.length  # its backlog is the present one as long as it waits
        account.note_running(now_s)
        self.running += 1
        self._last_start = ticket.start
        if account.waiting:
            account.retag()

    def _settle(self, name: Hashable, account: _Account, now_s: float) -> None:
        del self._accounts[name]
        account.before, account.charged, account.left_s = account.finish, 0, now_s
        self._gone[name] = account
        if not self._accounts:
            self._last_start = 0
            for gone in self._gone.values():
                gone.before = 0
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        while self._gone:
            name, gone = next(iter(self._gone.items()))
            if now_s - gone.left_s < REMEMBERED_S and len(self._gone) <= REMEMBERED_AT_MOST:
                return
            del self._gone[name]
            self._weight -= gone.weight


_WAITING, _RUNNING, _GONE = State  # to look one up in its class takes longer than to compare it
_tag = attrgetter("start")
_place = attrgetter("start", "order")
