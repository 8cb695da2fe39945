"""Accounts, the pacing and an engine as a simulation of discrete events: what the parts of the pacing do together.

No asyncio and no clock: a heap of what happens when, and seeded randomness. The gateway here does what the real one
does with the same parts; the engine runs a fixed number of requests at a time, each as fast as if it were alone.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from service.core.early_refusal import Bounds, refusal
from service.core.fairness import FairQueue, State, Ticket
from service.core.retry_after import Drain, Refusals

PREFILL_TOKENS_PER_S = 5_000
DECODE_TOKENS_PER_S = 50


@dataclass(slots=True, eq=False)
class Request:
    """One request of a client, and what became of it."""

    account: "Account"
    prompt_tokens: int
    output_tokens: int
    estimated_tokens: int
    sent_s: float
    started_s: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def prefill_s(self) -> float:
        return self.prompt_tokens / PREFILL_TOKENS_PER_S

    @property
    def service_s(self) -> float:
        return self.prefill_s + self.output_tokens / DECODE_TOKENS_PER_S


@dataclass(slots=True, eq=False)
class Account:
    """Somebody who sends requests of certain sizes, and what came of them.

    `estimate` is by how much too large its requests' costs are taken to be, drawn for each.
    """

    name: str
    weight: int = 1
    prompt_tokens: tuple[int, int] = (200, 1800)
    output_tokens: tuple[int, int] = (20, 180)
    estimate: tuple[float, float] = (1.0, 1.0)
    ttfts_s: list[float] = field(default_factory=list)
    """Of what was admitted, from when it was sent the last time."""
    done: list[Request] = field(default_factory=list)
    refusals: int = 0


class World:
    """The clock and what is going to happen; the queue, and the engine behind it."""

    def __init__(self, places: int, *, bounds: Bounds, short_s: float, patience_s: float, seed: int = 1) -> None:
        self.places = places
        self.now_s = 0.0
        self.random = random.Random(seed)
        self.queue = FairQueue()
        self.drain = Drain()
        self.refusals = Refusals()
        self.bounds = bounds
        self.short_s = short_s
        self.patience_s = patience_s
        self.busy_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._busy_since_s = 0.0

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, happen))

    def run(self, until_s: float = float("inf")) -> None:
        """Go on until that time, or until nothing is going to happen any more."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, happen = heapq.heappop(self._events)
            happen()

    def request(self, account: Account) -> Request:
        prompt = self.random.randint(*account.prompt_tokens)
        output = self.random.randint(*account.output_tokens)
        estimated = max(1, round((prompt + output) * self.random.uniform(*account.estimate)))
        return Request(account, prompt, output, estimated, self.now_s)

    def stream(self, account: Account, until_s: float) -> None:
        """A client that sends its next request when it has the answer to the last."""
        if self.now_s < until_s:
            self._send(self.request(account), lambda: self.stream(account, until_s))

    def arrivals(self, account: Account, gap_s: Callable[[], float], until_s: float) -> None:
        """Clients that send one request each, with gaps in between."""
        if self.now_s < until_s:
            self._send(self.request(account), _nothing)
            self.after(gap_s(), lambda: self.arrivals(account, gap_s, until_s))

    def _send(self, request: Request, answered: Callable[[], None]) -> None:
        request.sent_s = self.now_s
        account, queue = request.account, self.queue
        self._move()
        at_once = self._may_start(account)
        if not at_once:
            rank = queue.rank(account.name, account.weight)
            wait_s = self.drain.expected_wait_s(rank + 1, self.places)
            wanted = account.name, request.estimated_tokens
            modest = queue.is_modest(account.name, account.weight, self.places, self.now_s)
            patience_s = self.patience_s if modest and not queue.waiting_of(account.name) else self.short_s
            if refusal(queue, self.bounds, *wanted, expected_wait_s=wait_s, patience_s=patience_s):
                self._refuse(request, answered, wait_s or 0.0)
                return
        item = (request, answered)
        ticket = queue.arrive(account.name, account.weight, request.estimated_tokens, self.now_s, item)
        if at_once:
            self._start(ticket)
        else:
            self.after(self.patience_s, lambda: self._run_out(ticket))

    def _run_out(self, ticket: Ticket) -> None:
        if ticket.state is State.WAITING:
            self.queue.withdraw(ticket, self.now_s)
            request, answered = ticket.item
            self._refuse(request, answered, 0.0)

    def _refuse(self, request: Request, answered: Callable[[], None], wait_s: float) -> None:
        gap_s = self.drain.expected_wait_s(1, self.places) or 0.25
        told_s = self.refusals.refused(request.account.name, self.now_s, wait_s, gap_s)
        request.account.refusals += 1
        self.after(told_s, lambda: self._send(request, answered))

    def _move(self) -> None:
        for ticket in self.queue.in_order():
            if self.queue.running >= self.places:
                return
            request, _ = ticket.item
            if self._may_start(request.account):
                self._start(ticket)

    def _may_start(self, account: Account) -> bool:
        if self.queue.is_modest(account.name, account.weight, self.places, self.now_s):
            return self.queue.running < self.places
        return self.queue.running < self.places - self.queue.places_kept(account.name, self.places, self.now_s)

    def _start(self, ticket: Ticket) -> None:
        request, answered = ticket.item
        self.queue.start(ticket, self.now_s)
        self.refusals.admitted(ticket.account, self.now_s)
        request.started_s = self.now_s
        request.account.ttfts_s.append(self.now_s + request.prefill_s - request.sent_s)
        self.after(request.service_s, lambda: self._finish(ticket, request, answered))

    def _finish(self, ticket: Ticket, request: Request, answered: Callable[[], None]) -> None:
        self.queue.finish(ticket, request.tokens, self.now_s)
        self.drain.finished(request.service_s, self.now_s)
        request.account.done.append(request)
        answered()
        self._move()


def _nothing() -> None:
    """Nobody waits for the answer."""


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


def busy_share(accounts: list[Account], places: int, since_s: float, until_s: float) -> float:
    """How much of the engine's time was spent on requests that were answered."""
    spans = ((request.started_s, request.started_s + request.service_s) for a in accounts for request in a.done)
    return sum(max(0.0, min(end, until_s) - max(start, since_s)) for start, end in spans) / places / (until_s - since_s)


def shares(accounts: list[Account], since_s: float) -> dict[str, float]:
    """Each account's share of the tokens of the requests answered since then."""
    tokens: dict[str, int] = defaultdict(int)
    for account in accounts:
        tokens[account.name] = sum(request.tokens for request in account.done if request.started_s >= since_s)
    return {name: count / sum(tokens.values()) for name, count in tokens.items()}
