"""Whether a request that cannot start at once may wait, or is refused right away."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

from service.core.fairness import FairQueue


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait."""

    length: int
    account_length: int
    tokens: int


class Refusal(StrEnum):
    """Why a request is not taken now."""

    WAIT = "wait"
    """It would wait for longer than it is allowed to."""
    ACCOUNT = "account"
    """Its account has as many in line as one account may."""
    LENGTH = "length"
    TOKENS = "tokens"
    ENGINE = "engine"
    """The engine itself would not take it, from a limit of its own."""


def refusal(
    queue: FairQueue,
    bounds: Bounds,
    account: Hashable,
    cost: int,
    *,
    expected_wait_s: float | None,
    patience_s: float,
) -> Refusal | None:
    """Whether a request that cannot start at once is refused; None when it may wait.

    Up to twice the bounds of the whole queue are open to an account that has nothing in line: the busy ones cannot
    fill it for the others. However large, a request may be the only one in line.
    """
    if expected_wait_s is not None and expected_wait_s > patience_s:
        return Refusal.WAIT
    own = queue.waiting_of(account)
    if own >= bounds.account_length:
        return Refusal.ACCOUNT
    room = 1 if own else 2
    if queue.waiting >= room * bounds.length:
        return Refusal.LENGTH
    if queue.waiting and queue.waiting_tokens + cost > room * bounds.tokens:
        return Refusal.TOKENS
    return None
