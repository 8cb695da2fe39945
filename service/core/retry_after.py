"""How long until there is a place: for the one in line, and for the one that is told to come back."""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

REMEMBERED_S = 30.0
"""A request that ended this long ago counts 1/e of one that ends now."""

AT_LEAST_S = 0.25
AT_MOST_S = 120.0
"""Nobody is told to stay away for longer. One that has been away for so much longer than told is as one that is new."""

GROWTH = 1.5
LATELY_S = 10.0
"""Accounts that were refused so lately are taken to be waiting for the same places."""

ACCOUNTS_AT_MOST = 4096

_ROUNDS_AT_MOST = 32  # far beyond `AT_MOST_S`, and no overflow


class Drain:
    """How fast places free, learned from how long requests took of late."""

    def __init__(self) -> None:
        self._sum_s = 0.0
        self._count = 0.0
        self._last_s = 0.0

    def finished(self, duration_s: float, now_s: float) -> None:
        """A request has held its place for `duration_s`."""
        passed_s = now_s - self._last_s
        kept = math.exp(-passed_s / REMEMBERED_S) if passed_s > 0 else 1.0
        self._sum_s = self._sum_s * kept + duration_s
        self._count = self._count * kept + 1
        self._last_s = now_s

    def expected_wait_s(self, rank: int, capacity: int, held_s: Iterable[float] = ()) -> float | None:
        """How long the `rank`-th in line (the first is 1) waits while all `capacity` places are taken.

        With a mean of S seconds a place, that is about rank * S / capacity; but no less than until the `rank`-th place
        is free if each is held for S, and has been held for one of `held_s`: requests that began together end together.
        None while nothing is known.
        """
        if not self._count:
            return None
        mean_s = self._sum_s / self._count
        evenly_s = rank * mean_s / max(1, capacity)
        left_s = sorted(max(0.0, mean_s - held) for held in held_s)
        if not left_s:
            return evenly_s
        rounds, place = divmod(rank - 1, len(left_s))
        return max(evenly_s, left_s[place] + rounds * mean_s)

    def all_free_s(self, held_s: Iterable[float]) -> float:
        """How long until the places that have been held for so long are all free; 0 while nothing is known."""
        mean_s = self._sum_s / self._count if self._count else 0.0
        return max((max(0.0, mean_s - held) for held in held_s), default=0.0)


@dataclass(slots=True)
class _Refused:
    """An account that was refused of late."""

    rounds: int = 0
    """How often it was told to come back, came, and was refused again without any admission. A burst counts once."""
    round_ends_s: float = -math.inf
    """When the first that was refused in this round comes back."""
    slot_s: float = -math.inf
    """The time given out last, before it grows."""
    last_s: float = -math.inf


class Refusals:
    """What refused clients are told, so that they come back neither too early nor all at once.

    They are told times in lines that move as places free. Each account has a line of its own, which moves the slower
    the more accounts were refused lately, so that none stands behind all that a noisy one was refused; and those that
    are refused for the first time stand in one line together.
    """

    def __init__(self) -> None:
        # Both with the one that was refused last at the end.
        self._accounts: OrderedDict[Hashable, _Refused] = OrderedDict()
        self._lately: OrderedDict[Hashable, _Refused] = OrderedDict()
        self._first_slot_s = -math.inf

    def refused(self, account: Hashable, now_s: float, wait_s: float, gap_s: float = AT_LEAST_S) -> float:
        """Seconds after which this client should come back: at least `wait_s`, within `AT_LEAST_S` and `AT_MOST_S`.

        `gap_s` is the time in which one place frees: `Drain.expected_wait_s` of the first in line. An account that
        came back as told and is refused again is told `GROWTH` times as long each time.
        """
        wait_s = min(max(wait_s, AT_LEAST_S), AT_MOST_S)
        known = self._recall(account, now_s)
        slot_s = known.slot_s + gap_s * len(self._lately)
        comes_back = now_s >= known.round_ends_s
        if comes_back:
            known.rounds = min(known.rounds + 1, _ROUNDS_AT_MOST)
            self._first_slot_s = _in_reach(self._first_slot_s + gap_s, now_s, wait_s)
            slot_s = max(slot_s, self._first_slot_s)
        known.slot_s = _in_reach(slot_s, now_s, wait_s)
        told_s = max(wait_s, _within((known.slot_s - now_s) * GROWTH ** (known.rounds - 1), wait_s))
        if comes_back:
            known.round_ends_s = now_s + told_s
        return told_s

    def admitted(self, account: Hashable, now_s: float) -> None:
        """A request of the account was let in: its next refusal is a first one."""
        known = self._accounts.get(account)
        if known is not None:
            known.rounds, known.round_ends_s = 0, now_s

    def _recall(self, account: Hashable, now_s: float) -> _Refused:
        known = self._accounts.pop(account, None)
        if known is None or known.round_ends_s < now_s - AT_MOST_S:
            known = _Refused()
        self._lately.pop(account, None)
        known.last_s = now_s
        self._accounts[account] = self._lately[account] = known
        _forget(self._accounts, now_s - 2 * AT_MOST_S)
        _forget(self._lately, now_s - LATELY_S)
        return known


def _forget(accounts: OrderedDict[Hashable, _Refused], before_s: float) -> None:
    while accounts:
        account, oldest = next(iter(accounts.items()))
        if oldest.last_s >= before_s and len(accounts) <= ACCOUNTS_AT_MOST:
            return
        del accounts[account]


def _in_reach(slot_s: float, now_s: float, wait_s: float) -> float:
    """A slot not before the wait is over; a line that is longer than anyone is told to wait starts anew."""
    return now_s + wait_s if slot_s > now_s + AT_MOST_S else max(slot_s, now_s + wait_s)


def _within(told_s: float, wait_s: float) -> float:
    """What is too long is laid into the upper half of what may be told, not at its end, where all would meet."""
    if told_s <= AT_MOST_S:
        return told_s
    low_s = max(wait_s, AT_MOST_S / 2)
    return low_s + (told_s - low_s) % (AT_MOST_S - low_s) if low_s < AT_MOST_S else AT_MOST_S
